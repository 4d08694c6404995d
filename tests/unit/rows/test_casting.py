"""Which casts keep values, and which rows are reported when one doesn't."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.rows.casting import CastSafety, cast_column, cast_safety

INTS = [pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64()]
FLOATS = [pl.Float32(), pl.Float64()]


def cast(values: list[Any], found: Any, expected: Any) -> tuple[list[Any], list[int]]:
    series, rows = cast_column(pl.Series("c", values, dtype=found), expected)
    assert series.dtype == expected
    assert series.name == "c"
    return series.to_list(), rows


@given(
    st.lists(
        st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{0,5})?([eE][+-]?[0-9]{1,2})?", fullmatch=True), min_size=1, max_size=20
    ),
    st.integers(0, 5),
)
def test_text_becomes_the_decimal_that_python_reads_or_is_reported(texts: list[str], scale: int) -> None:
    found, wrong = cast_column(pl.Series("c", texts), pl.Decimal(38, scale))
    for row, text in enumerate(texts):
        scaled = Fraction(Decimal(text)) * 10**scale
        if scaled.denominator == 1 and abs(scaled) < 10**38:
            assert (found[row], row in wrong) == (Decimal(text), False)
        else:
            assert row in wrong


@pytest.mark.parametrize(("found", "expected"), list(product(INTS, INTS + FLOATS)), ids=str)
def test_integers_are_called_lossless_exactly_when_their_bounds_survive(
    found: pl.DataType, expected: pl.DataType
) -> None:
    bounds = pl.select(pl.concat_list(found.min(), found.max()).explode()).to_series()  # type: ignore[attr-defined]
    exact = [int(value) for value in bounds.to_list()]
    if expected.is_float():
        # An odd number beyond the mantissa gets lost; the bounds themselves are powers of two.
        survives = abs(max(exact)) <= 2 ** (24 if expected == pl.Float32 else 53)
    else:
        survives = bounds.cast(expected, strict=False).null_count() == 0
    safety = cast_safety(found, expected)
    assert safety is (
        CastSafety.SAME if found == expected else CastSafety.LOSSLESS if survives else CastSafety.BY_VALUE
    )


CASES: list[tuple[Any, Any, list[Any], list[Any], list[int]]] = [
    (pl.Int64, pl.Int8(), [1, 200, None, -128], [1, None, None, -128], [1]),
    (pl.Int64, pl.UInt64(), [1, -1, None], [1, None, None], [1]),
    (pl.Float64, pl.Int64(), [1.0, 1.5, None, float("nan"), 1e300], [1, 1, None, None, None], [1, 3, 4]),
    (pl.Int64, pl.Float64(), [1, 2**53 + 1, None, 2**63 - 1], [1.0, None, None, None], [1, 3]),
    (pl.Int32, pl.Int64(), [1, None], [1, None], []),
    (pl.Float32, pl.Float64(), [0.5, None], [0.5, None], []),
    (pl.Null, pl.String(), [None], [None], []),
    (pl.Null, pl.List(pl.Int64()), [None], [None], []),
    (pl.String, pl.Int64(), ["1", "x", None, "-3", "1.5", ""], [1, None, None, -3, None, None], [1, 4, 5]),
    (pl.String, pl.Float64(), ["1", "1e3", "x", None], [1.0, 1000.0, None, None], [2]),
    (pl.String, pl.Boolean(), ["true", "False", "1", None], [True, False, None, None], [2]),
    (pl.String, pl.Date(), ["2024-02-29", "2023-02-29", None], [date(2024, 2, 29), None, None], [1]),
    (pl.String, pl.Decimal(10, 2), ["1.25", "x", None], [Decimal("1.25"), None, None], [1]),
    (pl.Decimal(10, 3), pl.Decimal(5, 2), [Decimal("1.25"), Decimal("1.239")], [Decimal("1.25"), None], [1]),
    (pl.Decimal(10, 2), pl.Decimal(5, 2), [Decimal("999.99"), Decimal(1000)], [Decimal("999.99"), None], [1]),
    (
        pl.String,
        pl.Decimal(5, 2),
        ["1.230", "1.239", "150e-2", "1.5E-3", "0e-9", "-.005", "1e2", "12.3e+1", "1000", None],
        [*map(Decimal, ("1.23", "0", "1.5", "0", "0", "0", "100", "123")), None, None],
        [1, 3, 5, 8],
    ),
    (pl.Categorical, pl.String(), ["a", None], ["a", None], []),
    (pl.String, pl.Enum(["a"]), ["a", "b", None], ["a", None, None], [1]),
    (pl.Date, pl.Datetime("us"), [date(2024, 1, 1)], [datetime(2024, 1, 1)], []),
    (pl.List(pl.Int32), pl.List(pl.Int64()), [[1], None, [None]], [[1], None, [None]], []),
    (pl.List(pl.Int32), pl.List(pl.Int64), [[1], None], [[1], None], []),
    (pl.Struct({"a": pl.Int8}), pl.Struct({"a": pl.Int64}), [{"a": 1}, None], [{"a": 1}, None], []),
    (pl.Struct({"a": pl.Int8}), pl.Struct({"a": pl.Int64()}), [{"a": 1}, None], [{"a": 1}, None], []),
    (
        pl.Datetime("us"),
        pl.Datetime("ms"),
        [datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)],
        [datetime(2024, 1, 1), datetime(2024, 1, 1)],
        [1],
    ),
    (pl.Datetime("ms"), pl.Datetime("us"), [datetime(2024, 1, 1), None], [datetime(2024, 1, 1), None], []),
]


@pytest.mark.parametrize(("found", "expected", "values", "wanted", "misfits"), CASES, ids=str)
def test_casts(found: Any, expected: Any, values: list[Any], wanted: list[Any], misfits: list[int]) -> None:
    got, rows = cast(values, found, expected)
    assert rows == misfits
    fitting = [row for row in range(len(values)) if row not in misfits]
    assert [got[row] for row in fitting] == [wanted[row] for row in fitting]


def test_a_year_that_nanoseconds_cannot_hold_is_a_misfit() -> None:
    _, rows = cast([datetime(2024, 1, 1), datetime(3000, 1, 1), None], pl.Datetime("us"), pl.Datetime("ns"))
    assert rows == [1]


def test_datetimes_are_read_as_iso_8601() -> None:
    texts = [
        "2024-02-29T12:30:00",
        "2024-02-29 12:30:00.250",
        "2024-02-29T12:30:00Z",
        "2024-02-29T12:30:00+02:00",
        "2024-02-29",
        "29.2.2024",
        None,
    ]
    naive, rows = cast(texts, pl.String, pl.Datetime("us"))
    assert rows == [5]
    assert naive[:5] == [
        datetime(2024, 2, 29, 12, 30),
        datetime(2024, 2, 29, 12, 30, 0, 250_000),
        datetime(2024, 2, 29, 12, 30),
        datetime(2024, 2, 29, 10, 30),
        datetime(2024, 2, 29),
    ]
    aware, rows = cast(texts, pl.String, pl.Datetime("ms", "UTC"))
    assert rows == [5]
    assert aware[3] == datetime(2024, 2, 29, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pl.Int64(), pl.String()),
        (pl.Float64(), pl.Float32()),
        (pl.Int64(), pl.Boolean()),
        (pl.Int64(), pl.Datetime("us")),
        (pl.Datetime("us", "UTC"), pl.Datetime("us")),
        (pl.String(), pl.Binary()),
        (pl.Binary(), pl.String()),
        (pl.List(pl.Int64()), pl.List(pl.Int8())),
        (pl.List(pl.Int64()), pl.Int64()),
        (pl.Struct({"a": pl.Int64()}), pl.Struct({"b": pl.Int64()})),
        (pl.Struct({"a": pl.Int64()}), pl.Struct({"a": pl.Int64(), "b": pl.Int64()})),
    ],
    ids=str,
)
def test_other_casts_are_refused(found: pl.DataType, expected: pl.DataType) -> None:
    with pytest.raises(DataError, match=r"column 'c': expected .*, found "):
        cast_column(pl.Series("c", [], dtype=found), expected)
