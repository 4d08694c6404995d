"""Arrow view arrays from other programs, made safe for Polars.

A view says how long a string is, and where it is if it is long. What the view of a null says is undefined: PyArrow
doesn't look at it, and Polars follows it, which ends the process if it leads nowhere. Such views are rare, and legal.
So columns that have one are copied value by value, and the others are left as they are.

Pure; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

_VIEWS = (pa.string_view().id, pa.binary_view().id)
_INLINE_MAX = 12
_WORDS = 4
"""A view is four numbers of 32 bits: size, first bytes, buffer, offset. If it is short, its bytes follow the size."""


def without_wild_views(table: pa.Table) -> pa.Table:
    """Return the table without views of nulls that lead nowhere. It must be valid."""
    for place, column in enumerate(table.columns):
        dtype = column.type
        if dtype.num_fields == 0 and (dtype.id not in _VIEWS or column.null_count == 0):
            continue  # as most columns: this has to cost little
        if any(_is_wild(view) for chunk in column.chunks for view in _views(chunk)):
            chunks = [_tamed(chunk) for chunk in column.chunks]
            table = table.set_column(place, table.schema.field(place), pa.chunked_array(chunks, dtype))
    return table


def _views(array: pa.Array) -> Iterator[pa.Array]:
    """The view arrays in an array, at any depth."""
    if array.type.id in _VIEWS:
        yield array
    else:
        for part in _parts(array):
            yield from _views(part)


def _parts(array: pa.Array) -> Sequence[pa.Array]:
    """The arrays that a struct or a list consists of; none for other types, which Polars has no columns for."""
    dtype = array.type
    if pa.types.is_struct(dtype):
        return [array.field(place) for place in range(dtype.num_fields)]
    if pa.types.is_large_list(dtype) or pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return [array.values]
    return []


def _tamed(array: pa.Array) -> pa.Array:
    """The same values in arrays of which the wild ones are copied value by value."""
    dtype = array.type
    if dtype.id in _VIEWS:
        return pa.array(array.to_pylist(), dtype) if _is_wild(array) else array
    parts = [_tamed(part) for part in _parts(array)]
    if not parts:
        return array
    buffers = array.buffers()[: dtype.num_buffers]
    if pa.types.is_struct(dtype):  # its fields are sliced already, its validity isn't
        return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=array.is_null())
    return pa.Array.from_buffers(dtype, len(array), buffers, array.null_count, array.offset, parts)


def _is_wild(array: pa.Array) -> bool:
    """Whether the view of a null in this array leads nowhere."""
    if array.null_count == 0:
        return False
    validity, views, *data = array.buffers()
    start, stop = array.offset, array.offset + len(array)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=stop, bitorder="little")
    nulls = np.flatnonzero(bits[start:] == 0) + start
    numbers = np.frombuffer(views, "<i4")
    sizes = numbers[nulls * _WORDS]
    long = (sizes < 0) | (sizes > _INLINE_MAX)
    if not long.any():
        return False
    places, sizes = nulls[long] * _WORDS, sizes[long].astype(np.int64)
    buffers, offsets = numbers[places + 2], numbers[places + 3]
    if not data or sizes.min() < 0 or offsets.min() < 0 or buffers.min() < 0 or buffers.max() >= len(data):
        return True
    ends = np.array([buffer.size for buffer in data], np.int64)
    return bool((offsets + sizes > ends[buffers]).any())
