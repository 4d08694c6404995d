"""Single rows have the same bytes as in the columnar encodings, and can be read back unchanged."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import CorruptLogError, DataError
from headrace.stores.encoding import (
    MISFITS,
    KeyEncoding,
    RowCodec,
    ScalarKeys,
    ScalarValues,
    ValueEncoding,
    is_packed,
    one_row,
)


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


TYPES: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int8(), integers(8, signed=True)),
    (pl.Int32(), integers(32, signed=True)),
    (pl.Int64(), integers(64, signed=True)),
    (pl.UInt8(), integers(8, signed=False)),
    (pl.UInt64(), integers(64, signed=False)),
    (pl.Float32(), st.floats(width=32)),
    (pl.Float64(), st.floats()),
    (pl.Boolean(), st.booleans()),
    (pl.String(), st.text(st.sampled_from("a\0\x01\xffé"), max_size=4)),
    (pl.Binary(), st.binary(max_size=4)),
]
OTHERS: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [(pl.Date(), st.dates(date(1900, 1, 1), date(2100, 1, 1)))]
VALUES_ONLY: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [(pl.List(pl.Int64), st.lists(st.integers(0, 9)))]

Row = tuple[dict[str, pl.DataType], tuple[Any, ...]]


@st.composite
def rows(draw: st.DrawFn, types: list[tuple[pl.DataType, st.SearchStrategy[Any]]], at_most: int) -> Row:
    chosen = draw(st.lists(st.sampled_from(types), min_size=1, max_size=at_most))
    columns = {f"c{place}": dtype for place, (dtype, _) in enumerate(chosen)}
    return columns, tuple(draw(st.none() | values) for _, values in chosen)


def same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    def nan(value: Any) -> Any:
        return "nan" if isinstance(value, float) and math.isnan(value) else value

    return [nan(value) for value in left] == [nan(value) for value in right]


@settings(deadline=None)
@given(rows(TYPES + OTHERS, 4))
def test_a_key_is_what_the_columnar_encoding_makes_of_it(row: Row) -> None:
    columns, values = row
    scalar = ScalarKeys(columns)
    key = scalar.encode(values)
    assert key == KeyEncoding(columns).encode(one_row(columns, values))[0]
    assert same(scalar.decode(key), values)


@settings(deadline=None)
@given(rows(TYPES, 4))
def test_the_beginning_of_a_key_is_that_of_its_first_columns(row: Row) -> None:
    columns, values = row
    scalar = ScalarKeys(columns)
    assert all(scalar.encode(values).startswith(scalar.encode(values[:n])) for n in range(1, len(values)))


@settings(deadline=None)
@given(rows(TYPES + OTHERS + VALUES_ONLY, 10))
def test_a_value_is_what_the_columnar_encoding_makes_of_it(row: Row) -> None:
    columns, values = row
    encoding = ValueEncoding(columns, 3)
    scalar = ScalarValues(encoding)
    value = scalar.encode(values)
    assert value == encoding.encode(one_row(columns, values))[0]
    assert same(tuple(scalar.decode(value)), values)


@settings(deadline=None)
@given(rows(TYPES, 10))
def test_the_quick_way_makes_the_same_bytes_of_a_record_and_leaves_nulls_to_the_other(row: Row) -> None:
    columns, values = row
    encoding = ValueEncoding(columns, 3)
    codec = RowCodec(encoding, lambda value: ("otherwise", value))
    stored = ScalarValues(encoding).encode(values)
    if None in values:
        with pytest.raises(MISFITS):
            codec.encode(values)
        assert codec.decode(stored) == ("otherwise", stored)
        return
    assert codec.encode(values) == stored
    assert same(codec.decode(stored), values)
    assert "otherwise" in codec.decode(ValueEncoding(columns, 4).encode(one_row(columns, values))[0])


def test_the_quick_way_leaves_out_types_that_struct_has_not() -> None:
    assert is_packed({str(dtype): dtype for dtype, _ in TYPES})
    assert not is_packed({"at": pl.Datetime("ms")})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pl.Int64(), "1"),
        (pl.Int64(), 1.0),
        (pl.Int8(), 128),
        (pl.UInt8(), -1),
        (pl.Float64(), "1"),
        (pl.Boolean(), 1),
        (pl.String(), b"a"),
        (pl.Binary(), "a"),
        (pl.Date(), 1.5),
    ],
)
def test_a_key_of_another_type_is_refused_by_the_name_of_its_column(dtype: pl.DataType, value: Any) -> None:
    with pytest.raises(DataError, match=f"column 'second': .* is not of type {dtype}"):
        ScalarKeys({"first": pl.String(), "second": dtype}).encode(("a", value))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pl.Int64(), "1"),
        (pl.Int8(), 128),
        (pl.UInt8(), -1),
        (pl.Float64(), "1"),
        (pl.String(), b"a"),
        (pl.Binary(), "a"),
        (pl.Datetime("us"), "no time"),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_column(dtype: pl.DataType, value: Any) -> None:
    encoding = ValueEncoding({"first": pl.String(), "second": dtype}, 0)
    with pytest.raises(DataError, match=r"column 'second': .* is no"):
        ScalarValues(encoding).encode(("a", value))
    if is_packed(encoding.columns):
        with pytest.raises(MISFITS):
            RowCodec(encoding, lambda value: ()).encode(("a", value))


@pytest.mark.parametrize("columns", [{"a": pl.Int64()}, {"a": pl.String()}, {"a": pl.Float64()}, {"a": pl.Boolean()}])
def test_a_key_or_value_that_ends_too_early_is_said_to(columns: dict[str, pl.DataType]) -> None:
    with pytest.raises(CorruptLogError, match="ends too early"):
        ScalarKeys(columns).decode(b"\x01")
    with pytest.raises(CorruptLogError, match="ends too early"):
        ScalarValues(ValueEncoding(columns, 0)).decode(b"\x01\x00")


def test_other_types_go_through_a_batch_of_one_row() -> None:
    columns = {"at": pl.Datetime("ms"), "n": pl.Int64()}
    values = (datetime(2024, 5, 6, 7, 8, 9), 1)
    assert ScalarKeys(columns).decode(ScalarKeys(columns).encode(values)) == values
