"""Histories of rows that are inserted, updated and deleted, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from hypothesis import strategies as st

import headrace as hr
from headrace.rows.changes import AFTER, BEFORE, CHANGE, DELETE, INSERT, added_up

Row = Mapping[str, Any]


@st.composite
def histories(draw: st.DrawFn, rows: st.SearchStrategy[dict[str, Any]], longest: int = 24) -> list[dict[str, Any]]:
    """Changes with ``_change``: each takes away a row that is there, or adds one; some rows are there several times."""
    alive: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, longest))):
        what = draw(st.sampled_from([INSERT, INSERT, DELETE, AFTER])) if alive else INSERT
        if what != INSERT:
            old = alive.pop(draw(st.integers(0, len(alive) - 1)))
            found.append(old | {CHANGE: DELETE if what == DELETE else BEFORE})
        if what != DELETE:
            new = draw(rows)
            alive.append(new)
            found.append(new | {CHANGE: what})
    return found


@st.composite
def batches(draw: st.DrawFn, rows: Sequence[Any]) -> list[list[Any]]:
    """The rows, cut anywhere."""
    found, rest = [], list(rows)
    while rest:
        size = draw(st.integers(1, len(rest)))
        found.append(rest[:size])
        rest = rest[size:]
    return found


def heard(app: hr.App, output: str, fed: Sequence[tuple[str, Sequence[Row]]]) -> pl.DataFrame:
    """All changes in ``output`` after ``fed``: batches of inputs, one after the other, and the end of the inputs."""
    with app.test() as t:
        for name, rows in fed:
            t.feed(name, list(rows))
        t.end()
        return t.read(output)


def total(changes: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The rows that changes add up to; raises if they take away one that isn't there."""
    return added_up(changes).rows()
