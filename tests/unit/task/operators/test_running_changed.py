"""A running aggregate that gets a further result: what it takes back is what was told, which had none."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from histories import total

KINDS: dict[str, tuple[Any, Any]] = {
    "count": (hr.count("value"), 2),
    "sum": (hr.sum("value"), 7),
    "floats": (hr.sum(pl.col("value") / 2), 3.5),
    "mean": (hr.mean("value"), 3.5),
    "max": (hr.max("value"), 4),
    "first": (hr.aggregates.first("value"), 3),
    "top": (hr.aggregates.top_k("value", 1), [4]),
    "unique": (hr.aggregates.n_unique("value"), 2),
    "about": (hr.aggregates.approx_n_unique("value"), 2),
    "all": (hr.aggregates.implode("value"), [3, 4]),
    "reduce": (hr.aggregates.reduce(lambda a, b: a + b, "value"), 7),
}
FOR_CHANGES = [kind for kind in KINDS if kind not in ("about", "all", "reduce")]


def _declared(*, changing: bool, **more: Any) -> hr.App:
    app = hr.App("running")
    columns: dict[str, Any] = {"key": pl.String, "value": pl.Int64, "change": pl.String}
    rows = app.input("rows", columns, key="key")
    rows = rows.as_changes() if changing else rows
    rows.group_by("key", id="g").agg(n=hr.count(), **more).send_to(app.output("out"))
    return app


@pytest.mark.parametrize(
    ("kind", "changing"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in FOR_CHANGES)]
)
def test_a_new_aggregate_was_null_in_what_was_told(kind, changing):
    further, wanted = KINDS[kind]
    with _declared(changing=changing).test() as t:
        t.feed("rows", [{"key": key, "value": 9, "change": "insert"} for key in "ab"])
        t.change(_declared(changing=changing, x=further))
        t.feed("rows", [{"key": "a", "value": 3, "change": "insert"}])
        t.feed("rows", [{"key": "a", "value": 4, "change": "insert"}])
        t.end()
        assert total(t.read("out")) == [("a", 3, wanted), ("b", 1, None)]
