"""Which container keeps standbys of which tasks."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.assignment import Seats, assign, deal_standbys
from headrace.coordinator.ledger import GATHERING_MS, GONE_MS, Ledger, StandbyBook
from headrace.coordinator.messages import Finished, Heartbeat, Register
from headrace.core.ids import TaskName

A0, A1, A2, A3, A4, A5 = (TaskName("a", n) for n in range(6))


@pytest.mark.parametrize(
    ("seats", "hosts", "kept", "wanted", "dealt"),
    [
        pytest.param(((A0,), (A1,)), {0: "x", 1: "y"}, {}, 1, {0: (A1,), 1: (A0,)}, id="each keeps the other's"),
        pytest.param(((A0,), (A1,)), {0: "x", 1: "x"}, {}, 1, {0: (), 1: ()}, id="one host"),
        pytest.param(((A0,), (A1,)), {0: "x"}, {}, 1, {0: (A1,)}, id="a container whose host isn't known"),
        pytest.param(
            ((A0,), (A1,), (A2,)),
            {0: "x", 1: "y", 2: "z"},
            {},
            1,
            {0: (A2,), 1: (A0,), 2: (A1,)},
            id="in a circle",
        ),
        pytest.param(
            ((A0,), (A1,), (A2,)),
            {0: "x", 1: "y", 2: "z"},
            {},
            2,
            {0: (A1, A2), 1: (A0, A2), 2: (A0, A1)},
            id="everywhere else",
        ),
        pytest.param(
            ((A0, A1), (A2,), (A3,)),
            {0: "x", 1: "y", 2: "y"},
            {},
            1,
            {0: (A2, A3), 1: (A0,), 2: (A1,)},
            id="all tasks of a container on one host, spread over its containers",
        ),
        pytest.param(
            ((A0,), (A1,), (A2,)),
            {0: "x", 1: "y", 2: "z"},
            {0: (A1,), 2: (A0,)},
            1,
            {0: (A1,), 1: (A2,), 2: (A0,)},
            id="what is kept stays",
        ),
        pytest.param(
            ((A0,), (A1,), (A2,)),
            {0: "z", 1: "y", 2: "z"},
            {2: (A0,), 1: (A2,)},
            1,
            {0: (A1,), 1: (A0, A2), 2: ()},
            id="not where the task itself has come to",
        ),
        pytest.param(
            ((A0,), (A1,), ()), {0: "x", 1: "y", 2: "z"}, {2: (A1,)}, 0, {0: (), 1: (), 2: ()}, id="none wanted"
        ),
    ],
)
def test_where_they_are_kept(
    seats: Seats,
    hosts: dict[int, str],
    kept: dict[int, tuple[TaskName, ...]],
    wanted: int,
    dealt: dict[int, tuple[TaskName, ...]],
) -> None:
    assert deal_standbys(seats, hosts, kept, wanted) == dealt


def test_state_that_lies_somewhere_is_used() -> None:
    seats, hosts = ((A0,), (A1,), (A2,)), {0: "x", 1: "y", 2: "z"}
    assert deal_standbys(seats, hosts, {}, 1, {A0: {"z", "x"}, A2: {"gone"}}) == {0: (A1,), 1: (A2,), 2: (A0,)}


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Seats, dict[int, str], int]:
    containers = draw(st.integers(1, 6))
    tasks = [TaskName("a", n) for n in range(draw(st.integers(1, 14)))]
    seats = assign({"a": tasks}, containers)
    hosts = {n: draw(st.sampled_from("vwxyz")) for n in range(containers) if draw(st.integers(0, 5))}
    return seats, hosts, draw(st.integers(0, 3))


def _hosts_of(dealt: dict[int, tuple[TaskName, ...]], hosts: dict[int, str]) -> dict[TaskName, list[str]]:
    found: dict[TaskName, list[str]] = {}
    for container, tasks in dealt.items():
        for task in tasks:
            found.setdefault(task, []).append(hosts[container])
    return found


@given(scenes())
def test_each_task_has_as_many_as_hosts_allow_and_none_on_its_own(scene: tuple[Seats, dict[int, str], int]) -> None:
    seats, hosts, wanted = scene
    dealt = deal_standbys(seats, hosts, {}, wanted)
    assert dealt.keys() == hosts.keys()
    places = _hosts_of(dealt, hosts)
    for number, seat in enumerate(seats):
        others = set(hosts.values()) - {hosts.get(number)}
        for task in seat:
            found = places.get(task, [])
            assert len(found) == len(set(found)) == min(wanted, len(others))
            assert set(found) <= others
        assert len({tuple(sorted(places.get(task, ()))) for task in seat}) <= 1


@given(scenes(), st.data())
def test_what_is_kept_stays_as_long_as_it_may(scene: tuple[Seats, dict[int, str], int], data: st.DataObject) -> None:
    """Some containers move to other hosts, or end."""
    seats, hosts, wanted = scene
    dealt = deal_standbys(seats, hosts, {}, wanted)
    moved = data.draw(st.sets(st.sampled_from(range(len(seats)))))
    then = {n: host for n, host in hosts.items() if n not in moved}
    then |= {n: data.draw(st.sampled_from("vwxyz")) for n in moved if data.draw(st.booleans())}
    kept = {n: tasks for n, tasks in dealt.items() if then.get(n) == hosts[n]}
    again = deal_standbys(seats, then, kept, wanted)
    for number, seat in enumerate(seats):
        for container, task in product(then, seat):
            stays = task in kept.get(container, ()) and then[container] != then.get(number)
            assert not stays or task in again[container]
    assert deal_standbys(seats, then, again, wanted) == again


@given(scenes())
def test_hosts_and_their_containers_keep_as_many(scene: tuple[Seats, dict[int, str], int]) -> None:
    seats, hosts, wanted = scene
    dealt = deal_standbys(seats, hosts, {}, wanted)
    largest = max(map(len, seats))
    load = Counter(dict.fromkeys(hosts.values(), 0))
    for container, tasks in dealt.items():
        load[hosts[container]] += len(tasks)
    for host in set(hosts.values()):
        counts = [len(dealt[n]) for n in dealt if hosts[n] == host]
        assert max(counts) - min(counts) <= 1
    # A host may have to keep all of the others', so that only what could move is compared: one seat at a time.
    for number, seat in enumerate(seats):
        places = {hosts[n] for n, tasks in dealt.items() if set(seat) & set(tasks)}
        for host, other in product(places, set(hosts.values()) - places - {hosts.get(number, "")}):
            assert load[host] - load[other] <= largest


class Run:
    """A book and the containers of a run: container n has task n of two stages, of which only the first keeps state."""

    def __init__(self, *hosts: str, wanted: int = 1) -> None:
        stages = {stage: [TaskName(stage, n) for n in range(len(hosts))] for stage in "ab"}
        book = StandbyBook(wanted, ["a"])
        self.ledger = Ledger("app", stages, len(hosts), started_at=0, guarantee="exactly_once", standbys=book)
        self.ledger.seat(tuple((a, b) for a, b in zip(*stages.values(), strict=True)))
        for number, host in enumerate(hosts):
            if host:
                self.register(number, host)

    def register(self, number: int, host: str, now_ms: float = 0.0, attempt: int = 0) -> None:
        self.ledger.register(
            Register(container=number, attempt=attempt, host=host, pid=1, incarnation=f"{number}-{attempt}"), now_ms
        )
        self.ledger.tick(now_ms)

    def beat(self, number: int, now_ms: float, attempt: int = 0) -> None:
        self.ledger.heartbeat(Heartbeat(container=number, incarnation=f"{number}-{attempt}", sent_ms=now_ms), now_ms)
        self.ledger.tick(now_ms)

    @property
    def kept(self) -> list[list[str]]:
        return [self.ledger.orders_for(number).keep for number in range(len(self.ledger.assignments))]

    @property
    def warnings(self) -> list[str]:
        return [note.what for note in self.ledger.take_notes() if "standby" in note.what]


def test_only_stages_with_state_have_any() -> None:
    assert Run("x", "y").kept == [["a/1"], ["a/0"]]


def test_without_any_wanted_there_are_none() -> None:
    run = Run("x", "y", wanted=0)
    assert (run.kept, run.warnings) == ([[], []], [])


def test_nothing_is_dealt_before_all_are_there_or_it_takes_too_long() -> None:
    run = Run("x", "y", "")
    assert run.kept == [[], [], []]
    run.beat(0, GATHERING_MS - 1.0)
    assert run.kept == [[], [], []]
    run.beat(1, float(GATHERING_MS))
    assert run.kept == [["a/1", "a/2"], ["a/0"], []]


def test_who_is_silent_is_expected_back_for_a_while() -> None:
    run = Run("x", "y", "z")
    circle = [["a/2"], ["a/0"], ["a/1"]]
    assert run.kept == circle
    for at in (GONE_MS - 1.0, float(GONE_MS)):
        run.beat(0, at)
        run.beat(2, at)
        assert run.kept == (circle if at < GONE_MS else [["a/2"], [], ["a/0", "a/1"]])


def test_a_container_that_begins_where_its_standbys_are_gets_them_elsewhere() -> None:
    run = Run("x", "y", "z")
    assert run.kept == [["a/2"], ["a/0"], ["a/1"]]
    run.register(0, "y", 1.0, attempt=1)
    assert run.kept == [["a/2"], [], ["a/0", "a/1"]]
    run.register(0, "x", 2.0, attempt=2)  # it is back: what is kept stays
    assert run.kept == [["a/2"], [], ["a/0", "a/1"]]


def test_a_task_that_has_ended_needs_none() -> None:
    run = Run("x", "y")
    run.ledger.finished(Finished(container=0, incarnation="0-0", tasks=["a/0"]), 1.0)
    run.ledger.tick(1.0)
    assert run.kept == [["a/1"], []]


def test_too_few_hosts_are_warned_of_once() -> None:
    run = Run("x", "x")
    assert run.kept == [[], []]
    run.register(1, "x", 1.0, attempt=1)
    assert run.warnings == ["no task has a standby (standby=1): all containers are on one host"]
    assert "2 hosts" in Run("x", "y", wanted=2).warnings[0]
