"""select, with_columns, drop and rename: columns computed by expressions."""

import polars as pl
import pytest

import headrace as hr

ROWS = [{"member": "a", "ms": 5, "ts": 1}, {"member": None, "ms": None, "ts": 2}]


def test_select_keeps_what_it_names(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.select("member", seconds=pl.col("ms") / 1000).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").rows() == [("a", 0.005), (None, None)]


def test_with_columns_keeps_the_others(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.with_columns(kind="member", one=1).drop("ms").rename({"ts": "at"}).send_to(out)
    with app.test() as t:
        t.feed("views", ROWS)
        assert t.read("out").rows(named=True) == [
            {"member": "a", "at": 1, "kind": "a", "one": 1},
            {"member": None, "at": 2, "kind": None, "one": 1},
        ]


def test_an_expression_that_fails_says_where(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.with_columns(number=pl.col("member").cast(pl.Int64)).send_to(out)
    with (
        app.test(2) as t,
        pytest.raises(hr.errors.UserFunctionError, match="an expression of operator 'with_columns-1'") as info,
    ):
        t.feed("views", ROWS, partition=1)
    assert "views[1], offset 0" in str(info.value)
