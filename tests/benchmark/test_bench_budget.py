"""A run of the benchmark ends in time, and says what it left out."""

from __future__ import annotations

import threading

import pytest

from bench.budget import Budget, Deadline, interrupted_after
from bench.measure import CutShortError


class Clock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


def test_each_part_has_a_share_of_what_is_left() -> None:
    clock = Clock()
    budget = Budget(100, {"a": 1, "b": 3, "c": 1}, clock)
    assert budget.share_s("a") == 20
    clock.time_s = 60
    assert (budget.share_s("b"), budget.share_s("c")) == (30, 40)
    clock.time_s = 110
    assert budget.share_s("c") == 0


def steps(deadline: Deadline, clock: Clock, each_s: float, number: int, reserve: int = 0) -> list[int]:
    found = []
    for item in deadline.each(range(number), reserve=reserve):
        found.append(item)
        clock.time_s += each_s
    return found


@pytest.mark.parametrize(
    ("each_s", "reserve", "done", "cut"),
    [
        (1, 0, [0, 1, 2, 3], []),
        (4, 0, [0, 1], ["no time for 2, 3"]),
        (3, 1, [0, 1], ["no time for 2, 3"]),
        (50, 0, [0], ["no time for 1, 2, 3"]),
    ],
)
def test_what_has_no_time_is_left_out_but_never_the_first(
    each_s: float, reserve: int, done: list[int], cut: list[str]
) -> None:
    clock = Clock()
    deadline = Deadline(10, clock)
    assert steps(deadline, clock, each_s, 4, reserve) == done
    assert deadline.cut == cut


def test_the_last_one_may_take_what_is_left() -> None:
    clock = Clock()
    deadline = Deadline(10, clock)
    assert steps(deadline, clock, 5, 2) == [0, 1]
    assert not deadline.cut


def test_what_takes_too_long_is_interrupted() -> None:
    with pytest.raises(CutShortError, match="interrupted after 0 s"), interrupted_after(0.01):
        threading.Event().wait(30)
    with interrupted_after(60):
        pass
