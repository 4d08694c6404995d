"""Joins of all rows that forget them after a time: which rows are left doesn't depend on where batches were cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from histories import total

Step = str | tuple[str, Sequence[dict[str, Any]]]
"""How the clock advances, or a batch of an input."""

_RIGHT: Step = ("right", [{"k": 1, "w": 7}])


def _row(v: int, kind: str, k: int = 1) -> dict[str, Any]:
    return {"k": k, "v": v, "change": kind}


def _told(steps: Sequence[Step], how: str) -> list[tuple[Any, ...]]:
    """What the results add up to after the last step."""
    app = hr.App("forgets")
    left = app.input("left", {"k": pl.Int64, "v": pl.Int64, "change": pl.String}, key="k").as_changes()
    right = app.input("right", {"k": pl.Int64, "w": pl.Int64}, key="k")
    left.join(right, on="k", how=how, ttl="10s", id="j").send_to(app.output("out"))
    with app.test() as t:
        for step in steps:
            if isinstance(step, str):
                t.advance(step)
            else:
                t.feed(step[0], list(step[1]))
        t.end()
        return total(t.read("out"))


@pytest.mark.parametrize("passed", ["30s", "6s"], ids=["it was forgotten", "it was there"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_row_that_is_deleted_and_comes_again_in_one_batch_is_kept_anew(passed, cut):
    again = [_row(1, "delete"), _row(1, "insert")]
    batches: list[Step] = [("left", [change]) for change in again] if cut else [("left", again)]
    assert _told([("left", [_row(1, "insert")]), passed, *batches, "6s", _RIGHT], "inner") == [(1, 1, 7)]


@st.composite
def _steps(draw: st.DrawFn) -> list[Step]:
    """Rows of the left side come and go, so that none is there twice; those of the right side come."""
    there: set[int] = set()
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            steps.append(draw(st.sampled_from(["4s", "11s"])))
        if draw(st.integers(0, 3)) == 0:
            steps.append(("right", [{"k": draw(st.integers(1, 2)), "w": len(steps)}]))
            continue
        batch = []
        for v in draw(st.lists(st.integers(1, 3), min_size=1, max_size=5)):
            batch.append(_row(v, "delete" if v in there else "insert", k=v % 2 + 1))
            there ^= {v}
        steps.append(("left", batch))
    return steps


@settings(deadline=None, max_examples=examples(25))
@given(steps=_steps(), how=st.sampled_from(["inner", "left", "full", "semi", "anti"]))
def test_what_is_told_does_not_depend_on_where_batches_were_cut(steps, how):
    apart: list[Step] = []
    for step in steps:
        apart += [step] if isinstance(step, str) else [(step[0], [row]) for row in step[1]]
    assert _told(steps, how) == _told(apart, how)
