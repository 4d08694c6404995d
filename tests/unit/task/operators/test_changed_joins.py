"""Messages that wait in a join when their stream gains a column have null in it; a column that is gone is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError

OLD = {"key": pl.String, "at": pl.Int64, "was": pl.Int64}
NEW = {"note": pl.List(pl.String), "key": pl.String, "at": pl.Int64}
OTHER = {"key": pl.String, "ts": pl.Int64, "price": pl.Int64}

Join = Callable[[hr.App, hr.Stream, hr.Stream], hr.Stream]


def interval(how: str) -> Join:
    return lambda _, left, right: left.join(right, on="key", within="1s", how=how, id="j")


def latest(_: hr.App, left: hr.Stream, right: hr.Stream) -> hr.Stream:
    return left.join_latest(right, on="key", ttl="1h", how="left", id="j")


def as_of(app: hr.App, left: hr.Stream, right: hr.Stream) -> hr.Stream:
    prices = app.table("prices", "key", OTHER, versions="1h")
    right.send_to(prices)
    return left.join(prices, on="key", how="left", id="j")


def joined(join: Join, columns: dict[str, Any]) -> hr.App:
    app = hr.App("joining")
    left = app.input("left", columns, event_time="at", lateness="5ms")
    right = app.input("right", OTHER, event_time="ts", lateness="5ms")
    note = pl.col("note").cast(pl.List(pl.String)).list.join("") if "note" in columns else pl.lit(None, pl.String)
    join(app, left, right).select("key", note.alias("note"), "price").send_to(app.output("out"))
    return app


@pytest.mark.parametrize("join", [interval("inner"), interval("left"), interval("full"), latest, as_of])
def test_a_join_gains_and_loses_columns(join: Join) -> None:
    with joined(join, OLD).test() as t:
        t.feed("left", [{"key": "a", "at": 10, "was": 1}])
        before = t.read("out").height
        t.change(joined(join, NEW))
        t.feed("left", [{"note": ["new"], "key": "b", "at": 11}])
        t.feed("right", [{"key": "a", "ts": 9, "price": 5}, {"key": "b", "ts": 10, "price": 6}])
        t.end()
        found = t.read("out").slice(before)
    with_price = found.filter(pl.col("price").is_not_null()).sort("key")
    assert with_price.rows() == [("a", None, 5), ("b", "new", 6)]


def test_another_type_is_refused_before_anything_runs() -> None:
    with joined(interval("left"), NEW).test() as t:
        t.feed("left", [{"note": ["new"], "key": "b", "at": 11}])
        other = {**NEW, "note": pl.List(pl.Int64)}
        with pytest.raises(PlanError, match=r"step 'j': 'left note' was List\(String\), and is now List\(Int64\)"):
            t.change(joined(interval("left"), other))
