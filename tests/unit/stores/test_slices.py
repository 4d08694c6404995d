"""Slices hold the rows that they were made of, and return any of them; their format is durable, byte for byte."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from drawn import examples
from headrace.core.errors import CorruptLogError
from headrace.stores import pieces as slices
from headrace.stores.pieces import SliceForm

VALUES: dict[pl.DataType, st.SearchStrategy[Any]] = {
    pl.Int8(): st.integers(-128, 127),
    pl.Int32(): st.integers(-(2**31), 2**31 - 1),
    pl.Int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300),
    pl.UInt64(): st.integers(0, 2**64 - 1) | st.integers(2**64 - 300, 2**64 - 1),
    pl.Float64(): st.floats(),
    pl.Boolean(): st.booleans(),
    pl.String(): st.text(max_size=5),
    pl.Binary(): st.binary(max_size=5),
    pl.Date(): st.dates(),
    pl.Datetime("ns", "Europe/Paris"): st.integers(-(10**15), 10**15),
    pl.Duration("ms"): st.integers(-(10**6), 10**6),
    pl.Decimal(38, 4): st.decimals(-(10**20), 10**20, places=4),
    pl.Enum(["a", "b"]): st.sampled_from(["a", "b"]),
    pl.Null(): st.none(),
}


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    dtypes = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    height = draw(st.integers(1, 20))
    columns = {}
    for number, dtype in enumerate(dtypes):
        one = VALUES[dtype] if draw(st.booleans()) and dtype != pl.Null else st.none() | VALUES[dtype]
        columns[f"c{number}"] = pl.Series(draw(st.lists(one, min_size=height, max_size=height)), dtype=dtype)
    return pl.DataFrame(columns)


@settings(max_examples=examples(300), deadline=None)
@given(rows=frames(), cut=st.integers(0, 19), size=st.sampled_from([1, 50, 4096]), data=st.data())
def test_rows_come_back(rows: pl.DataFrame, cut: int, size: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", size)
        patch.setattr(slices, "_ROWS_MIN", 1)
        pieces = [part for part in (rows[: cut % rows.height], rows[cut % rows.height :]) if part.height]
        form = SliceForm.of(pieces)
    assert form is not None
    again = SliceForm.read(form.written())
    assert again.written() == form.written()
    encoded = [form.encode(piece) for piece in pieces]
    assert [len(values) for values in encoded] == [form.count(piece.height) for piece in pieces]
    for piece, values in zip(pieces, encoded, strict=True):
        assert_frame_equal(again.decode(values, piece.height), piece)
    places = data.draw(st.lists(st.integers(0, pieces[-1].height - 1)))
    found = again.decode(encoded[-1], np.array(places, np.int64))
    assert_frame_equal(found, pieces[-1][places])


def test_what_was_decoded_stays_when_more_is_decoded() -> None:
    rows = pl.DataFrame({"n": range(1000), "x": [n / 2 for n in range(1000)]})
    form = SliceForm.of([rows])
    assert form is not None
    every = form.decode(form.encode(rows), 1000)
    one = form.decode(form.encode(rows)[:1], np.array([7]))
    form.decode(form.encode(rows.reverse()), 1000)
    assert_frame_equal(every, rows)
    assert one.rows() == [(7, 3.5)]


def test_columns_of_nested_types_have_no_form() -> None:
    assert SliceForm.of([pl.DataFrame({"a": [1], "list": [[1]]})]) is None
    assert SliceForm.of([pl.DataFrame({"a": [1], "s": pl.Series(["x"], dtype=pl.Categorical)})]) is None


# -- the format, byte for byte

GOLDEN = pl.DataFrame(
    {
        "key": pl.Series([7, 300, 8], dtype=pl.Int64),
        "name": pl.Series(["ab", None, "c"], dtype=pl.String),
        "at": pl.Series([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 1)]),
        "x": pl.Series([1.0, 0.5, -2.0], dtype=pl.Float64),
    }
)
GOLDEN_FORM = (
    b'{"format":1,"rows":2,"columns":[{"name":"key","type":"Int64","nullable":false,"from":7,"width":2},'
    b'{"name":"name","type":"String","nullable":true,"from":null,"width":null},'
    b'{"name":"at","type":{"Datetime":{"unit":"us","zone":null}},"nullable":false,"from":1577836800000000,"width":4},'
    b'{"name":"x","type":"Float64","nullable":false,"from":null,"width":null}]}'
)
GOLDEN_SLICES = [
    bytes.fromhex(
        "00002501"  # keys from 7 on
        "0100"  # which names there are
        "0200000000000000"  # their lengths
        "0000000000000000"  # microseconds since the first
        "000000000000f03f000000000000e03f"
        "6162"
    ),
    bytes.fromhex("010000000100" + "0100000000000000" + "40420f0000000000" + "00000000000000c00000000000000000" + "63"),
]


def test_the_form_and_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_BYTES", 32)
    monkeypatch.setattr(slices, "_ROWS_MIN", 1)
    form = SliceForm.of([GOLDEN])
    assert form is not None
    assert form.written() == GOLDEN_FORM
    assert form.encode(GOLDEN) == GOLDEN_SLICES
    assert_frame_equal(SliceForm.read(GOLDEN_FORM).decode(GOLDEN_SLICES, 3), GOLDEN)


def test_another_format_is_refused() -> None:
    message = "slices of format 2 in the local state; this version of Headrace reads 1"
    with pytest.raises(CorruptLogError, match=message):
        SliceForm.read(GOLDEN_FORM.replace(b'"format":1', b'"format":2'))


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_slice_of_another_length_is_damage(cut: int) -> None:
    with pytest.raises(CorruptLogError, match="is malformed"):
        SliceForm.read(GOLDEN_FORM).decode([GOLDEN_SLICES[0][:-cut], GOLDEN_SLICES[1]], 3)
    with pytest.raises(CorruptLogError, match="is malformed"):
        SliceForm.read(GOLDEN_FORM).decode([GOLDEN_SLICES[0] + bytes(cut), GOLDEN_SLICES[1]], 3)
