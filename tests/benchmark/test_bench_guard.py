"""The guard fails if a ratio fell, and only on a machine that can tell."""

from __future__ import annotations

from typing import Any

import pytest

from bench.guard import Compared, Verdict, compared, of_this_processor, overall
from bench.report import machine

QUIET, BUSY = [0.1, 0.1, 0.1], [1.2, 1.5, 1.3]


@pytest.mark.parametrize(
    ("turns", "others", "verdict"),
    [
        ([4.0, 4.1, 4.2], QUIET, Verdict.FINE),
        ([3.5, 3.5, 3.5], QUIET, Verdict.FINE),
        ([3.3, 3.3, 3.4], QUIET, Verdict.FELL),
        ([3.3, 3.3, 3.4], BUSY, Verdict.UNKNOWN),
        ([2.0, 3.3, 6.0], QUIET, Verdict.UNKNOWN),
        ([2.0, 2.0], QUIET, Verdict.UNKNOWN),
        ([4.0, 4.1, 4.2], BUSY, Verdict.FINE),
        ([9.0, 3.0, 6.0], BUSY, Verdict.FINE),
    ],
)
def test_a_verdict(turns: list[float], others: list[float], verdict: Verdict) -> None:
    one = Compared("b", turns, others, 4.0)
    assert one.verdict(cores=2) == verdict
    assert (verdict is Verdict.UNKNOWN) <= bool(one.noise(cores=2))


def test_a_fall_that_is_certain_counts_most() -> None:
    assert overall([Verdict.FINE, Verdict.UNKNOWN, Verdict.FELL]) == Verdict.FELL
    assert overall([Verdict.UNKNOWN, Verdict.FINE]) == Verdict.UNKNOWN
    assert overall([Verdict.FINE]) == Verdict.FINE


def results(ours_s: float) -> dict[str, Any]:
    times = {"runs_wall_s": [10.0, 10.0, 10.0], "runs_cpu_s": [20.0, 20.0, 20.0]}
    ours = {name: [ours_s] * 3 for name in times}
    return {"b": {"structured-streaming": times, "headrace": ours | {"others": QUIET}}}


def test_ratios_are_those_of_turns_that_both_results_have() -> None:
    wall, processor = compared(results(2.0), results(2.5))
    assert (wall.recorded, list(wall.turns), wall.verdict(2)) == (5, [4, 4, 4], Verdict.FELL)
    assert (processor.name, processor.recorded) == ("b: headrace, processor time", 10)
    assert compared(results(2.0), {}) == []


def test_a_ratio_from_another_processor_judges_nothing() -> None:
    """The ratio of the windowed count was twice as high on one as on another."""
    then, now = (results(1.0) | {"machine": {"processor": name}} for name in ("old", "new"))
    slower = results(2.0) | {"machine": {"processor": "new"}}
    assert all(one.verdict() is Verdict.UNKNOWN for one in compared(then, slower))
    assert all("old" in one.noise() for one in compared(then, slower))
    assert all(one.verdict() is Verdict.FELL for one in compared(now, slower))


def test_the_results_of_this_processor_are_compared_and_others_only_without_any() -> None:
    here = machine()["processor"]
    b, running = ({"machine": {"processor": here}, part: part} for part in ("b", "running"))
    other = {"machine": {"processor": "none such"}, "b": "other", "guarantee": "other"}
    assert of_this_processor([other, b, running]) == b | running
    assert of_this_processor([other]) == other
