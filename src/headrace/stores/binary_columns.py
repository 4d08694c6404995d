"""Columns of a DataFrame as columns of numbers and bytes, and rows of such columns as one ``bytes`` object each.

The encodings of keys (``ordered_keys``) and of values (``row_values``) share this. A column of a fixed width is one or
two arrays of numbers, its *words*. A string or binary column is an Arrow array of bytes. Any nested column is an Arrow
array of MessagePack. A row is a chain of records of a fixed width with bytes between them. All rows are encoded and
decoded at once; only MessagePack costs Python per value.

Pure; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DataError
from headrace.serdes.nulls import filled

Words = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

DELETE_LOCAL_STATE = "delete the task's local state: it is rebuilt from the changelog"

_WORDS: dict[type[pl.DataType], tuple[str, ...]] = {
    pl.Int8: ("<i1",), pl.Int16: ("<i2",), pl.Int32: ("<i4",), pl.Int64: ("<i8",),
    pl.UInt8: ("<u1",), pl.UInt16: ("<u2",), pl.UInt32: ("<u4",), pl.UInt64: ("<u8",),
    pl.Float32: ("<f4",), pl.Float64: ("<f8",), pl.Boolean: ("<u1",),
    pl.Date: ("<i4",), pl.Datetime: ("<i8",), pl.Duration: ("<i8",), pl.Time: ("<i8",),
    pl.Enum: ("<u4",), pl.Decimal: ("<i8", "<u8"), pl.Null: (),
}  # fmt: skip

_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder().decode


def words_of(dtype: pl.DataType) -> tuple[str, ...] | None:
    """The formats of a column's words, the highest first; None when its values have no fixed width."""
    return _WORDS.get(type(dtype))


def is_bytes(dtype: pl.DataType) -> bool:
    """Whether values are strings or binary."""
    return dtype in (pl.String, pl.Binary)


def to_words(series: pl.Series) -> list[Words]:
    """The values of a column of a fixed width; null is 0."""
    formats = _WORDS[type(series.dtype)]
    if isinstance(series.dtype, pl.Decimal):
        halves = np.frombuffer(_decimals(series).buffers()[1], "<u8")[: 2 * len(series)]
        if series.null_count():
            halves = np.where(np.repeat(series.is_not_null().to_numpy(), 2), halves, np.uint64(0))
        return [halves[1::2].view("<i8"), halves[0::2]]
    if not formats:
        return []
    if series.dtype == pl.Boolean:
        series = series.cast(pl.UInt8)
    numbers = filled(series.to_physical(), 0)
    return [numbers.to_numpy().astype(formats[0], copy=False)]


def from_words(name: str, dtype: pl.DataType, words: Sequence[Words], valid: Mask | None) -> pl.Series:
    """The inverse of ``to_words``. ``valid`` is None if there are no nulls."""
    if isinstance(dtype, pl.Decimal):
        data = np.column_stack([words[1], words[0].view("<u8")]).tobytes()
        nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        kind = pa.decimal128(dtype.precision or 38, dtype.scale)
        series = pl.Series(name, pa.Array.from_buffers(kind, len(words[0]), [nulls, pa.py_buffer(data)]))
        return series.cast(dtype)
    mask = None if valid is None else ~valid
    if isinstance(dtype, pl.Enum):
        return pl.Series(name, pa.array(words[0], mask=mask)).cat.to(dtype)
    series = pl.Series(name, pa.array(np.ascontiguousarray(words[0]), mask=mask))
    return series if series.dtype == dtype else series.cast(dtype)


def to_bytes(series: pl.Series) -> pa.LargeBinaryArray:
    """The values of any other column as bytes; null has no bytes."""
    if not is_bytes(series.dtype):
        try:
            packed = [None if value is None else _PACK(value) for value in series.to_physical().to_list()]
        except (OverflowError, TypeError) as error:
            raise DataError(
                f"column {series.name!r} of type {series.dtype} can't be kept in a state store: {error}",
                hint="store it as text: cast it to pl.String first",
            ) from error
        series = pl.Series(packed, dtype=pl.Binary)
    array = series.cast(pl.Binary).fill_null(b"").to_arrow(compat_level=pl.CompatLevel.oldest())
    return array.cast(pa.large_binary())


def from_bytes(name: str, dtype: pl.DataType, array: pa.LargeBinaryArray, valid: Mask | None) -> pl.Series:
    """The inverse of ``to_bytes``."""
    if not is_bytes(dtype):
        packed = array.to_pylist()
        alive = [True] * len(packed) if valid is None else valid.tolist()
        values = [_UNPACK(data) if there else None for data, there in zip(packed, alive, strict=True)]
        physical = pl.Series(name, [], dtype).to_physical()
        # Polars takes 5 us a list to make a column of Python's.
        return pl.Series(name, pa.array(values, physical.to_arrow().type), physical.dtype).cast(dtype)
    nulls = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    kind = pa.large_string() if dtype == pl.String else pa.large_binary()
    return pl.Series(name, pa.Array.from_buffers(kind, len(array), [nulls, *array.buffers()[1:]]))


def join_rows(parts: Sequence[Words | pa.LargeBinaryArray]) -> list[bytes]:
    """One ``bytes`` a row: its records of a fixed width (structured arrays) and its bytes, in turn."""
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        rows: list[bytes] = parts[0].view(f"V{parts[0].itemsize}").tolist()
        return rows
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    joined = pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.large_binary()))
    return joined.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class Rows:
    """Reads rows that ``join_rows`` made, from left to right."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.data = np.frombuffer(b"".join(rows), np.uint8)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        self.ends = lengths.cumsum()
        self.at = self.ends - lengths

    def record(self, dtype: np.dtype[Any]) -> Words:
        """The next record of a fixed width of every row."""
        width, count = dtype.itemsize, len(self.at)
        if count and int((self.ends - self.at).min()) < width:
            raise CorruptLogError("a stored row ends too early", hint=DELETE_LOCAL_STATE)
        if not width or not count:
            return np.zeros(count, dtype)
        if self.data.size == width * count:
            records = self.data.view(dtype)  # nothing else is in the rows
        else:
            every = np.ndarray((self.data.size - width + 1,), f"V{width}", self.data.data, strides=(1,))
            records = every[self.at].view(dtype)
        self.at = self.at + width
        return records

    def until(self, ends: Places) -> pa.LargeBinaryArray:
        """The bytes of every row up to its place in ``ends``."""
        if len(ends) and (np.any(ends < self.at) or np.any(ends > self.ends)):
            raise CorruptLogError("a stored row ends too early", hint=DELETE_LOCAL_STATE)
        offsets = np.zeros(len(ends) + 1, np.int64)
        np.cumsum(ends - self.at, out=offsets[1:])
        steps = np.zeros(self.data.size + 1, np.int8)
        # A string without bytes begins where it ends: both must count.
        np.add.at(steps, self.at, 1)
        np.subtract.at(steps, ends, 1)
        inside = steps[:-1].cumsum(dtype=np.int8).view(np.bool_)
        data = self.data[inside]
        self.at = ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)


def _as_binary(records: Words) -> pa.LargeBinaryArray:
    width, count = records.itemsize, len(records)
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int64) if width else np.zeros(count + 1, np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records.tobytes())]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)


def _decimals(series: pl.Series) -> pa.Array:
    array = series.rechunk().to_arrow()
    return array if array.offset == 0 else pa.concat_arrays([array])
