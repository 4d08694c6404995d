"""Slices: a piece of rows as many small values. A look-up reads only those that have the rows it wants.

A slice has some ten to a few hundred neighbouring rows of the piece, in two to four kilobytes, so that one row is read
in some ten microseconds. RocksDB reads a value as a whole, and the checksum of it costs the most. All slices of a run
or segment have one form, which is a value beside them:

    columns of a fixed width, one after the other | lengths u32 of each string column | the strings, by column

The numbers of a column are contiguous, as many as the form's ``rows``; the last slice is padded. Integers are stored as
the difference to the lowest one of the rows, in as few bytes as the highest difference needs: times take half as much.
A column with nulls is preceded by one byte per row that says which values are there. Everything is little-endian. So
slices of any number of pieces are decoded at once, without Python per row.

Columns of nested types have no such form. Their pieces are written whole (``stores.pieces``).

Pure; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DeclarationError
from headrace.serdes.dtypes import columns_from_json, columns_to_json
from headrace.stores.binary_columns import (
    DELETE_LOCAL_STATE,
    Places,
    from_bytes,
    from_words,
    is_bytes,
    to_bytes,
    to_words,
    words_of,
)

SLICE_BYTES = 2048
"""The least size of a full slice. Smaller slices make reading a whole piece expensive, larger ones reading a row."""
_ROWS_MIN, _ROWS_MAX = 8, 1024
_LENGTH = np.dtype("<u4")
_FORMAT = 1

Words = npt.NDArray[Any]


class _WrittenColumn(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Any
    nullable: bool
    from_: int | None = msgspec.field(default=None, name="from")
    width: int | None = None


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _FORMAT
    rows: int
    columns: list[_WrittenColumn]


_DECODER = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class _Packing:
    """Integers of ``dtype``, as their differences to ``first`` in ``width`` bytes."""

    dtype: np.dtype[Any]
    first: int
    width: int

    @classmethod
    def of(cls, dtype: np.dtype[Any], columns: Sequence[Words]) -> _Packing:
        first = min((int(column.min()) for column in columns if len(column)), default=0)
        highest = max((int(column.max()) for column in columns if len(column)), default=0)
        width = next(width for width in (1, 2, 4, 8) if highest - first < 1 << 8 * width)
        return cls(dtype, first, min(width, dtype.itemsize))

    @property
    def packed(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.width}")

    def pack(self, words: Words) -> Words:
        # Unsigned numbers wrap as they should, however far apart two are.
        packed: Words = (words.astype(self._wide, copy=False) - self._offset).astype(self.packed)
        return packed

    def unpack(self, words: Words) -> Words:
        unpacked: Words = (words.astype(self._wide) + self._offset).view(self.dtype)
        return unpacked

    @property
    def _wide(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.dtype.itemsize}")

    @property
    def _offset(self) -> Any:
        return self._wide.type(self.first & (1 << 8 * self.dtype.itemsize) - 1)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A column: its name and type, whether there are nulls, and how its numbers are packed, if they are."""

    name: str
    dtype: pl.DataType
    nullable: bool
    packing: _Packing | None = None

    @classmethod
    def of(cls, name: str, columns: Sequence[pl.Series]) -> _Kind:
        dtype = columns[0].dtype
        nullable = any(column.null_count() for column in columns)
        packing = None
        if (word := _whole_number(dtype)) is not None:
            packing = _Packing.of(word, [to_words(column)[0] for column in columns])
        return cls(name, dtype, nullable, packing)

    @classmethod
    def read(cls, written: _WrittenColumn) -> _Kind:
        dtype = columns_from_json({written.name: written.type})[written.name]
        word = _whole_number(dtype)
        if word is None or written.from_ is None or written.width is None:
            return cls(written.name, dtype, written.nullable)
        return cls(written.name, dtype, written.nullable, _Packing(word, written.from_, written.width))

    def written(self) -> _WrittenColumn:
        type_ = columns_to_json({self.name: self.dtype})[self.name]
        if self.packing is None:
            return _WrittenColumn(name=self.name, type=type_, nullable=self.nullable)
        first, width = self.packing.first, self.packing.width
        return _WrittenColumn(name=self.name, type=type_, nullable=self.nullable, from_=first, width=width)


