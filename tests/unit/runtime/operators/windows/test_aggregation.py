"""Aggregates by type: the results for empty, null and narrow values."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import headrace as hr


def aggregated(dtype: Any, values: list[Any], aggregate: hr.aggregates.Aggregate) -> Any:
    """One window's aggregate over values that arrive in separate batches, so that partial results are merged."""
    app = hr.App("one-window")
    values_in = app.input("values", {"key": pl.Int64, "v": dtype, "ts": pl.Int64}, event_time="ts")
    values_in.window(hr.tumbling("1s"), key="key", id="w").agg(result=aggregate).send_to(app.output("out"))
    with app.test() as t:
        for value in values:
            t.feed("values", [{"key": 1, "v": value, "ts": 5}])
        t.end()
        return t.read("out")["result"].to_list()[0]


@pytest.mark.parametrize(
    ("dtype", "values", "aggregate", "result"),
    [
        (pl.Int8, [100, 100, 100], hr.sum("v"), 300),
        (pl.UInt8, [200, None, 200], hr.sum("v"), 400),
        (pl.Boolean, [True, False, True], hr.sum("v"), 2),
        (pl.Float32, [0.5, 0.25], hr.sum("v"), 0.75),
        (pl.Decimal(4, 2), [Decimal("99.99"), Decimal("99.99")], hr.sum("v"), Decimal("199.98")),
        (pl.Duration("ms"), [timedelta(hours=1), timedelta(hours=2)], hr.sum("v"), timedelta(hours=3)),
        (pl.Int64, [None, None], hr.sum("v"), 0),
        (pl.Int64, [None, None], hr.count("v"), 0),
        (pl.Int64, [None, None], hr.count(), 2),
        (pl.Int64, [None, None], hr.aggregates.min("v"), None),
        (pl.Int64, [None, None], hr.aggregates.mean("v"), None),
        (pl.Int64, [None, None], hr.aggregates.implode("v"), [None, None]),
        (pl.Int64, [1, 2, 4], hr.aggregates.mean("v"), 7 / 3),
        (pl.Boolean, [True, False, True, True], hr.aggregates.mean("v"), 0.75),
        (pl.String, ["b", "a", None], hr.aggregates.min("v"), "a"),
        (pl.String, ["b", "a", None], hr.aggregates.max("v"), "b"),
        (pl.String, ["b", "a", "b"], hr.aggregates.implode("v"), ["b", "a", "b"]),
        (pl.List(pl.Int64), [[1], [], None, [2, 3]], hr.aggregates.implode("v"), [[1], [], None, [2, 3]]),
        (pl.Struct({"x": pl.Int64}), [{"x": 1}, {"x": None}], hr.aggregates.implode("v"), [{"x": 1}, {"x": None}]),
        (pl.String, ["a", None, "bc"], hr.sum(pl.col("v").str.len_bytes()), 3),
        (pl.Float64, [1.0, float("inf"), None, 3.0], hr.aggregates.top_k("v", 1), [float("inf")]),
        (pl.String, ["b", "c", None], hr.aggregates.top_k("v", 1), ["c"]),
        (pl.String, [None, None], hr.aggregates.top_k("v", 1), []),
    ],
)
def test_aggregate(dtype: Any, values: list[Any], aggregate: hr.aggregates.Aggregate, result: Any) -> None:
    assert aggregated(dtype, values, aggregate) == result


@pytest.mark.parametrize("most", [1, 2])
def test_what_is_no_number_counts_as_the_largest(most: int) -> None:
    found = aggregated(pl.Float64, [1.0, float("nan"), 3.0], hr.aggregates.top_k("v", most))
    assert [str(value) for value in found] == ["nan", "3.0"][:most]


def test_an_aggregate_that_fails_says_where() -> None:
    with pytest.raises(hr.errors.UserFunctionError, match=r"an aggregate of operator 'w' .*values_in.window\(") as info:
        aggregated(pl.String, ["x"], hr.sum(pl.col("v").cast(pl.Int64)))
    assert "values[0], offset 0" in str(info.value)
