"""What hosts report of their checkpoints while one of them is away, and who is named for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, START_MS, DrivenApp, Orders, check, orders_app

import headrace as hr
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.messages import AppStatus, Heartbeat, Register
from headrace.coordinator.progress import holders
from headrace.core.ids import TaskName
from headrace.operate.cli.status_view import age, to_text
from headrace.run.container import LATE_INTERVALS, LATE_MS, task_status
from headrace.run.holdups import Standstill

OVERDUE_MS = LATE_INTERVALS * INTERVAL_MS + LATE_MS


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def status(app: DrivenApp, away: TaskName | None) -> AppStatus:
    """What a coordinator says when the living tasks are in one container, and the others' is not there yet."""
    stages = {stage.name: [task.name for task in stage.tasks] for stage in app.plan.stages}
    ledger = Ledger("orders", stages, 1, started_at=0, guarantee="exactly_once")
    ledger.register(Register(container=0, attempt=0, host="h", pid=1, incarnation="i"), 0.0)
    now = app.clock.monotonic_ms()
    tasks = [task_status(host, now) for host in app.hosts if host.name != away]
    ledger.heartbeat(Heartbeat(container=0, incarnation="i", sent_ms=1.0, tasks=tasks), 0.0)
    return ledger.status(1.0)


def taken_by_steps(status: AppStatus, name: str) -> dict[str, float]:
    (task,) = (task for task in status.tasks if task.name == name)
    return {one.labels["step"]: one.value for one in task.series if one.name == "headrace_step_messages_total"}


def test_all_is_well(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        orders.write()
        app.run(2 * OVERDUE_MS)
        found = status(app, None)
        assert found.held_up == []
        held = holders(found.tasks)
        at_sources = {where: number for where, number in held.items() if where[0].startswith("orders/")}
        assert sum(at_sources.values()) == len(found.tasks)  # each has its watermark from one partition of a source
        assert sum(held.values()) == 2 * (1 + 2 + 3)  # stages on the way
        for task in found.tasks:
            assert task.checkpoint is not None
            assert 0 <= task.checkpoint.age_ms <= 2 * INTERVAL_MS
            assert (task.waits_for, task.overdue_ms, task.early_bytes) == ({}, 0, 0)
        text = to_text(found, 0, 160, coloured=False)
        assert "rollbacks" in text
        assert "held up" not in text
        orders.end()
        app.finish()
        check(app, orders)


def test_one_task_that_is_away_is_named_for_all_who_wait(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        one, other = (app.start_tasks([task.name]) for task in app.plan.stage("orders").tasks)
        app.start("by-member", "by-region")
        orders.write()
        app.run(600)
        app.kill(other)
        orders.write()
        app.run(OVERDUE_MS + INTERVAL_MS)
        away = app.plan.stage("orders").tasks[1].name
        (held,) = status(app, away).held_up
        assert (held.by, held.reason) == (str(away), "it is starting")
        assert held.tasks == ["by-member/0", "by-member/1", "by-region/0", "by-region/1"]
        assert OVERDUE_MS <= held.for_ms <= OVERDUE_MS + 4 * INTERVAL_MS
        text = to_text(status(app, away), 0, 160, coloured=False)
        late = f"by-member/0 and 3 others can't complete a version for {age(held.for_ms)}"
        assert f"{late}, waiting for {away}: it is starting" in text
        waiting = {task.name: task for task in status(app, away).tasks}
        stream = app.plan.streams["by-member"].spec.stream
        assert waiting["by-member/0"].waits_for == {f"{stream}[0]": [str(away)]}
        assert waiting["by-member/0"].early_bytes > 0
        assert waiting["orders/0"].waits_for == {}
        assert holders(waiting.values())["by-member/0", f"{stream}[0]"] == 3  # its own, and those of by-region
        app.start_tasks([away])
        app.run(4 * INTERVAL_MS)
        assert status(app, None).held_up == []
        orders.end()
        app.finish()
        check(app, orders)
        assert one in app.living


@pytest.mark.parametrize("fits", [True, False])
def test_messages_that_do_not_move_event_time_are_the_reason(tmp_path: Path, orders: Orders, fits: bool) -> None:
    app_with = orders_app(tmp_path, on_error="skip")
    still = Standstill()
    with DrivenApp(app_with) as app, hr.streams.StreamWriter("orders", key="order", home=tmp_path) as writer:
        app.start()
        orders.write()
        app.run(2 * INTERVAL_MS)
        late = [{"order": n, "member": n, "amount": 5, "ts": START_MS - 60_000 if fits else None} for n in range(20)]
        for _ in range(12):
            writer.write(late)
            app.run(500)
            now = app.clock.monotonic_ms()
            tasks = [task_status(host, now, still, app.clock.now_ms()) for host in app.hosts]
        held = {task.name: task.holdups for task in tasks}
        for n in (0, 1):
            (source,), (reader,) = held[f"orders/{n}"], held[f"by-member/{n}"]
            assert source.what == "late"
            assert source.where.startswith(
                f"log.orders[{n}]: messages arrive, but none moves event time on, which is at "
            )
            assert source.where.endswith("skipped") is not fits
            assert ("event times" if fits else "schema") in source.remedy
            if fits:  # its windows are over
                assert (reader.what, reader.where.endswith("too late")) == ("watermark", True)
        orders.end()
        app.finish()


def test_rollbacks_are_counted(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        first = app.start("orders")
        app.start("by-member", "by-region")
        orders.write()
        app.run(3 * INTERVAL_MS + 40)
        orders.write(100, span_ms=3000)
        app.run(60)
        taken = taken_by_steps(status(app, None), "by-member/0")
        assert sum(taken.values()) > 0
        app.kill(first)
        app.start("orders")
        app.run(INTERVAL_MS)
        later = taken_by_steps(status(app, None), "by-member/0")
        assert all(later[step] >= number for step, number in taken.items())  # though the steps are new ones
        counted = {task.name: task.counters.get("rollbacks", 0) for task in status(app, None).tasks}
        assert counted["by-member/0"] == app.host("by-member/0").machine.rollbacks > 0
        assert counted["orders/0"] == 0
        orders.end()
        app.finish()
        check(app, orders)