class _Column:
    """Where in a slice a column is."""

    def __init__(self, kind: _Kind, at: int, rows: int) -> None:
        self.kind = kind
        self.is_bytes = is_bytes(kind.dtype)
        formats: list[np.dtype[Any]] = [np.dtype("u1")] if kind.nullable else []
        if self.is_bytes:
            formats.append(_LENGTH)
        elif kind.packing is not None:
            formats.append(kind.packing.packed)
        else:
            formats += [np.dtype(word) for word in words_of(kind.dtype) or ()]
        self.fields: list[tuple[int, np.dtype[Any]]] = []
        for format_ in formats:
            self.fields.append((at, format_))
            at += format_.itemsize * rows
        self.end = at

    def numbers(self, series: pl.Series) -> list[Words]:
        """What goes into its fields, after that of the nulls."""
        words = to_words(series)
        return words if self.kind.packing is None else [self.kind.packing.pack(words[0])]

    def series(self, numbers: list[Words], valid: npt.NDArray[np.bool_] | None, height: int) -> pl.Series:
        """A column that has no strings, from its fields."""
        name, dtype, packing = self.kind.name, self.kind.dtype, self.kind.packing
        if dtype == pl.Null:
            return pl.Series(name, [None], pl.Null).new_from_index(0, height)
        return from_words(name, dtype, numbers if packing is None else [packing.unpack(numbers[0])], valid)


