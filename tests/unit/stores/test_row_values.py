"""Rows become compact values, and can be read back unchanged."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from drawn import examples
from headrace.core.errors import CorruptLogError, DataError
from headrace.stores.encoding import ValueEncoding, layouts_of

SMALL = st.integers(-(2**31), 2**31 - 1)
INSTANTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
VALUES: dict[pl.DataType, st.SearchStrategy[Any]] = {
    pl.Int8(): st.integers(-128, 127),
    pl.Int64(): st.integers(-(2**63), 2**63 - 1),
    pl.UInt64(): st.integers(0, 2**64 - 1),
    pl.Float64(): st.floats(),
    pl.Boolean(): st.booleans(),
    pl.String(): st.text(max_size=5),
    pl.Binary(): st.binary(max_size=5),
    pl.Time(): st.times(),
    pl.Datetime("ns", "Europe/Paris"): st.integers(-(10**15), 10**15),
    pl.Decimal(38, 4): st.decimals(-(10**20), 10**20, places=4),
    pl.Enum(["a", "b"]): st.sampled_from(["a", "b"]),
    pl.Null(): st.none(),
    pl.List(pl.Int32): st.lists(st.none() | SMALL, max_size=3),
    pl.List(pl.Datetime("us")): st.lists(INSTANTS, max_size=2),
    pl.Struct({"a": pl.Int64, "s": pl.List(pl.String)}): st.fixed_dictionaries(
        {"a": st.none() | SMALL, "s": st.lists(st.text(max_size=2), max_size=2)}
    ),
    pl.Array(pl.Float32, 2): st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
}


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    dtypes = draw(st.lists(st.sampled_from(list(VALUES)), max_size=10))
    height = draw(st.integers(0, 5))
    columns = {}
    for number, dtype in enumerate(dtypes):
        values = draw(st.lists(st.none() | VALUES[dtype], min_size=height, max_size=height))
        columns[f"c{number}"] = pl.Series(values, dtype=dtype)
    return pl.DataFrame(columns) if columns else pl.DataFrame(height=height)


@settings(max_examples=examples(400), deadline=None)
@given(frames())
def test_rows_come_back(frame: pl.DataFrame) -> None:
    encoding = ValueEncoding(dict(frame.schema), 7)
    values = encoding.encode(frame)
    assert layouts_of(values).tolist() == [7] * frame.height
    read = encoding.decode(values)
    assert read.height == frame.height
    assert_frame_equal(read, frame, check_exact=True)


def test_floats_keep_their_bits() -> None:
    frame = pl.DataFrame({"f": [-0.0]})
    encoding = ValueEncoding(dict(frame.schema), 0)
    assert math.copysign(1, encoding.decode(encoding.encode(frame))["f"][0]) == -1


def test_golden_bytes() -> None:
    """Durable: a change here makes every existing store unreadable."""
    frame = pl.DataFrame(
        {
            "n": [258, None],
            "s": ["aé", None],
            "b": [True, False],
            "d": [Decimal("0.05"), None],
            "l": [[1, None], []],
        },
        {"n": pl.Int16, "s": pl.String, "b": pl.Boolean, "d": pl.Decimal(9, 2), "l": pl.List(pl.Int64)},
    )
    first, second = ValueEncoding(dict(frame.schema), 2).encode(frame)
    assert first == bytes.fromhex(
        "01 02 1f02 010100 00 00 00 00 00 00 00 05 00 00 00 00 00 00 0003 00 00 0003 00 00 0061 c3 a992 01 c0"
    )
    assert second == bytes.fromhex(
        "01 02 1400 000000 00 00 00 00 00 00 00 00 00 00 00 00 00 00 0000 00 00 0001 00 00 0090"
    )


def test_a_nested_number_that_is_too_large_is_refused() -> None:
    frame = pl.DataFrame({"x": pl.Series([[Decimal(10) ** 30]], dtype=pl.List(pl.Decimal(38, 0)))})
    with pytest.raises(DataError, match="column 'x' of type"):
        ValueEncoding(dict(frame.schema), 0).encode(frame)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(CorruptLogError, match=r"begins with b'\\x09\\x00'|begins with b'\\t\\x00'"):
        layouts_of([b"\x01\x00...", b"\x09\x00..."])
    with pytest.raises(CorruptLogError, match=r"begins with b'\\x01'"):
        layouts_of([b"\x01"])


def test_damaged_rows_are_refused() -> None:
    frame = pl.DataFrame({"n": [1, 2], "s": ["abc", "d"]})
    encoding = ValueEncoding(dict(frame.schema), 0)
    first, second = encoding.encode(frame)
    for damaged in ([first[:-1], second], [first[:5], second], [first, b""]):
        with pytest.raises(CorruptLogError, match="ends too early"):
            encoding.decode(damaged)
