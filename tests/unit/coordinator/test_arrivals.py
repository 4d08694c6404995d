"""Containers get tasks whose state is where they are; the first ones wait for the others, but not for long."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from conversation import Process, new_ledger, task

from headrace.coordinator import messages as m
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.messages import Ask, Listening
from headrace.coordinator.server import Coordinator, HostArrivals
from headrace.core.clock import WallClock
from headrace.core.errors import UnavailableError
from headrace.core.ids import TaskName
from headrace.life.metadata import MemoryMetadata, Places
from headrace.run.coordinated import PlaceKeeping, whereabouts
from headrace.task.standby_status import StandbyStatus

A0, A1, B0 = TaskName("a", 0), TaskName("a", 1), TaskName("b", 0)
LONG_MS = 60_000.0


def arrive(container: int, host: str, incarnation: str = "") -> m.Register:
    return msgspec.structs.replace(Process(container, incarnation or f"u{container}").register(), host=host)


def tasks_of(assignment: m.Assignment) -> list[str]:
    return sorted(grant.name for grant in assignment.tasks)


def test_all_learn_where_all_are() -> None:
    arrivals = HostArrivals(3, WallClock(), LONG_MS)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(arrivals.wait, range(3), ["ann", "bob", "ann"]))
    assert found == [{0: "ann", 1: "bob", 2: "ann"}] * 3
    assert arrivals.wait(1, "elsewhere") == found[0], "one that comes again waits no more"


def test_who_is_late_isnt_waited_for() -> None:
    arrivals = HostArrivals(2, WallClock(), 30)
    assert arrivals.wait(0, "ann") == {0: "ann"}
    assert arrivals.wait(1, "bob") == {0: "ann", 1: "bob"}


def test_closing_wakes_all() -> None:
    arrivals = HostArrivals(2, WallClock(), LONG_MS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arrivals.wait, 0, "ann")
        arrivals.close()
        assert waiting.result(30) in ({0: "ann"}, {})


def test_containers_get_the_tasks_whose_state_is_with_them() -> None:
    held = {A0: "ann", B0: "ann", A1: "bob"}
    with Coordinator(new_ledger(), MemoryMetadata(), held=held) as coordinator, ThreadPoolExecutor(2) as pool:
        bob, ann = pool.map(coordinator.register, [arrive(0, "bob"), arrive(1, "ann")])
        assert (tasks_of(bob), tasks_of(ann)) == (["a/1"], ["a/0", "b/0"])
        status = coordinator.status()
        assert [container.tasks for container in status.containers] == [["a/1"], ["a/0", "b/0"]]
        again = coordinator.register(msgspec.structs.replace(arrive(0, "ann", "another"), attempt=1))
        assert tasks_of(again) == ["a/1"], "one that comes back from another host keeps its seat"


@pytest.mark.parametrize("held", [{}, {A0: "ann", A1: "ann"}])
def test_nobody_waits_where_one_host_has_all(held: dict[TaskName, str]) -> None:
    with Coordinator(new_ledger(), MemoryMetadata(), held=held) as coordinator:
        began = time.monotonic()
        assert tasks_of(coordinator.register(arrive(0, "ann"))) == ["a/0", "b/0"]
        assert time.monotonic() - began < 2


def test_a_question_that_was_asked_before_goes_to_where_the_task_is_now() -> None:
    held = {A0: "ann", B0: "ann", A1: "bob"}
    with Coordinator(new_ledger(), MemoryMetadata(), held=held) as coordinator, ThreadPoolExecutor(3) as pool:
        client = CoordinatorClient(coordinator.url, coordinator.token, timeout_s=30)
        asked = pool.submit(client.ask, Ask(table="t", tasks=["a/1"], keys=[b"k"], rows=1, limit_ms=20_000))
        while not coordinator.status().queries.waiting:
            threading.Event().wait(0.01)
        list(pool.map(coordinator.register, [arrive(0, "bob"), arrive(1, "ann")]))
        question = coordinator.listen(Listening(container=0, incarnation="u0")).question
        assert question is not None
        assert question.tasks == ["a/1"]
        coordinator.hang_up()
        assert asked.result(30).answers[0].error is not None
        client.close()


# -- the book ------------------------------------------------------------------------------------------


def begun(coordinator: Coordinator, *states: str) -> m.AppStatus:
    coordinator.register(arrive(0, "ann"))
    statuses = [task(name, state) for name, state in zip(("a/0", "b/0"), states, strict=True)]
    coordinator.heartbeat(Process(0, "u0").heartbeat(1, *statuses))
    return coordinator.status()


@pytest.mark.parametrize(
    ("states", "found"),
    [
        (("running", "blocked"), {A0: "ann", B0: "ann"}),
        (("running", "restoring"), {}),
        (("starting", "running"), {}),
        (("finished", "running"), {A0: "ann", B0: "ann"}),
    ],
)
def test_a_container_is_somewhere_when_all_its_tasks_have_begun(
    states: tuple[str, str], found: dict[TaskName, str]
) -> None:
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        assert whereabouts(begun(coordinator, *states)) == found


class Failing(Places):
    """A book whose first calls fail, as many as the test says."""

    def __init__(self, failures: int) -> None:
        super().__init__(MemoryMetadata(), "app")
        self.failures, self.writes = failures, 0

    def note(self, hosts: object, standbys: object = None) -> None:
        self.writes += 1
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the database is away")
        super().note(hosts, standbys)  # type: ignore[arg-type]


def test_places_are_noted_once_and_again_after_a_failure() -> None:
    places = Failing(1)
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        begun(coordinator, "running", "running")
        keeping = PlaceKeeping(places, coordinator.status)
        for _ in range(3):
            keeping.step()
    assert places.writes == 2
    assert places.read() == {A0: "ann", B0: "ann"}


def test_hosts_of_standbys_that_are_current_are_noted() -> None:
    places = Failing(0)
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        coordinator.register(arrive(0, "ann"))
        standbys = [
            StandbyStatus(task="a/1", state="current", behind=0),
            StandbyStatus(task="b/0", state="reading", behind=7),
        ]
        heartbeat = msgspec.structs.replace(Process(0, "u0").heartbeat(1), standbys=standbys)
        coordinator.heartbeat(heartbeat)
        keeping = PlaceKeeping(places, coordinator.status)
        for _ in range(2):
            keeping.step()
    assert places.writes == 1
    assert places.read_standbys() == {A1: ["ann"]}


@pytest.mark.parametrize(("copies", "gets"), [(["cid", "dan"], ["a/0", "b/0"]), (["cid"], ["a/1"]), ([], ["a/1"])])
def test_where_the_host_of_before_is_gone_that_of_a_standby_counts(copies: list[str], gets: list[str]) -> None:
    held = {A0: "ann", A1: "ben"}
    with (
        Coordinator(new_ledger(), MemoryMetadata(), held=held, copied={A0: copies}) as coordinator,
        ThreadPoolExecutor(2) as pool,
    ):
        _, dan = pool.map(coordinator.register, [arrive(0, "bob"), arrive(1, "dan")])
        assert tasks_of(dan) == gets


def test_the_thread_looks_a_last_time_when_it_ends() -> None:
    places = Failing(0)
    with Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        keeping = PlaceKeeping(places, coordinator.status)
        keeping.start()
        begun(coordinator, "running", "running")
        keeping.close()
    assert places.read() == {A0: "ann", B0: "ann"}
