"""Polars' aggregations in a window: those that are accepted give what Polars gives, and others are refused."""

import datetime as dt
from typing import Any

import polars as pl
import pytest

import headrace as hr

SCHEMA = {"k": pl.String, "x": pl.Int64, "f": pl.Float64, "b": pl.Boolean, "s": pl.String, "ts": pl.Datetime("ms")}
START = dt.datetime(2026, 1, 1)
ROWS = [
    {"k": k, "x": x, "f": f, "b": b, "s": s, "ts": START + dt.timedelta(milliseconds=n)}
    for n, (k, x, f, b, s) in enumerate(
        [
            ("a", 3, 1.5, True, "q"),
            ("a", None, float("nan"), None, "p"),
            ("b", None, None, None, None),
            ("a", 3, 0.5, False, None),
            ("a", -7, None, True, "q"),
            ("c", 5, 2.0, True, "z"),
            ("a", 11, 9.0, True, "a"),
            ("b", None, None, False, None),
        ]
    )
]
X = pl.col("x")

ACCEPTED = [
    pl.len(),
    X.sum(),
    X.min(),
    X.max(),
    X.mean(),
    X.count(),
    X.len(),
    X.null_count(),
    X.implode(),
    X.implode(maintain_order=False),
    pl.count("x"),
    pl.sum("x"),
    pl.col("b").sum(),
    pl.col("b").mean(),
    pl.col("f").min(),
    pl.col("f").max(),
    pl.col("s").min(),
    (X * 2 + 1).sum(),
    pl.struct(X.alias("renamed"), "s").implode(),
    X.drop_nulls().sum(),
    X.drop_nulls().n_unique(),
    X.drop_nulls().approx_n_unique(),
    X.filter(pl.col("b")).sum(),
    X.filter(X > 3).mean(),
    X.filter(pl.col("b")).count(),
    X.filter(pl.col("b")).drop_nulls().n_unique(),
    X.drop_nulls().top_k(2).alias("largest"),
    X.map_batches(lambda values: values + 1, return_dtype=pl.Int64).sum(),
]


@pytest.mark.parametrize("expr", ACCEPTED, ids=str)
def test_what_is_accepted_gives_what_polars_gives(expr: pl.Expr) -> None:
    app = hr.App("stats")
    rows = app.input("rows", SCHEMA, event_time="ts")
    windows = rows.window(hr.tumbling("1s"), key="k", id="w")
    windows.agg(expr.alias("result")).select("k", "result").send_to(app.output("out"))
    with app.test() as t:
        for row in ROWS:  # batches of one, so that partial results are merged
            t.feed("rows", [row])
        t.end()
        found = dict(t.read("out").iter_rows())
    wanted = dict(pl.DataFrame(ROWS, SCHEMA).group_by("k").agg(expr.alias("result")).iter_rows())
    if "top_k" in str(expr):
        assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in wanted.items()}
    else:
        assert found == wanted


REFUSED: list[tuple[Any, str, str]] = [
    (X, "is not an aggregation that windows support", "hr.aggregates has"),
    (X.sum() / pl.len(), "is not an aggregation", ".agg(...).with_columns(...)"),
    (X.sum().cast(pl.Int32), "is not an aggregation", "with_columns"),
    (X.median(), "is not an aggregation", "pl.len()"),
    (X.std(), "is not an aggregation", "pl.len()"),
    (X.nan_min(), "is not an aggregation", "pl.len()"),
    (X.bottom_k(2), "is not an aggregation", "pl.len()"),
    (X.top_k_by("f", 2), "is not an aggregation", "top_k"),
    (X.first(ignore_nulls=True), "is not an aggregation", "pl.len()"),
    (X.first(), "depends on the order of rows", 'write hr.aggregates.first(col("x"))'),
    (X.last(), "depends on the order of rows", 'write hr.aggregates.last(col("x"))'),
    (X.n_unique(), "counts null as a value", "drop_nulls() before .n_unique"),
    (X.approx_n_unique(), "counts null as a value", "hr.aggregates.approx_n_unique(...)"),
    (X.top_k(3), "counts null as a value", "drop_nulls() before .top_k"),
    (X.drop_nulls().top_k(X.max()), "top_k takes a number", "write top_k(3)"),
    (X.shift(1).sum(), "reads more than one row", "agg("),
    (pl.col("x", "f").sum(), "computes 2 columns, not one", ""),
    (pl.all().sum(), "computes 6 columns, not one", ""),
    (pl.col("nope").sum(), "there is no column 'nope'", "the columns are k, x"),
    ("sum", "must be an aggregate, not str sum", ".agg(views=pl.len()"),
]


@pytest.mark.parametrize(("expr", "message", "hint"), REFUSED)
def test_what_is_refused_says_why(expr: Any, message: str, hint: str) -> None:
    rows = hr.App("stats").input("rows", SCHEMA, event_time="ts")
    with pytest.raises(hr.errors.DeclarationError) as caught:
        rows.window(hr.tumbling("1s"), key="k", id="w").agg(result=expr)
    assert message in caught.value.message
    assert "'result'" in caught.value.message
    assert hint in (caught.value.hint or "")
    assert "test_polars_aggregates.py" in caught.value.message


def windows() -> Any:
    return hr.App("stats").input("rows", SCHEMA, event_time="ts").window(hr.tumbling("1s"), key="k", id="w")


def test_results_are_called_as_polars_calls_them() -> None:
    names = list(windows().agg(pl.len(), X.sum(), X.max().alias("largest"), mean=X.mean()).schema.columns)
    assert names[3:] == ["len", "x", "largest", "mean"]


@pytest.mark.parametrize(
    ("aggregates", "named", "message"),
    [
        ([X.sum(), X.max()], {}, "two aggregates are named 'x'"),
        ([X.sum()], {"x": X.max()}, "two aggregates are named 'x'"),
        ([hr.count()], {}, "the count has no name"),
        ([pl.all().sum()], {}, "doesn't give exactly one named column"),
        ([], {}, "names no aggregate"),
    ],
)
def test_names_are_needed_and_unique(aggregates: list[Any], named: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message):
        windows().agg(*aggregates, **named)


def test_counts_and_sums_are_wide() -> None:
    rows = hr.App("wide").input("rows", {"k": pl.String, "n": pl.Int8, "ts": pl.Int64}, event_time="ts")
    stats = rows.window(hr.tumbling("1s"), key="k", id="w").agg(pl.len(), pl.col("n").sum())
    assert [stats.schema.columns[name] for name in ("len", "n")] == [pl.Int64, pl.Int64]


def test_a_window_is_aggregated_once() -> None:
    grouped = windows()
    assert repr(grouped).startswith("WindowedStream('w': tumbling")
    grouped.agg(pl.len())
    with pytest.raises(hr.errors.DeclarationError, match="the window 'w' has its aggregates already"):
        grouped.agg(pl.len())


def test_a_window_without_aggregates_is_not_forgotten(app: hr.App, views: hr.Stream) -> None:
    views.send_to(app.output("out"))
    views.window(hr.tumbling("1s"), key="member", id="w")
    with pytest.raises(hr.errors.DeclarationError, match=r"the window 'w' has no aggregates\n  at .*test_polars_agg"):
        app.graph()
