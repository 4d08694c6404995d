"""chosen_apart: the rows that a loop over single rows would choose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.task.operators.steps import chosen_apart


def naive(rows: list[tuple[int, int]], distance: int) -> list[bool]:
    chosen: list[tuple[int, int]] = []
    mask = []
    for group, time in rows:
        mask.append(all(g != group or abs(t - time) >= distance for g, t in chosen))
        if mask[-1]:
            chosen.append((group, time))
    return mask


def found(rows: list[tuple[int, int]], distance: int) -> list[bool]:
    groups, times = (np.array([row[n] for row in rows], np.int64) for n in (0, 1))
    mask: list[bool] = chosen_apart(groups, times, distance).tolist()
    return mask


@settings(max_examples=examples(300), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 60)), max_size=60),
    distance=st.integers(1, 25),
    rising=st.booleans(),
)
def test_it_chooses_what_one_after_the_other_would(rows: list[tuple[int, int]], distance: int, rising: bool) -> None:
    if rising:
        rows = [(group, time) for (group, _), time in zip(rows, sorted(time for _, time in rows), strict=True)]
    assert found(rows, distance) == naive(rows, distance)


@pytest.mark.parametrize("order", [1, -1])
def test_a_long_chain_of_one_group(order: int) -> None:
    rows = [(7, time) for time in range(5_000)[::order]]
    assert np.flatnonzero(found(rows, 100)).tolist() == list(range(0, 5_000, 100))


def test_times_that_are_very_far_apart() -> None:
    rows = [(0, -(1 << 61)), (1, 5), (1, 6), (0, 1 << 61)]
    assert found(rows, 10) == [True, True, False, True]
