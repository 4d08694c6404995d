"""Tasks are assigned the same way each time, and evenly: per stage and in total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.assignment import assign, at_home, placed
from headrace.core.errors import UsageError
from headrace.core.ids import TaskName


def stages_of(*counts: int) -> dict[str, list[TaskName]]:
    return {f"s{i}": [TaskName(f"s{i}", n) for n in range(count)] for i, count in enumerate(counts)}


@pytest.mark.parametrize(
    ("counts", "containers", "expected"),
    [
        ((2,), 2, ["s0/0", "s0/1"]),
        ((4,), 2, ["s0/0 s0/2", "s0/1 s0/3"]),
        ((1, 1), 2, ["s0/0", "s1/0"]),
        ((2, 2), 2, ["s0/0 s1/1", "s0/1 s1/0"]),
        ((3, 3), 2, ["s0/0 s0/2 s1/1", "s0/1 s1/0 s1/2"]),
        ((1,), 3, ["s0/0", "", ""]),
        ((2, 3), 1, ["s0/0 s0/1 s1/0 s1/1 s1/2"]),
    ],
)
def test_deals_out(counts, containers, expected):
    seats = assign(stages_of(*counts), containers)
    assert [" ".join(map(str, seat)) for seat in seats] == expected


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 9))
def test_every_task_once_and_evenly(counts, containers):
    stages = stages_of(*counts)
    seats = assign(stages, containers)
    assert sorted(task for seat in seats for task in seat) == sorted(t for tasks in stages.values() for t in tasks)
    sizes = [len(seat) for seat in seats]
    assert max(sizes) - min(sizes) <= 1
    for stage in stages:
        sizes = [sum(task.stage == stage for task in seat) for seat in seats]
        assert max(sizes) - min(sizes) <= 1


def test_refuses_no_containers():
    with pytest.raises(UsageError, match="0 containers"):
        assign(stages_of(1), 0)


# -- where state lies ----------------------------------------------------------------------------------


def names(*seats: str) -> tuple[tuple[TaskName, ...], ...]:
    return tuple(tuple(TaskName.parse(name) for name in seat.split()) for seat in seats)


def where(**tasks: str) -> dict[TaskName, str]:
    """The host of each task: ``a="s0/0 s0/1"``."""
    return {TaskName.parse(name): host for host, listed in tasks.items() for name in listed.split()}


@pytest.mark.parametrize(
    ("counts", "hosts", "held", "expected"),
    [
        ((2,), {0: "a", 1: "b"}, {}, ["s0/0", "s0/1"]),
        ((2,), {0: "a", 1: "b"}, where(a="s0/0", b="s0/1"), ["s0/0", "s0/1"]),
        ((2,), {0: "a", 1: "b"}, where(b="s0/0", a="s0/1"), ["s0/1", "s0/0"]),
        ((3,), {0: "b", 1: "a"}, where(a="s0/0 s0/2", b="s0/1"), ["s0/1", "s0/0 s0/2"]),
        ((4,), {0: "a", 1: "b"}, where(a="s0/0 s0/1", b="s0/2 s0/3"), ["s0/0 s0/1", "s0/2 s0/3"]),
        ((4,), {0: "a", 1: "b"}, where(a="s0/0 s0/1 s0/2 s0/3"), ["s0/0 s0/2", "s0/1 s0/3"]),
        ((2, 2), {0: "a", 1: "b"}, where(b="s0/0 s1/1", a="s0/1 s1/0"), ["s0/1 s1/0", "s0/0 s1/1"]),
        ((2,), {1: "a"}, where(a="s0/0"), ["s0/1", "s0/0"]),
        ((2,), {0: "c", 1: "d"}, where(a="s0/0", b="s0/1"), ["s0/0", "s0/1"]),
    ],
)
def test_tasks_go_where_their_state_is(counts, hosts, held, expected):
    seats = placed(assign(stages_of(*counts), len(expected)), hosts, held)
    assert [" ".join(map(str, sorted(seat))) for seat in seats] == expected


@st.composite
def places(draw):
    counts = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    containers = draw(st.integers(1, 6))
    host = st.sampled_from("abcd")
    hosts = draw(st.dictionaries(st.integers(0, containers - 1), host))
    tasks = [task for stage in stages_of(*counts).values() for task in stage]
    return counts, containers, hosts, draw(st.dictionaries(st.sampled_from(tasks), host))


@given(places())
def test_placed_is_as_balanced_and_never_worse(place):
    counts, containers, hosts, held = place
    before = assign(stages_of(*counts), containers)
    seats = placed(before, hosts, held)
    assert sorted(task for seat in seats for task in seat) == sorted(task for seat in before for task in seat)
    for stage in (None, *stages_of(*counts)):
        sizes, sizes_before = (
            sorted(sum(stage in (None, task.stage) for task in seat) for seat in one) for one in (seats, before)
        )
        assert sizes == sizes_before
    assert at_home(seats, hosts, held) >= at_home(before, hosts, held)
    assert placed(before, dict(reversed(hosts.items())), dict(reversed(held.items()))) == seats


@given(places())
def test_a_run_after_another_one_finds_all_state_if_its_hosts_are_the_same(place):
    counts, containers, _, _ = place
    seats = assign(stages_of(*counts), containers)
    held = {task: f"host-{number}" for number, seat in enumerate(seats) for task in seat}
    for turned in range(containers):
        hosts = {(number + turned) % containers: f"host-{number}" for number in range(containers)}
        assert at_home(placed(seats, hosts, held), hosts, held) == sum(counts)
