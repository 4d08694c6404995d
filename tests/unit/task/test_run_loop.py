"""The run loop: when a container may sleep, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, orders_app

from headrace.task.host.task_host import TaskHost
from headrace.task.scope import TICK_INTERVAL_MS, Pause, Steps, run


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def test_a_checkpoint_is_made_when_its_time_comes_though_the_clock_was_shown_just_before(
    tmp_path: Path, orders: Orders
) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        container._loop.whole = False  # tasks of an app in several containers commit although nothing happens
        app.run(2 * INTERVAL_MS)
        source = app.host("orders/0")
        assert app.clock.monotonic_ms() % INTERVAL_MS == 0
        app.clock.advance(INTERVAL_MS - TICK_INTERVAL_MS // 2)
        container.turn()
        version = source.machine.version
        app.clock.advance(TICK_INTERVAL_MS // 2)
        container.turn()
        assert source.machine.version > version


def test_what_other_tasks_take_is_taken_off_the_sleep(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        container._loop.whole = False  # tasks of an app in several containers commit although nothing happens
        app.run(2 * INTERVAL_MS)
        asleep = 0.0
        while asleep < 50 or container.turn() != asleep:
            app.clock.advance(1)
            asleep = container.turn()
        on_time, slow = TaskHost.on_time, app.hosts[-1]

        def slowly(host: TaskHost, now_ms: float) -> Steps[float]:
            due = yield from on_time(host, now_ms)
            if host is slow:
                app.clock.advance(7)
            return due

        monkeypatch.setattr(TaskHost, "on_time", slowly)
        container._loop.everyone()  # also the slow one, for which nothing is due
        assert container.turn() == asleep - 7


def test_what_pauses_is_done_at_once_when_nobody_steps_it() -> None:
    done: list[str] = []

    def steps() -> Steps[int]:
        done.append("first")
        yield Pause.PROGRESS
        done.append("second")
        return 5

    assert run(steps()) == 5
    assert done == ["first", "second"]
