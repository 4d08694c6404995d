"""Values that fit no column: the error is one that an app's policy can handle."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.rows.pieces import RowsUnreadable
from headrace.rows.text import JsonRows
from headrace.rows.values import UnfitError, column

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


WRAPPED = pytest.mark.parametrize(
    ("of", "wrapped"),
    [
        (lambda dtype: dtype, lambda value: value),
        (pl.List, lambda value: [value]),
        (lambda dtype: pl.Struct({"price": dtype}), lambda value: {"price": value}),
        (lambda dtype: pl.List(pl.Struct({"price": dtype})), lambda value: [{"price": value}, {"price": None}]),
    ],
    ids=["plain", "list", "struct", "list of structs"],
)


@pytest.mark.parametrize("value", NO_PRICES, ids=str)
@pytest.mark.parametrize("dtype", [PRICE, pl.Decimal(38, 0), pl.Int64(), pl.String(), pl.Boolean()], ids=str)
@WRAPPED
def test_a_decimal_that_does_not_fit_is_an_exception_and_prints_nothing(value, dtype, of, wrapped, capfd):
    with pytest.raises(UnfitError, match=r"isn't a number|more than \d+ digits after|a decimal isn't of type"):
        column("p", [wrapped(Decimal(1)) if dtype.is_decimal() else None, wrapped(value)], of(dtype))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (Decimal("1.239"), PRICE),
        (1.239, PRICE),
        ("1.239", PRICE),
        (Decimal("1e8"), PRICE),
        (float("nan"), PRICE),
        (1.5, pl.Int64()),
        (Decimal("1.5"), pl.Int64()),
        (300, pl.Int8()),
    ],
)
@WRAPPED
def test_what_would_lose_digits_is_refused(value, dtype, of, wrapped):
    with pytest.raises(Exception, match=r"."):
        column("p", [wrapped(value)], of(dtype))


@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if not dtype.is_nested()], ids=str)
@pytest.mark.parametrize("others", [[], [None], [1], [0.5], ["x"], [b"x"], [True], [dt.date(2026, 1, 1)]], ids=str)
def test_no_decimal_makes_polars_print_anything(dtype, others, capfd):
    for value in (*NO_PRICES, Decimal("0E-60"), Decimal("1E-39")):
        for values in ([*others, value], [value, *others], [None, *others, None, value]):
            try:
                column("c", values, dtype)
            except Exception:  # it says what is wrong
                continue
    assert capfd.readouterr().err == ""


@WRAPPED
def test_a_decimal_may_become_a_float(of, wrapped):
    assert column("p", [wrapped(Decimal("1.5"))], of(pl.Float64())).to_list() == [wrapped(1.5)]


def test_floats_and_texts_that_have_the_digits_become_decimals():
    assert column("p", [0.1, 2.5, None], PRICE).to_list() == [Decimal("0.10"), Decimal("2.50"), None]
    assert column("p", ["0.1", "1e1"], PRICE).to_list() == [Decimal("0.10"), Decimal("10.00")]


exponents = st.sampled_from([0, -1, -2, -2, -3, -38, -60, 1, 5, 40])
decimals = st.builds(
    lambda sign, digits, exponent: Decimal((sign, tuple(digits), exponent)),
    st.sampled_from([0, 1]),
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    exponents,
)


@given(
    st.lists(st.one_of(st.none(), decimals, st.decimals(places=2, allow_nan=False, allow_infinity=False)), max_size=5),
    st.integers(1, 38),
    st.integers(0, 38),
)
def test_decimals_are_kept_exactly_or_refused_as_python_reckons(values, precision, scale):
    scale = min(scale, precision)

    def fits(value: Decimal | None) -> bool:
        scaled = Fraction(0) if value is None else Fraction(value) * 10**scale
        return scaled.denominator == 1 and abs(scaled) < 10**precision

    dtype = pl.Decimal(precision, scale)
    for of, wrapped in ((dtype, values), (pl.List(dtype), [values, None])):
        if all(map(fits, values)):
            assert column("x", wrapped, of).to_list() == wrapped
        else:
            with pytest.raises(UnfitError):
                column("x", wrapped, of)


def test_writers_name_the_row_and_print_nothing(tmp_path, capfd):
    hr.streams.create_stream("prices", 1, {"price": PRICE, "text": pl.String}, home=tmp_path)
    hr.streams.create_stream("anything", 1, home=tmp_path)
    with hr.streams.StreamWriter("prices", home=tmp_path) as writer:
        for price, text, why in [
            (Decimal("1.239"), "x", "1.239 has more than 2 digits after the point"),
            (Decimal("NaN"), "x", "NaN isn't a number that a column can hold"),
            (Decimal(1), Decimal("sNaN"), "a decimal isn't of type String"),
        ]:
            with pytest.raises(hr.errors.DataError) as raised:
                writer.write([{"price": Decimal("1.5"), "text": "x"}, {"price": price, "text": text}])
            assert "record 1, column " in raised.value.message
            assert why in raised.value.message
    with (
        hr.streams.StreamWriter("anything", home=tmp_path) as writer,
        pytest.raises(hr.errors.DataError, match="Infinity isn't a number that a column can hold"),
    ):
        writer.write([{"a": [{"b": Decimal("Infinity")}]}])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ['"NaN"', '"Infinity"', "1e-60", "1e400", "9" * 50])
def test_a_line_of_json_with_such_a_decimal_is_unreadable(text):
    with pytest.raises(RowsUnreadable, match=r"isn't a number|more than 2 digits after the point"):
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
