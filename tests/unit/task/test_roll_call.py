"""Which tasks a turn visits, and when the tasks of a container rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, orders_app

from headrace.task.container import Container
from headrace.task.scope import Pause


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def turns(container: Container) -> dict[str, int]:
    return {str(host.name): host.turns for host in container.hosts}


def rested(app: DrivenApp, container: Container) -> None:
    for _ in range(40):
        app.run(INTERVAL_MS)
        if all(host.rest.on for host in container.hosts):
            return
    raise AssertionError("the tasks don't rest")


@dataclass(frozen=True)
class Resting:
    """An app whose tasks rest, with nothing left to do."""

    app: DrivenApp
    container: Container

    def visits(self) -> dict[str, int]:
        """Do one turn, and return how often it visited each task, without those that it didn't."""
        before = turns(self.container)
        self.container.turn()
        return {name: number - before[name] for name, number in turns(self.container).items() if number > before[name]}


@pytest.fixture
def resting(tmp_path: Path, orders: Orders) -> Iterator[Resting]:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        rested(app, container)
        while container.turn() == 0.0:
            pass
        yield Resting(app, container)


def test_an_app_without_messages_rests_and_commits_no_more(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        orders.write(10)
        rested(app, container)
        before = [host.machine.version for host in container.hosts]
        visited = sum(turns(container).values())
        app.run(20 * INTERVAL_MS)
        assert [host.machine.version for host in container.hosts] == before
        # Twice a second every task looks at its files, whatever happens.
        assert sum(turns(container).values()) - visited <= 100 * len(container.hosts)


def test_one_message_ends_the_rest_of_all(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        rested(app, container)
        before = [host.machine.version for host in container.hosts]
        orders.write(1)
        app.run(3 * INTERVAL_MS)
        assert all(host.machine.version > version for host, version in zip(container.hosts, before, strict=True))
        rested(app, container)


def test_tasks_of_a_part_of_an_app_do_not_rest(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        containers = [app.start(stage.name) for stage in app.plan.stages]
        app.run(10 * INTERVAL_MS)
        before = [host.machine.version for one in containers for host in one.hosts]
        app.run(5 * INTERVAL_MS)
        assert all(
            host.machine.version > version
            for host, version in zip([host for one in containers for host in one.hosts], before, strict=True)
        )


def test_a_turn_visits_the_tasks_for_which_something_has_come_and_no_other(resting: Resting, orders: Orders) -> None:
    orders.write(1)
    visited = [name.split("/")[0] for name in resting.visits()]
    assert visited in (["orders"], ["orders", "by-member"]), "one task of a stage"


def test_a_message_goes_through_all_tasks_of_a_container_in_one_turn(resting: Resting, orders: Orders) -> None:
    orders.write(40)
    visits = resting.visits()
    taken = sum(host.metrics.rows_to["seen"] for host in resting.container.hosts)
    assert 30 <= taken <= 40, "the second stage has what the first one sent in the same turn"
    assert set(visits.values()) == {1}, "each task once"


def test_who_rings_has_everyone_visited(resting: Resting) -> None:
    resting.container.wakeup.ring()
    assert resting.visits().keys() == turns(resting.container).keys()


@pytest.mark.parametrize("ms", [-3_600_000, 40])
def test_a_clock_that_is_set_has_everyone_visited(resting: Resting, ms: int) -> None:
    """Each task has said after how long something is due, and that isn't true any more."""
    assert resting.visits() == {}
    resting.app.clock.jump(ms)
    assert resting.visits().keys() == turns(resting.container).keys()


def test_a_drain_commits_in_every_stage_well_before_its_time_is_up(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        orders.write(10)
        app.run(INTERVAL_MS)
        labels = {host: host.machine.label for host in container.hosts}
        for pause in container.__dict__["_loop"].draining():
            if pause is Pause.REST:
                app.clock.advance(2)
        assert all(host.has_committed(label) for host, label in labels.items())
