"""Startpoints as a task's host applies them: a real log, a real changelog, and hosts that die at bad moments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from headrace.core.errors import DeploymentError, UnavailableError
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.systems.log.system import LogAdmin
from headrace.systems.startpoints import (
    EndOffset,
    Order,
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from headrace.task.host.task_host import Detours
from unit.task.driven_app import INTERVAL_MS, DrivenApp, Orders, orders_app

READER = TaskName("orders", 0)
OLDEST = StartpointOldest(id="s1", created_ms=1)


@pytest.fixture
def orders(tmp_path: Path):
    found = Orders(tmp_path)
    yield found
    found.close()


@pytest.fixture
def app(tmp_path: Path, orders: Orders):
    with DrivenApp(orders_app(tmp_path)) as found:
        yield found


def give(app: DrivenApp, startpoint: Startpoint, partition: int = 0) -> Order:
    order = Order(stream="log.orders", partition=partition, startpoint=startpoint)
    app.orders.setdefault(TaskName("orders", partition), []).append(order)
    return order


def seen(app: DrivenApp) -> Counter[int]:
    """How often each order is in the output, committed."""
    return Counter(app.rows("seen")["order"].to_list())


def settle(app: DrivenApp) -> None:
    app.run(5 * INTERVAL_MS)


def read_twice(app: DrivenApp) -> set[int]:
    return {order for order, times in seen(app).items() if times == 2}


def first_run(app: DrivenApp, orders: Orders) -> set[int]:
    orders.write()
    container = app.start()
    settle(app)
    app.kill(container)
    once = seen(app)
    assert once
    assert set(once.values()) == {1}
    return set(once)


def test_a_startpoint_comes_before_the_committed_position(app, orders):
    before = first_run(app, orders)
    order = give(app, OLDEST)
    app.start()
    settle(app)
    again = read_twice(app)
    assert again
    assert again < before  # those of the other partition are not read again
    assert [o.state for o in app.outcomes] == ["applied", "released"]
    assert app.outcomes[0].order == order


def test_it_is_applied_once_though_the_coordinator_never_hears_of_the_commit(app, orders):
    first_run(app, orders)
    give(app, OLDEST)
    app.report = lambda task, outcomes: app.outcomes.extend(outcomes)  # nothing is deleted
    container = app.start()
    settle(app)
    app.kill(container)
    again = read_twice(app)
    app.start()
    settle(app)
    assert read_twice(app) == again
    assert max(seen(app).values()) == 2
    assert [o.state for o in app.outcomes] == ["applied", "released", "released"]


def test_until_a_commit_counts_each_start_applies_it(app, orders):
    first_run(app, orders)
    give(app, OLDEST)
    app.kill(app.start())  # it has applied it, and read nothing
    assert [o.state for o in app.outcomes] == ["applied"]
    app.start()
    settle(app)
    assert [o.state for o in app.outcomes] == ["applied", "applied", "released"]
    assert max(seen(app).values()) == 2


def ends(home: Path) -> int:
    return LogAdmin(home / "streams").extents("orders")[0].upcoming


@pytest.mark.parametrize("kills", [0, 1, 3])
def test_a_range_is_read_again_and_then_what_follows_the_commit(app, orders, tmp_path, kills):
    first = first_run(app, orders)
    middle = ends(tmp_path)
    orders.write()
    container = app.start()
    settle(app)
    app.kill(container)
    second = set(seen(app))
    orders.write(400)
    give(app, StartpointOldest(id="s1", created_ms=1, until=EndOffset(offset=middle)))
    container = app.start()
    for number in range(kills):
        app.run(20 * (number + 1))
        app.kill(container)
        container = app.start()
    settle(app)
    again = read_twice(app)
    assert again
    assert again < first < second < set(seen(app))
    assert max(seen(app).values()) == 2
    assert len({(o.offset, o.until) for o in app.outcomes if o.state == "applied"}) == 1


def test_without_a_commit_it_goes_on_where_the_input_begins(app, orders, tmp_path):
    orders.write()
    middle = ends(tmp_path)
    orders.write()
    give(app, StartpointOldest(id="s1", created_ms=1, until=EndOffset(offset=middle)))
    app.start()
    settle(app)
    assert max(seen(app).values()) == 2
    assert 0 < len(read_twice(app)) < 40


def test_at_the_end_of_a_range_a_task_has_not_caught_up(app, orders, tmp_path, monkeypatch):
    orders.write()
    give(app, StartpointOldest(id="s1", created_ms=1, until=EndOffset(offset=ends(tmp_path))))
    with monkeypatch.context() as stuck:
        stuck.setattr(Detours, "look", lambda *_: None)
        app.start()
        settle(app)
        assert app.host("orders/0").catching_up.version is None
        assert app.host("orders/1").catching_up.version is not None
        assert max(seen(app).values()) == 1
    orders.write()  # it wakes the tasks, which rest
    settle(app)
    assert app.host("orders/0").catching_up.version is not None
    assert len(read_twice(app)) > 0


def test_a_sealed_input_ends_only_behind_the_range(app, orders, tmp_path):
    before = first_run(app, orders)
    orders.write()
    orders.end()
    give(app, StartpointOldest(id="s1", created_ms=1, until=EndOffset(offset=ends(tmp_path))))
    app.start()
    app.finish()
    assert before < set(seen(app))
    assert max(seen(app).values()) == 2


def test_upcoming_skips_what_is_there(app, orders):
    before = first_run(app, orders)
    orders.write()
    for partition in range(2):
        give(app, StartpointUpcoming(id=f"s{partition}", created_ms=1), partition)
    app.start()
    settle(app)
    assert set(seen(app)) == before
    orders.write()
    settle(app)
    assert set(seen(app)) > before
    assert min(set(seen(app)) - before) >= 80


def test_a_time_is_where_the_log_has_it(app, orders):
    first_run(app, orders)
    give(app, StartpointTimestamp(id="t", created_ms=1, time_ms=0))
    app.start()
    settle(app)
    assert read_twice(app)


def test_one_that_cannot_be_applied_stops_the_task_and_stays(app, orders):
    before = first_run(app, orders)
    order = give(app, StartpointSpecific(id="s1", created_ms=1, offset=10**12))
    with pytest.raises(DeploymentError, match=r"task orders/0 can't apply startpoint s1 to partition 0 of log\.orders"):
        app.start()
    assert [(o.state, o.order) for o in app.outcomes] == [("failed", order)]
    assert app.outcomes[0].reason
    assert app.orders[READER] == [order]
    app.orders[READER].clear()
    for container in list(app.living):
        app.kill(container)
    app.start()
    settle(app)
    assert set(seen(app)) == before


def test_a_system_that_does_not_answer_is_no_reason_to_give_a_startpoint_up(app, orders, monkeypatch):
    """The container dies of it as of any other trouble that passes, and tries again."""
    before = first_run(app, orders)
    order = give(app, OLDEST)
    with monkeypatch.context() as away, pytest.raises(UnavailableError, match="the disk server is away"):
        away.setattr(LogAdmin, "extents", raises(UnavailableError("the disk server is away")))
        app.start()
    assert app.outcomes == []
    assert app.orders[READER] == [order]
    for container in list(app.living):
        app.kill(container)
    app.start()
    settle(app)
    assert read_twice(app) < before
    assert [o.state for o in app.outcomes] == ["applied", "released"]


def test_what_was_trimmed_since_it_was_applied_cannot_be_applied_again(app, orders):
    first_run(app, orders)
    give(app, OLDEST)
    app.kill(app.start())
    (applied,) = app.outcomes
    app.orders[READER] = [msgspec.structs.replace(applied.order, offset=applied.offset)]
    ssp = SSP(StreamId("log", "orders"), 0)
    admin = LogAdmin(app.home / "streams")
    admin.trim(ssp, admin.extents("orders")[0].upcoming)
    with pytest.raises(DeploymentError, match=r"can't apply startpoint s1 to partition 0 of log\.orders"):
        app.start()
    assert [o.state for o in app.outcomes] == ["applied", "failed"]


def raises(error: Exception):
    def call(*_: object) -> None:
        raise error

    return call


def test_a_newer_one_replaces_one_that_was_applied(app, orders):
    first_run(app, orders)
    give(app, OLDEST)
    container = app.start()
    settle(app)
    app.kill(container)
    give(app, StartpointOldest(id="s2", created_ms=2))
    app.start()
    settle(app)
    assert set(seen(app).values()) == {1, 3}


def test_the_tasks_concerned_start_over_in_place_and_nobody_rolls_back_with_them(app, orders):
    orders.write()
    container = app.start()
    settle(app)
    generations = {str(host.name): host.generation for host in app.hosts}
    give(app, OLDEST)
    container.restart({TaskName("orders", 0): generations["orders/0"]})
    settle(app)
    container.restart({TaskName("orders", 0): generations["orders/0"]})  # the same order again
    settle(app)
    assert read_twice(app)
    after = {str(host.name): host.generation for host in app.hosts}
    assert after == generations | {"orders/0": generations["orders/0"] + 1}
    assert sum(host.machine.rollbacks for host in app.hosts) == 0