class SliceForm:
    """How slices hold the rows of one run or segment."""

    def __init__(self, kinds: Sequence[_Kind], rows: int) -> None:
        """``rows``: the number of rows of each slice."""
        self.rows = rows
        self._columns: list[_Column] = []
        at = 0
        for kind in kinds:
            self._columns.append(_Column(kind, at, rows))
            at = self._columns[-1].end
        self._width = at
        self._bytes = bytearray()

    @classmethod
    def of(cls, frames: Sequence[pl.DataFrame]) -> SliceForm | None:
        """The form for these rows, which have the same columns; None if their types have no form."""
        schema = frames[0].schema
        try:
            columns_to_json(schema)
        except DeclarationError:
            return None
        if not schema or not all(words_of(dtype) is not None or is_bytes(dtype) for dtype in schema.values()):
            return None
        kinds = [_Kind.of(name, [frame.get_column(name) for frame in frames]) for name in schema]
        height = sum(frame.height for frame in frames)
        strings = [name for name, dtype in schema.items() if is_bytes(dtype)]
        size = sum(int(frame.get_column(name).estimated_size()) for frame in frames for name in strings)
        row_bytes = max(1, cls(kinds, 1)._width + size // max(1, height))
        rows = 1 << (-(-SLICE_BYTES // row_bytes) - 1).bit_length()
        return cls(kinds, min(max(rows, _ROWS_MIN), _ROWS_MAX))

    # -- the form itself

    def written(self) -> bytes:
        """The form, to be kept beside the slices."""
        return msgspec.json.encode(
            _Written(rows=self.rows, columns=[column.kind.written() for column in self._columns])
        )

    @classmethod
    def read(cls, value: bytes) -> SliceForm:
        """Read what ``written`` returned. Raises ``CorruptLogError`` for an unknown format."""
        found = _DECODER.decode(value)
        if found.format != _FORMAT:
            raise CorruptLogError(
                f"slices of format {found.format} in the local state; this version of Headrace reads {_FORMAT}",
                hint=f"upgrade Headrace, or {DELETE_LOCAL_STATE}",
            )
        return cls([_Kind.read(column) for column in found.columns], found.rows)

    # -- rows

    def count(self, height: int) -> int:
        """How many slices this number of rows needs."""
        return -(-height // self.rows)

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        """The slices of a piece, which isn't empty."""
        count = self.count(rows.height)
        fixed = np.zeros((count, self._width), np.uint8)
        strings: list[list[memoryview]] = []
        for column in self._columns:
            series = rows.get_column(column.kind.name)
            numbers: list[Words] = [series.is_not_null().to_numpy()] if column.kind.nullable else []
            if column.is_bytes:
                array = to_bytes(series)
                ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + rows.height + 1]
                numbers.append(np.diff(ends))
                data = memoryview(array.buffers()[2] or b"")
                cuts = [*ends[: -1 : self.rows].tolist(), int(ends[-1])]
                strings.append([data[start:end] for start, end in pairwise(cuts)])
            else:
                numbers += column.numbers(series)
            for (at, dtype), values in zip(column.fields, numbers, strict=True):
                padded = np.zeros(count * self.rows, dtype)
                padded[: rows.height] = values
                width = dtype.itemsize * self.rows
                fixed[:, at : at + width] = padded.view(np.uint8).reshape(count, width)
        heads: list[bytes] = fixed.view(f"V{self._width}").ravel().tolist() if self._width else [b""] * count
        return [b"".join(parts) for parts in zip(heads, *strings, strict=True)] if strings else heads

    def decode(self, slices: Sequence[bytes], rows: Places | int) -> pl.DataFrame:
        """The rows at these places, counted over ``slices`` as if each were full; or the first ``rows`` rows."""
        widths = np.fromiter(map(len, slices), np.int64, len(slices))
        strings = [column for column in self._columns if column.is_bytes]
        if np.any(widths < self._width if strings else widths != self._width):
            raise _damaged()
        fixed = self._fixed(slices)
        height = rows if isinstance(rows, int) else len(rows)

        def picked(field: Words) -> Words:
            if isinstance(rows, int):
                return field.flatten()[:rows]
            values: Words = field[of_slice, within]
            return values

        of_slice, within = (rows, rows) if isinstance(rows, int) else np.divmod(rows, self.rows)
        begins = np.full(len(slices), self._width, np.int64)
        columns = []
        for column in self._columns:
            fields = [self._field(fixed, at, dtype) for at, dtype in column.fields]
            valid = picked(fields.pop(0)) != 0 if column.kind.nullable else None
            if not column.is_bytes:
                columns.append(column.series([picked(field) for field in fields], valid, height))
                continue
            lengths = fields[0].astype(np.int64)
            ends = begins + lengths.sum(axis=1)
            data = b"".join(
                [each[begin:end] for each, begin, end in zip(slices, begins.tolist(), ends.tolist(), strict=True)]
            )
            columns.append(from_bytes(column.kind.name, column.kind.dtype, _strings(lengths, data, rows), valid))
            begins = ends
        if strings and not np.array_equal(begins, widths):
            raise _damaged()
        return pl.DataFrame(columns)

    def _fixed(self, slices: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        width, at = self._width, 0
        room = memoryview(self._room(width * len(slices)))
        for each in slices:
            room[at : at + width] = each[:width]
            at += width
        return np.frombuffer(room, np.uint8, at).reshape(len(slices), width)

    def _room(self, size: int) -> bytearray:
        """A buffer. It is reused, since fresh memory costs three times as much; decoded values are copies."""
        if len(self._bytes) < size:
            self._bytes = bytearray(size)
        return self._bytes

    def _field(self, fixed: npt.NDArray[np.uint8], at: int, dtype: np.dtype[Any]) -> Words:
        return fixed[:, at : at + dtype.itemsize * self.rows].view(dtype)


def _whole_number(dtype: pl.DataType) -> np.dtype[Any] | None:
    """The numpy type of a column of integers of more than one byte; None for any other column."""
    words = words_of(dtype) or ()
    word = np.dtype(words[0]) if len(words) == 1 else None
    return word if word is not None and word.kind in "iu" and word.itemsize > 1 else None


def _strings(lengths: npt.NDArray[np.int64], data: bytes, rows: Places | int) -> pa.LargeBinaryArray:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.ravel(), out=offsets[1:])
    if int(offsets[-1]) != len(data):
        raise _damaged()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    every = pa.Array.from_buffers(pa.large_binary(), lengths.size, buffers)
    return every[:rows] if isinstance(rows, int) else every.take(pa.array(rows))


def _damaged() -> CorruptLogError:
    return CorruptLogError("a slice of rows in the local state is malformed", hint=DELETE_LOCAL_STATE)
