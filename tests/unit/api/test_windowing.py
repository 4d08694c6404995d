"""window: keys, bounds and aggregates, and the types of the results."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.spec import EventTime
from headrace.api.operators.window import Window

COUNT = {"n": hr.count()}


def test_the_result_has_keys_bounds_and_aggregates(app: hr.App, views: hr.Stream) -> None:
    counts = views.window(hr.tumbling("10s"), key="member", id="per-10s").agg(n=hr.count())
    counts.send_to(app.output("counts"))
    operator = app.graph().nodes["per-10s"].operator
    assert isinstance(operator, Window)
    assert (operator.shape, operator.keys) == (hr.windows.Tumbling(10_000), ("member",))
    assert (operator.event_time, operator.input) == (EventTime("ts"), views.schema)
    assert [name for name, _ in operator.aggregates] == ["n"]
    columns = {"member": pl.String, "window_start": pl.Int64, "window_end": pl.Int64, "n": pl.Int64}
    assert counts.schema == hr.Schema.of(columns)
    assert counts.event_time == EventTime("window_end", -1)


def test_windows_follow_windows(views: hr.Stream) -> None:
    per_second = views.window(hr.tumbling("1s"), key="member", id="per-second").agg(**COUNT)
    per_minute = per_second.window(hr.tumbling("1m"), key="member", id="per-minute").agg(n=hr.sum("n"))
    assert per_minute.schema == per_second.schema


@pytest.mark.parametrize("time", [pl.Datetime("us"), pl.Datetime("ms", "Europe/Berlin")])
def test_bounds_are_of_the_type_of_the_event_time(app: hr.App, time: pl.Datetime) -> None:
    stream = app.input("timed", {"k": pl.String, "at": time}, event_time="at")
    columns = stream.window(hr.tumbling("1h"), key=["k"], id="w").agg(**COUNT).schema.columns
    assert (columns["window_start"], columns["window_end"]) == (time, time)


SUMS: list[tuple[Any, Any]] = [
    (pl.Int8, pl.Int64),
    (pl.UInt32, pl.Int64),
    (pl.UInt64, pl.UInt64),
    (pl.Boolean, pl.Int64),
    (pl.Float32, pl.Float64),
    (pl.Decimal(10, 2), pl.Decimal(38, 2)),
    (pl.Duration("ms"), pl.Duration("ms")),
]


@pytest.mark.parametrize(("value", "result"), SUMS)
def test_sums_are_wide_enough(app: hr.App, value: Any, result: Any) -> None:
    assert aggregated(app, value, hr.sum("v")) == result


@pytest.mark.parametrize("value", [pl.Int8, pl.String, pl.Float32, pl.Date, pl.Datetime("ns")])
def test_min_and_max_keep_the_type(app: hr.App, value: Any) -> None:
    assert aggregated(app, value, hr.min("v")) == value
    assert aggregated(hr.App("other"), value, hr.max(pl.col("v"))) == value


def test_mean_is_a_float_and_collect_a_list(app: hr.App) -> None:
    assert aggregated(app, pl.Int8, hr.mean("v")) == pl.Float64
    assert aggregated(hr.App("b"), pl.String, hr.aggregates.implode("v")) == pl.List(pl.String)
    assert aggregated(hr.App("c"), pl.String, hr.count("v")) == pl.Int64


def aggregated(app: hr.App, dtype: Any, aggregate: hr.aggregates.Aggregate) -> pl.DataType:
    stream = app.input("values", {"k": pl.String, "v": dtype, "ts": pl.Int64}, event_time="ts")
    window = stream.window(hr.tumbling("1s"), key="k", id="w").agg(result=aggregate)
    return window.schema.columns["result"]


WRONG: list[tuple[Callable[[hr.Stream], object], str]] = [
    (lambda s: s.window(hr.tumbling("1s"), id="w").agg(**COUNT), "nothing says by which key 'input-views'"),
    (lambda s: s.window(hr.tumbling("1s"), key="nope", id="w").agg(**COUNT), "there is no column 'nope'"),
    (lambda s: s.window(hr.tumbling("1s"), key="member", id="w").agg(), "it names no aggregate"),
    (lambda s: s.window("1s", key="member", id="w").agg(**COUNT), "the shape of a window can't be str '1s'"),  # type: ignore[arg-type]
    (lambda s: window(s, member=hr.count()), "the aggregate 'member' has the name of a key"),
    (lambda s: window(s, window_end=hr.count()), "'window_end' has the name of a window's own column"),
    (lambda s: window(s, n=pl.col("ms")), "agg: 'n': col(.*) is not an aggregation that windows support"),
    (lambda s: window(s, n=3), "agg: 'n' must be an aggregate, not int 3"),
    (lambda s: window(s, n=hr.sum("url")), "agg: 'n': sum doesn't work for String"),
    (lambda s: window(s, n=hr.mean("url")), "agg: 'n': mean doesn't work for String"),
    (lambda s: window(s, n=hr.sum("nope")), "agg: 'n': there is no column 'nope'"),
    (lambda s: window(s, n=hr.sum(pl.col("ms").sum())), "reads more than one row"),
    (lambda s: hr.sum(3), "sum: its argument must be a column name"),  # type: ignore[arg-type]
    (lambda s: hr.tumbling("0s"), "size: 0 is below 1 ms"),
    (lambda s: hr.tumbling("-1s"), "size: '-1s' is below 1 ms"),
    (lambda s: hr.tumbling("ten"), "size: 'ten' isn't a duration"),
]


def window(stream: hr.Stream, **agg: Any) -> hr.Stream:
    return stream.window(hr.tumbling("1s"), key="member", id="w").agg(**agg)


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_errors(views: hr.Stream, step: Callable[[hr.Stream], object], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(views)
    assert "\n  at " in caught.value.message
    assert "test_windowing.py" in caught.value.message


def test_names_of_headraces_own_may_not_enter(views: hr.Stream) -> None:
    ours = views.with_columns(__start=pl.col("ts"))
    with pytest.raises(hr.errors.DeclarationError, match="'__start' can't enter a window"):
        ours.window(hr.tumbling("1s"), key="member", id="w").agg(**COUNT)
