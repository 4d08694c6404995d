"""Tasks are assigned the same way each time, and evenly: per stage and in total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.ids import TaskName
from headrace.runners.coordination.assignment import assign


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
