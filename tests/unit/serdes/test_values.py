"""Values that fit no column: the error is one that an app's policy can handle."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest

import headrace as hr
from headrace.serdes.json_rows import JsonRows
from headrace.serdes.row_pieces import RowsUnreadable
from headrace.serdes.values import column

PRICE = pl.Decimal(10, 2)
NO_PRICES = [Decimal(text) for text in ("NaN", "sNaN", "-Infinity", "1e-60", "1e40", "1e400", "-" + "9" * 39)]


class Uncountable:
    def __iter__(self) -> Any:
        raise KeyError("its iteration fails")

    def __len__(self) -> int:
        return 3


ODD = [
    *(True, -1, 2**63, 2**64, -(2**127), 10**400, float("nan"), float("inf"), 1 + 2j, Fraction(1, 3)),
    *(
        "x",
        "\ud800",
        "\0",
        b"\xff",
        bytearray(b"x"),
        memoryview(b"x"),
        object(),
        int,
        ...,
        Uncountable(),
    ),
    *(dt.date.min, dt.datetime.max, dt.datetime.min.replace(tzinfo=dt.UTC), dt.timedelta.max, dt.time.max),
    *([None], ["x"], [[1]], (1, 2), {"a": 1}, {"a": {"b": 1}}, {1: 2}, {1}, range(3), iter([1]), lambda: 1),
    *(np.uint64(2**64 - 1), np.datetime64("NaT"), np.array([[1, 2], [3, 4]]), np.array([None, 1], dtype=object)),
    *(pl.Series(["a"]), pl.DataFrame({"a": [1]}), pl.lit(1), *NO_PRICES),
]
TYPES = [
    *(
        pl.Int8(),
        pl.Int64(),
        pl.UInt64(),
        pl.Int128(),
        pl.Float32(),
        pl.Float64(),
        pl.Boolean(),
        pl.String(),
        pl.Binary(),
    ),
    *(pl.Date(), pl.Time(), pl.Datetime("ms"), pl.Datetime("ns", "UTC"), pl.Duration("us"), PRICE, pl.Decimal(38, 37)),
    *(pl.Enum(["A", "x"]), pl.Categorical(), pl.List(pl.Int64), pl.List(pl.String), pl.List(pl.List(PRICE))),
    *(pl.Array(pl.Int64, 2), pl.Struct({"a": pl.Int64}), pl.List(pl.Struct({"a": pl.Date}))),
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_no_value_of_python_raises_more_than_an_exception(dtype):
    fitting = 0
    for value in ODD:
        try:
            fitting += column("c", [None, value], dtype).len() == 2
        except Exception:  # a panic would end the test
            continue
    assert fitting < len(ODD)


def test_values_that_fit_become_a_column():
    assert column("p", [Decimal("1.25"), None], PRICE).to_list() == [Decimal("1.25"), None]


@pytest.mark.parametrize("value", NO_PRICES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "wrapped"),
    [
        (PRICE, lambda value: value),
        (pl.List(PRICE), lambda value: [value]),
        (pl.Struct({"price": PRICE}), lambda value: {"price": value}),
    ],
    ids=["plain", "list", "struct"],
)
def test_a_decimal_that_does_not_fit_is_an_exception(value, dtype, wrapped):
    with pytest.raises(Exception, match=r"."):  # a panic of Polars isn't one
        column("p", [wrapped(value)], dtype)


@pytest.mark.parametrize("text", ['"NaN"', '"Infinity"', "1e-60", "1e400", "9" * 50])
def test_a_line_of_json_with_such_a_decimal_is_unreadable(text):
    with pytest.raises(RowsUnreadable, match="doesn't fit"):
        JsonRows({"price": PRICE}).parse(b'{"price":' + text.encode() + b"}")


def priced(row: dict[str, Any]) -> dict[str, Any]:
    return {"price": Decimal(row["text"])}


def priced_twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [priced(row), {"price": Decimal(1)}]


@pytest.mark.parametrize(("method", "results"), [("map", 2), ("flat_map", 4)])
def test_a_function_that_returns_one_is_a_matter_of_its_policy(method, results):
    app = hr.App("prices")
    texts = app.input("texts", {"text": pl.String})
    function = priced if method == "map" else priced_twice
    getattr(texts, method)(function, {"price": PRICE}, on_error="skip").send_to(app.output("prices"))
    with app.test() as t:
        t.feed("texts", [{"text": str(value)} for value in (Decimal("1.25"), *NO_PRICES, Decimal("2.5"))])
        assert t.read("prices").height == results
        assert t.counter("failed_skipped") == len(NO_PRICES)
