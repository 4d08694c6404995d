"""Keys compare as bytes as their columns do, and can be read back."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn import examples
from headrace.core.errors import CorruptLogError, DeclarationError
from headrace.stores.encoding import KeyEncoding

COLOURS = pl.Enum(["red", "green", "blue"])
TEXT = st.text(st.sampled_from("\x00\x01aé\U0001f600\x7f"), max_size=4)
INSTANTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
VALUES: dict[pl.DataType, st.SearchStrategy[Any]] = {
    pl.Int8(): st.integers(-(2**7), 2**7 - 1),
    pl.Int64(): st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
    pl.UInt32(): st.integers(0, 2**32 - 1),
    pl.UInt64(): st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)),
    pl.Float64(): st.one_of(st.sampled_from([0.0, -0.0, math.inf, -math.inf]), st.floats()),
    pl.Float32(): st.floats(width=32),
    pl.Boolean(): st.booleans(),
    pl.String(): TEXT,
    pl.Binary(): st.binary(max_size=3),
    pl.Date(): st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    pl.Time(): st.times(),
    pl.Datetime("us"): INSTANTS,
    pl.Datetime("ms", "UTC"): st.integers(-(10**12), 10**12),
    pl.Duration("ns"): st.integers(-(10**12), 10**12),
    pl.Decimal(20, 3): st.decimals(-(10**15), 10**15, places=3),
    COLOURS: st.sampled_from(["red", "green", "blue"]),
}


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    dtypes = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    height = draw(st.integers(0, 8))
    columns = {}
    for number, dtype in enumerate(dtypes):
        values = draw(st.lists(st.none() | VALUES[dtype], min_size=height, max_size=height))
        columns[f"c{number}"] = pl.Series(values, dtype=dtype)
    return pl.DataFrame(columns)


@settings(max_examples=examples(300), deadline=None)
@given(frames())
def test_keys_are_ordered_as_their_columns(frame: pl.DataFrame) -> None:
    encoded = KeyEncoding(dict(frame.schema)).encode(frame)
    order = sorted(range(frame.height), key=encoded.__getitem__)
    assert frame[order].equals(frame.sort(frame.columns, nulls_last=False, maintain_order=True))


@settings(max_examples=examples(300), deadline=None)
@given(frames())
def test_keys_are_read_back(frame: pl.DataFrame) -> None:
    encoding = KeyEncoding(dict(frame.schema))
    read = encoding.decode(encoding.encode(frame))
    assert read.schema == frame.schema
    assert read.equals(frame)


@settings(max_examples=examples(100), deadline=None)
@given(frames())
def test_the_first_columns_are_a_prefix(frame: pl.DataFrame) -> None:
    whole = KeyEncoding(dict(frame.schema)).encode(frame)
    first = KeyEncoding({"c0": frame.schema["c0"]}).encode(frame)
    assert all(key.startswith(prefix) for key, prefix in zip(whole, first, strict=True))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (pl.Int64(), 1, "01 80 00 00 00 00 00 00 01"),
        (pl.Int64(), -1, "01 7f ff ff ff ff ff ff ff"),
        (pl.Int64(), None, "00 00 00 00 00 00 00 00 00"),
        (pl.UInt16(), 258, "01 01 02"),
        (pl.Int16(), -2, "01 7f fe"),
        (pl.Float64(), 1.5, "01 bf f8 00 00 00 00 00 00"),
        (pl.Float64(), -1.5, "01 40 07 ff ff ff ff ff ff"),
        (pl.Float64(), -0.0, "01 80 00 00 00 00 00 00 00"),
        (pl.Float64(), -math.nan, "01 ff f8 00 00 00 00 00 00"),
        (pl.Boolean(), True, "01 01"),
        (pl.String(), "aé", "01 61 c3 a9 00"),
        (pl.String(), "a\x00b", "01 61 00 ff 62 00"),
        (pl.String(), "", "01 00"),
        (pl.String(), None, "00 00"),
        (pl.Binary(), b"\xff\x00", "01 ff 00 ff 00"),
        (pl.Date(), dt.date(1970, 1, 3), "01 80 00 00 02"),
        (pl.Datetime("us"), dt.datetime(1970, 1, 1, 0, 0, 1), "01 80 00 00 00 00 0f 42 40"),
        (pl.Decimal(10, 2), Decimal("-0.01"), "01 7f" + " ff" * 15),
        (COLOURS, "blue", "01 00 00 00 02"),
    ],
)
def test_golden_bytes(dtype: pl.DataType, value: Any, expected: str) -> None:
    """Durable: a change here makes every existing store unreadable."""
    [key] = KeyEncoding({"k": dtype}).encode(pl.DataFrame({"k": pl.Series([value], dtype=dtype)}))
    assert key == bytes.fromhex(expected)


def test_golden_bytes_of_several_columns() -> None:
    frame = pl.DataFrame(
        {"a": [-1], "s": ["x"], "t": [""], "b": [False]}, {"a": pl.Int8, "s": None, "t": None, "b": None}
    )
    [key] = KeyEncoding(dict(frame.schema)).encode(frame)
    assert key == bytes.fromhex("01 7f 01 78 00 01 00 01 00")


def test_other_columns_are_passed_over_and_slices_are_read_right() -> None:
    frame = pl.DataFrame({"x": range(6), "k": ["a", "b", None, "d", "e", "f"]}).slice(2, 3)
    encoding = KeyEncoding({"k": pl.String()})
    assert encoding.decode(encoding.encode(frame)).equals(frame.select("k"))


@pytest.mark.parametrize("dtype", [pl.List(pl.Int64), pl.Struct({"a": pl.Int64}), pl.Categorical(), pl.Null()])
def test_types_that_are_no_keys_are_refused(dtype: pl.DataType) -> None:
    with pytest.raises(DeclarationError, match="column 'k' of type"):
        KeyEncoding({"k": dtype})


def test_a_key_has_columns() -> None:
    with pytest.raises(DeclarationError, match="at least one column"):
        KeyEncoding({})


@pytest.mark.parametrize("keys", [[b"\x01abc"], [b"\x01"], [b"\x01a\x00", b"\x01b"], [b""]])
def test_damaged_keys_are_refused(keys: list[bytes]) -> None:
    with pytest.raises(CorruptLogError):
        KeyEncoding({"s": pl.String(), "n": pl.Int64()}).decode(keys)
