"""What the view of a null says is undefined in Arrow, and Polars follows it."""

from __future__ import annotations

import struct

import polars as pl
import pyarrow as pa
import pytest

from headrace.core.errors import FrameError
from headrace.rows.ipc import decode_rows, decode_runs
from headrace.rows.values import without_wild_views

WILD = [(1 << 30, 0, 0, 0), (32, 0, 0, 1), (-1, 0, 0, 0), (13, 0, -1, 0), (13, 0, 5, 0), (13, 0, 0, 2**31 - 1)]
LONG = b"a string that is too long for its view"


def views(dtype: pa.DataType, null: tuple[int, int, int, int]) -> pa.Array:
    """A short value, a long one, and a null whose view is this."""
    short = struct.pack("<i12s", 2, b"ab")
    long = struct.pack("<i4sii", len(LONG), LONG[:4], 0, 0)
    buffers = [pa.py_buffer(b"\x03"), pa.py_buffer(short + long + struct.pack("<iiii", *null)), pa.py_buffer(LONG)]
    array = pa.Array.from_buffers(dtype, 3, buffers, null_count=1)
    array.validate(full=True)  # PyArrow has nothing against it
    return array


def written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("null", WILD, ids=str)
@pytest.mark.parametrize("dtype", [pa.string_view(), pa.binary_view()], ids=str)
def test_the_values_are_kept(dtype: pa.DataType, null: tuple[int, int, int, int]) -> None:
    array = views(dtype, null)
    inner = pa.LargeListArray.from_arrays(pa.array([0, 2, 3], pa.int64()), array)
    nested = pa.StructArray.from_arrays([inner], ["values"])
    table = pa.table({"flat": array.slice(0, 2), "nested": nested, "other": [1, 2]})
    safe = without_wild_views(table)
    assert safe.schema == table.schema
    assert safe.to_pylist() == table.to_pylist()
    rows = decode_rows(written(pa.table({"flat": array, "n": [1, 2, 3]})))
    values = rows.get_column("flat").cast(pl.Binary).to_list()
    assert values == [b"ab", LONG, None]
    ((runs, heights),) = decode_runs([written(pa.table({"nested": nested}))] * 2)
    assert heights == [2, 2]
    assert [value for row in runs.get_column("nested").to_list() for value in row["values"]].count(None) == 2


def test_a_table_with_good_views_is_left_as_it_is() -> None:
    table = pa.table({"flat": views(pa.string_view(), (0, 0, 0, 0)), "again": views(pa.string_view(), (38, 0, 0, 0))})
    assert without_wild_views(table) is table


def test_what_is_beside_it_is_not_looked_at() -> None:
    """Python has no value for this time, and it isn't asked for one."""
    far_off = pa.array([2**62, 2**62, 1], pa.int64()).cast(pa.timestamp("us"))
    struct_of_both = pa.StructArray.from_arrays([views(pa.string_view(), WILD[0]), far_off], ["text", "at"])
    for array in (struct_of_both, struct_of_both.slice(1), pa.LargeListArray.from_arrays([0, 2, 3], struct_of_both)):
        (safe,) = without_wild_views(pa.table({"both": array})).columns
        safe.validate(full=True)
        assert safe.type == array.type
        flat = safe.chunk(0) if pa.types.is_struct(safe.type) else safe.chunk(0).values
        assert flat.field("at").cast(pa.int64()).to_pylist() == far_off.cast(pa.int64()).to_pylist()[-len(flat) :]
        assert flat.field("text").to_pylist() == ["ab", LONG.decode(), None][-len(flat) :]


def test_a_struct_keeps_its_own_nulls() -> None:
    inner = views(pa.string_view(), WILD[0])
    array = pa.StructArray.from_arrays([inner], ["text"], mask=pa.array([False, True, False]))
    (safe,) = without_wild_views(pa.table({"one": array})).columns
    assert safe.to_pylist() == [{"text": "ab"}, None, {"text": None}]


def test_types_that_a_stream_cant_hold_are_refused() -> None:
    union = pa.UnionArray.from_dense(
        pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array(["a", "b"], pa.string_view())]
    )
    data = written(pa.table({"one": union}))
    with pytest.raises(FrameError):
        decode_rows(data)
    with pytest.raises(FrameError):
        decode_runs([data, data])
