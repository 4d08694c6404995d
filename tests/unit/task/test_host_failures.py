"""Failures around real hosts: zombies, upstream restarts, torn tails, clocks that jump, stages that stand still."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from driven_app import INTERVAL_MS, OUTPUTS, DrivenApp, Orders, check, expected, orders_app
from polars.testing import assert_frame_equal

from drawn import seeds
from headrace.core.errors import FencedError, TrimmedOffsetError
from headrace.core.ids import SSP, StreamId
from headrace.systems.log.system import LogSystem
from headrace.task.container import Container
from headrace.task.host import task_host
from headrace.task.host.attempt import Patience
from headrace.task.inputs import consumers
from headrace.task.inputs.chooser import VersionBuffer
from headrace.task.scope import TaskScope, run


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def fed(app: DrivenApp, orders: Orders, batches: int, ms: int = 300) -> None:
    for _ in range(batches):
        orders.write()
        app.run(ms)


def finished(app: DrivenApp, orders: Orders) -> None:
    fed(app, orders, 2)
    orders.end()
    app.finish()
    check(app, orders)


def committed_again(container: Container, version: int) -> bool:
    return all(host.machine.version > version for host in container.hosts)


def fenced(zombie: Container) -> int:
    """Let every task of a zombie go on until it is stopped; how many were."""
    stopped = 0
    for host in zombie.hosts:
        try:
            for _ in range(200):
                zombie.connections.learn()
                host.poll()
                run(host.performing())
                host.step(host._clock.monotonic_ms())
                zombie.connections.flush_records()
                run(host.on_time(host._clock.monotonic_ms()))
                zombie.connections.flush_records()
                host._clock.advance(10)  # type: ignore[attr-defined]  # the test's own
        except FencedError as error:
            assert f"task {host.name}" in error.message
            stopped += 1
    return stopped


# -- zombies


@pytest.mark.parametrize("stage", ["orders", "by-member", "by-region"])
def test_a_zombie_that_wakes_up_changes_nothing(tmp_path: Path, orders: Orders, stage: str) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        others = [app.start(each.name) for each in app.plan.stages if each.name != stage]
        zombie = app.start(stage)
        fed(app, orders, 4)
        orders.write()
        app.run(40)
        app.living.remove(zombie)  # it hangs, with work half done
        fed(app, orders, 1)
        replacement = app.start(stage)
        fed(app, orders, 3)
        before = {output: app.rows(output) for output in OUTPUTS}
        versions = {host.name: host.machine.version for host in replacement.hosts}
        orders.write()
        assert fenced(zombie) == len(zombie.hosts)
        assert {host.name: host.machine.version for host in replacement.hosts} == versions
        for output in OUTPUTS:
            assert_frame_equal(app.rows(output), before[output])
        app.living.append(zombie)
        app.kill(zombie)
        assert set(app.living) == {*others, replacement}
        finished(app, orders)


def test_a_zombie_and_its_replacement_run_side_by_side(tmp_path: Path, orders: Orders) -> None:
    """Turn by turn both read, write and try to commit; the older one is stopped by its first commit at the latest."""
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start("orders", "by-region")
        zombie = app.start("by-member")
        fed(app, orders, 3)
        app.living.remove(zombie)
        app.start("by-member")
        orders.write()
        with pytest.raises(FencedError):
            for _ in range(2 * INTERVAL_MS // 20):
                zombie.turn()
                app.turn()
        app.living.append(zombie)
        app.kill(zombie)
        finished(app, orders)


# -- rollbacks


def test_a_restart_upstream_rolls_back_everything_downstream(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        first = app.start("orders")
        rest = app.start("by-member", "by-region")
        fed(app, orders, 6)
        for _ in range(5):
            # Just behind a commit: what comes now is processed everywhere, and committed nowhere.
            app.until(partial(committed_again, first, first.hosts[0].machine.version))
            orders.write(100, span_ms=5000)
            app.run(60)
            app.kill(first)
            first = app.start("orders")
            app.run(3 * INTERVAL_MS)
        rolled_back = {host.name.stage: 0 for host in rest.hosts}
        for host in rest.hosts:
            assert host.metrics.counters["rollbacks"] == host.machine.rollbacks
            rolled_back[host.name.stage] += host.machine.rollbacks
        assert all(rolled_back.values()), rolled_back
        assert app.rows("seen", committed=False).height > app.rows("seen").height
        finished(app, orders)


@pytest.mark.parametrize("seed", seeds(range(4), 2))
def test_single_tasks_restart_again_and_again(tmp_path: Path, orders: Orders, seed: int) -> None:
    chance = random.Random(seed)
    with DrivenApp(orders_app(tmp_path)) as app:
        tasks = [task.name for stage in app.plan.stages for task in stage.tasks]
        running = {task: app.start_tasks([task]) for task in tasks}
        for _ in range(25):
            orders.write(chance.randrange(1, 80), span_ms=chance.choice([200, 1000, 4000]))
            app.run(chance.randrange(20, 400))
            task = chance.choice(tasks)
            app.kill(running[task])
            running[task] = app.start_tasks([task])
        finished(app, orders)


# -- the log's end


@pytest.mark.parametrize("seed", seeds(range(3), 1))
def test_torn_tails_are_stepped_over(tmp_path: Path, orders: Orders, seed: int) -> None:
    """Every partition the app writes ends in a piece of a record, as a killed writer leaves it.

    One that the app hasn't written since gets no second piece: two in a row may be reported as damage.
    """
    chance = random.Random(seed)
    torn: dict[Path, int] = {}
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        fed(app, orders, 3)
        for _ in range(3):
            orders.write()
            app.run(chance.randrange(20, 300))
            app.kill(container)
            for path in (tmp_path / "streams").glob("*/*.log"):
                record = path.read_bytes()[32:]
                if path.parent.name == "orders" or not record or len(record) == torn.get(path):
                    continue
                piece = record[: chance.randrange(1, min(len(record), 120))]
                with path.open("ab") as file:
                    file.write(piece)
                torn[path] = len(record) + len(piece)
            container = app.start()
        finished(app, orders)


# -- early arrivals


@pytest.mark.parametrize("memory", [0, 2000, 32 << 20])
def test_early_arrivals_wait_in_order(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """One of the upstream tasks is down: what its sister says of later versions is early, for longer and longer."""
    monkeypatch.setattr(task_host, "VersionBuffer", lambda reread, _: VersionBuffer(reread, memory))
    with DrivenApp(orders_app(tmp_path)) as app:
        one, other = (app.start_tasks([task.name]) for task in app.plan.stage("orders").tasks)
        app.start("by-member", "by-region")
        fed(app, orders, 3)
        app.kill(other)
        fed(app, orders, 8)
        buffers = [host.receiver.buffer for host in app.hosts if host.name.stage == "by-member"]
        assert all((buffer.memory_bytes > 0) == (memory > 0) for buffer in buffers)
        assert all((buffer.stream_bytes > 0) == (memory < 10_000) for buffer in buffers)
        # The living sister restarts as well: what is buffered of its uncommitted end is forgotten.
        orders.write()
        app.run(40)
        app.kill(one)
        one = app.start_tasks([app.plan.stage("orders").tasks[0].name])
        app.run(INTERVAL_MS)
        app.start_tasks([app.plan.stage("orders").tasks[1].name])
        app.run(4 * INTERVAL_MS)
        assert all(buffer.empty for buffer in buffers)
        finished(app, orders)


def test_early_arrivals_hold_back_the_writers_that_commit_by_the_clock(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And need no local disk: what doesn't fit into memory is read again."""
    monkeypatch.setattr(consumers, "WAITING_BYTES_MAX", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    limit = 60_000
    with DrivenApp(orders_app(tmp_path, ahead_bytes_max=limit)) as app:
        one, other = (app.start_tasks([task.name]) for task in app.plan.stage("orders").tasks)
        app.start("by-member", "by-region")
        fed(app, orders, 3)
        app.kill(other)
        for _ in range(30):
            orders.write(400)
            app.run(100)
        buffers = [host.receiver.buffer for host in app.hosts if host.name.stage == "by-member"]
        assert all(limit / 2 < buffer.memory_bytes + buffer.stream_bytes < 3 * limit for buffer in buffers)
        assert all("by-member" in (host.blocked_by or "") for host in one.hosts)
        assert sum(host.lag(ssp) or 0 for host in one.hosts for ssp in host.task.specs) > 2 * limit
        app.start_tasks([app.plan.stage("orders").tasks[1].name])
        finished(app, orders)
        assert all(buffer.empty for buffer in buffers)


def test_early_arrivals_do_not_hold_back_writers_that_this_task_waits_for(tmp_path: Path, orders: Orders) -> None:
    """A writer that follows other tasks closes a version only when it has read it."""
    with DrivenApp(orders_app(tmp_path)) as app:
        scopes = [TaskScope.of(app.plan, stage, task) for stage in app.plan.stages for task in stage.tasks]
        by_clock = {
            tuple(stages): ssp in scope.written_by_clock for scope in scopes for ssp, stages in scope.writers.items()
        }
        assert by_clock == {("orders",): True, ("by-member",): False}


# -- upstream tasks that stay away


def test_versions_are_committed_while_an_upstream_task_stays_away(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died in the middle of a version, whose frames had been processed: they are left out until it is back."""
    monkeypatch.setattr(task_host, "Patience", lambda scope, machine, inputs, _: Patience(scope, machine, inputs, 2000))
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start_tasks([app.plan.stage("orders").tasks[0].name])
        other = app.start_tasks([app.plan.stage("orders").tasks[1].name])
        app.start("by-member", "by-region")
        fed(app, orders, 3)
        orders.write()
        app.run(40)
        app.kill(other)
        known = len(orders.written)
        readers = [host for host in app.hosts if host.name.stage == "by-member"]
        app.run(1500)
        assert not any(host.metrics.counters["rollbacks"] for host in readers)
        assert all(host.catching_up.version is not None for host in readers)
        fed(app, orders, 10)
        assert all(host.metrics.counters["rollbacks"] for host in readers)
        assert any("no longer waits for orders/1" in warning for warning in readers[0].metrics.warnings)
        wanted = pl.concat(orders.written[known:-3])["order"]
        seen = app.rows("seen")["order"]
        assert wanted.len() / 3 < wanted.is_in(seen.implode()).sum() < wanted.len()  # those of the task that lives
        assert not any(host.machine.whole for host in readers)
        assert all(host.catching_up.version is None for host in readers)  # a run must not end with that
        app.start_tasks([app.plan.stage("orders").tasks[1].name])
        app.run(2 * INTERVAL_MS)
        assert all(host.machine.whole for host in readers)
        assert all(host.catching_up.version is not None for host in readers)
        finished(app, orders)


def test_what_is_held_of_an_upstream_task_stops_none_of_the_others(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_host, "Patience", lambda scope, machine, inputs, _: Patience(scope, machine, inputs, 2000))
    with DrivenApp(orders_app(tmp_path, ahead_bytes_max=60_000)) as app:
        app.start_tasks([app.plan.stage("orders").tasks[0].name])
        other = app.start_tasks([app.plan.stage("orders").tasks[1].name])
        app.start("by-member", "by-region")
        fed(app, orders, 3)
        orders.write()
        app.run(40)
        app.kill(other)
        for _ in range(60):
            orders.write(400)
            app.run(100)
        readers = [host for host in app.hosts if host.name.stage == "by-member"]
        assert not any(host.receiver.buffer.empty for host in readers)
        assert app.rows("seen").height > 60 * 400 / 3
        assert all(host.blocked_by is None for host in app.hosts)
        app.start_tasks([app.plan.stage("orders").tasks[1].name])
        finished(app, orders)


def test_a_reader_that_lags_behind_does_not_take_its_upstream_tasks_for_late(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for is there, behind what it hasn't read yet."""
    monkeypatch.setattr(task_host, "Patience", lambda scope, machine, inputs, _: Patience(scope, machine, inputs, 0))
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start("orders")
        fed(app, orders, 10)
        monkeypatch.setattr(consumers, "WAITING_BYTES_MAX", 1)
        monkeypatch.setattr(consumers, "POLL_BYTES_MAX", 1)
        app.start("by-member", "by-region")
        lagged = 0
        for _ in range(100):
            app.turn()
            lagged += sum(host.machine.lagging for host in app.hosts)
        assert lagged > 10
        assert not any(host.metrics.warnings.total for host in app.hosts)


# -- clocks


@pytest.mark.parametrize("seed", seeds(range(4), 2))
def test_the_wall_clock_jumps(tmp_path: Path, orders: Orders, seed: int) -> None:
    chance = random.Random(seed)
    with DrivenApp(orders_app(tmp_path)) as app:
        first = app.start("orders")
        app.start("by-member", "by-region")
        for _ in range(12):
            orders.write()
            app.run(chance.randrange(20, 300))
            app.clock.jump(chance.choice([-86_400_000, -5000, -300, 300, 5000, 86_400_000]))
            if chance.random() < 0.4:
                app.kill(first)
                first = app.start("orders")
        finished(app, orders)


def test_a_clock_set_back_stops_commits_until_it_is_set_right(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        fed(app, orders, 3)
        app.clock.jump(-60_000)
        fed(app, orders, 3)
        app.clock.jump(60_000)
        app.run(3 * INTERVAL_MS)
        (version,) = {host.machine.version for host in app.hosts if host.name.stage == "orders"}
        assert version >= app.clock.now_ms() // INTERVAL_MS - 2
        finished(app, orders)


# -- standing still


def test_a_stage_that_stands_still_stops_the_ones_before_it(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As much as may wait in a task is read ahead of its processing; here that has to be little.
    monkeypatch.setattr(consumers, "WAITING_BYTES_MAX", 1000)
    limit = 60_000
    with DrivenApp(orders_app(tmp_path, ahead_bytes_max=limit)) as app:
        upstream = app.start("orders")
        downstream = app.start("by-member", "by-region")
        fed(app, orders, 3)
        app.kill(downstream)
        for _ in range(30):
            orders.write(400)
            app.run(100)
        assert all("by-member" in (host.blocked_by or "") for host in upstream.hosts)
        folder = tmp_path / "streams" / app.plan.streams["by-member"].spec.stream.name
        sizes = [path.stat().st_size for path in folder.glob("*.log")]
        lag = sum(host.lag(ssp) or 0 for host in upstream.hosts for ssp in host.task.specs)
        assert lag > 4 * limit
        fed(app, orders, 5)
        # Checkpoints and watermarks go on; data doesn't.
        grown = [path.stat().st_size for path in folder.glob("*.log")]
        assert max(sizes) < 3 * limit
        assert all(after - before < 20_000 for before, after in zip(sizes, grown, strict=True))
        app.start("by-member", "by-region")
        finished(app, orders)
        assert all(host.blocked_by is None for host in upstream.hosts)


def test_the_last_stage_alone_stands_still(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start("orders", "by-member")
        last = app.start("by-region")
        fed(app, orders, 2)
        app.kill(last)
        fed(app, orders, 20, ms=100)
        done = expected(pl.concat(orders.written))["seen"]
        app.run(2 * INTERVAL_MS)
        assert_frame_equal(app.rows("seen"), done, check_row_order=False)
        app.start("by-region")
        finished(app, orders)


# -- what is given up


def test_a_source_that_gave_up_what_was_not_read_is_no_sign_of_a_replacement(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        fed(app, orders, 3)
        app.kill(container)
        orders.write()
        admin = LogSystem(tmp_path / "streams").admin()
        for number, extent in enumerate(admin.extents("orders")):
            admin.trim(SSP(StreamId("log", "orders"), number), extent.upcoming)
        with pytest.raises(
            TrimmedOffsetError, match=r"task orders/0.*log\.orders\[0\]: offset \d+ was trimmed"
        ) as caught:
            app.start()
        assert "retention" in (caught.value.hint or "")


def test_an_intermediate_stream_below_its_oldest_frame_is_read_by_stale_copies_only(
    tmp_path: Path, orders: Orders
) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        fed(app, orders, 3)
        orders.write()
        app.run(60)  # and no commit
        app.kill(container)
        admin = LogSystem(tmp_path / "streams").admin()
        name = app.plan.streams["by-member"].spec.stream.name
        for number, extent in enumerate(admin.extents(name)):
            admin.trim(SSP(StreamId("log", name), number), extent.upcoming)
        with pytest.raises(FencedError, match="task by-member/0: it would have to read trimmed records"):
            app.start()


def test_an_intermediate_stream_without_its_beginning_is_begun_by_stale_copies_only(
    tmp_path: Path, orders: Orders
) -> None:
    """It looks as if frames were missing; but who trims is the reader, when it has committed what it has read."""
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start("orders", "by-region")
        orders.write()
        app.run(60)  # and no commit
        admin = LogSystem(tmp_path / "streams").admin()
        name = app.plan.streams["by-member"].spec.stream.name
        for number, extent in enumerate(admin.extents(name)):
            admin.trim(SSP(StreamId("log", name), number), extent.upcoming)
        with pytest.raises(FencedError, match=r"task by-member/0: it would have .* its beginning was trimmed"):
            app.start("by-member")
