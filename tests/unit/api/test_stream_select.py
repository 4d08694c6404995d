"""select, with_columns, drop, rename: columns by expressions, row by row."""

from collections.abc import Callable

import polars as pl
import polars.selectors as cs
import pytest

import headrace as hr


def test_select_keeps_and_computes(views: hr.Stream) -> None:
    after = views.select("url", seconds=pl.col("ms") / 1000, source=pl.lit("web"))
    assert after.schema == hr.Schema.of({"url": pl.String, "seconds": pl.Float64, "source": pl.String})


def test_a_keyword_takes_a_column_name_or_a_value_as_polars_does(views: hr.Stream) -> None:
    after = views.select(page="url", one=1)
    assert after.schema == hr.Schema.of({"page": pl.String, "one": pl.Int32})


def test_with_columns_keeps_the_others(views: hr.Stream) -> None:
    assert list(views.with_columns(slow=pl.col("ms") > 9).schema.columns) == [
        "member",
        "url",
        "ms",
        "ts",
        "slow",
    ]


def test_drop_and_rename_are_projections(views: hr.Stream) -> None:
    assert list(views.drop("ms", "url").schema.columns) == ["member", "ts"]
    assert list(views.rename({"url": "page"}).schema.columns) == ["member", "page", "ms", "ts"]


def test_selectors_work(views: hr.Stream) -> None:
    assert list(views.select(cs.numeric()).schema.columns) == ["ms", "ts"]
    assert views.select(cs.numeric()).event_time == views.event_time


ACROSS_ROWS = [
    pl.col("ms").sum(),
    pl.col("ms") > pl.col("ms").mean(),
    pl.when(pl.col("ms").max() > 1).then(pl.col("ms")),
    pl.col("ms").shift(1),
    pl.col("ms").cum_sum(),
    pl.col("ms").sum().over("url"),
    pl.col("ms").sort(),
    pl.col("ms").unique(),
    pl.col("ms").filter(pl.col("ms") > 1),
    pl.int_range(pl.len()),
    pl.col("ms").forward_fill(),
    cs.numeric().sum(),
    pl.struct("url", "ms").struct.field("url", "ms").shift(1),
]


@pytest.mark.parametrize("expr", ACROSS_ROWS, ids=str)
def test_what_looks_at_other_rows_is_refused(views: hr.Stream, expr: pl.Expr) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="reads more than one row"):
        views.with_columns(expr)


ROW_WISE = [
    pl.when(pl.col("ms") > 1).then(1).otherwise(2),
    pl.col("ms").is_in([1, 2]),
    pl.col("url").str.split("/").list.eval(pl.element().str.len_bytes().max()),
    pl.col("url").str.split("/").list.len(),
    pl.struct("url", "ms").struct.field("ms"),
    pl.col("ms").replace_strict({1: 2}, default=0),
    pl.format("{}-{}", "url", "ms"),
    pl.col("ms").map_elements(hash, return_dtype=pl.Int64),
]


@pytest.mark.parametrize("expr", ROW_WISE, ids=lambda expr: str(expr)[:40])
def test_what_looks_at_one_row_is_not(views: hr.Stream, expr: pl.Expr) -> None:
    assert "new" in views.with_columns(expr.alias("new")).schema.columns


WRONG: list[tuple[Callable[[hr.Stream], object], str]] = [
    (lambda s: s.select(), "the result has no columns"),
    (lambda s: s.with_columns(), "needs at least one column"),
    (lambda s: s.select(pl.lit(1)), "only constants are selected"),
    (lambda s: s.select("url", "url"), "the result would have two columns called 'url'"),
    (lambda s: s.rename({"url": "ms"}), "the result would have two columns called 'ms'"),
    (lambda s: s.select(pl.col("url") + 1), "arithmetic on dtypes str"),
    (lambda s: s.select(3), "an argument must be a column name or a Polars expression, not int 3"),  # type: ignore[arg-type]
    (lambda s: s.with_columns(x=object()), "x= must be an expression or a plain value"),
    (lambda s: s.drop("nope"), "drop: there is no column 'nope'"),
    (lambda s: s.drop("ms", "ms"), "drop names 'ms' twice"),
    (lambda s: s.drop("member", "url", "ms", "ts"), "the result has no columns"),
    (lambda s: s.rename({"nope": "x"}), "rename: there is no column 'nope'"),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_errors(views: hr.Stream, step: Callable[[hr.Stream], object], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        step(views)
    assert "\n  at " in caught.value.message
    assert "test_stream_select.py" in caught.value.message


def test_fields_of_a_struct_become_columns(views: hr.Stream) -> None:
    pair = views.select(pair=pl.struct("url", "ms"))
    assert dict(pair.select(pl.col("pair").struct.unnest()).schema.columns) == {"url": pl.String, "ms": pl.Int64}
    assert list(pair.select(pl.col("pair").struct.field("url", "ms")).schema.columns) == ["url", "ms"]
    named = pair.with_columns(pl.col("pair").struct.unnest().name.prefix("its_"))
    assert list(named.schema.columns) == ["pair", "its_url", "its_ms"]
