"""Pieces: how rows that never change are kept in memory and in the local database.

Runs (``stores.runs``) and segments (``stores.keyed``) are cut into pieces by the first bits of a hash of their keys, so
they are merged, or read to the end, one range of hashes at a time (``docs/design/state.md``). A piece that isn't in the
database yet is in memory, and so are others while there is room in the store's ``Kept``.

Where rows are looked up, a piece is written in *slices* of two to four kilobytes, so that one row is read in some ten
microseconds: RocksDB reads a value as a whole. All slices of a run or segment have one form, a value beside them:

    columns of a fixed width, one after the other | lengths u32 of each string column | the strings, by column

The numbers of a column are contiguous, as many as the form's ``rows``; the last slice is padded. Integers are stored as
the difference to the lowest one of the rows, in as few bytes as the highest difference needs. A column with nulls is
preceded by one byte per row that says which values are there. Everything is little-endian. Pieces with columns of
nested types are written whole.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from headrace.core.errors import CorruptLogError, DeclarationError
from headrace.rows.dtypes import columns_from_json, columns_to_json
from headrace.rows.given import concat_rows
from headrace.rows.hashing import Hashes, split
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.stores.base import View, Writes
from headrace.stores.encoding import DELETE_LOCAL_STATE, from_bytes, from_words, is_bytes, to_bytes, to_words, words_of
from headrace.stores.encoding import Places as BytePlaces

SLICE_BYTES = 2048
"""The least size of a full slice. Smaller slices make reading a whole piece expensive, larger ones reading a row."""
_ROWS_MIN, _ROWS_MAX = 8, 1024
_LENGTH = np.dtype("<u4")
_FORMAT = 1
Words = npt.NDArray[Any]


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Integers are packed as their differences to ``from_``, in ``width`` bytes."""

    name: str
    type: Any
    nullable: bool
    from_: int | None = msgspec.field(default=None, name="from")
    width: int | None = None

    @classmethod
    def of(cls, name: str, columns: Sequence[pl.Series]) -> _Kind:
        dtype = columns[0].dtype
        first = width = None
        if (word := _whole_number(dtype)) is not None:
            numbers = [to_words(column)[0] for column in columns if len(column)]
            first = min((int(each.min()) for each in numbers), default=0)
            apart = max((int(each.max()) for each in numbers), default=0) - first
            width = min(next(width for width in (1, 2, 4, 8) if apart < 1 << 8 * width), word.itemsize)
        type_ = columns_to_json({name: dtype})[name]
        nullable = any(column.null_count() for column in columns)
        return cls(name=name, type=type_, nullable=nullable, from_=first, width=width)


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _FORMAT
    rows: int
    columns: list[_Kind]


_DECODER = msgspec.json.Decoder(_Written)


@dataclass(frozen=True, slots=True)
class _Packing:
    dtype: np.dtype[Any]
    first: int
    width: int

    def pack(self, words: Words) -> Words:
        # Unsigned numbers wrap as they should, however far apart two are.
        packed: Words = (words.astype(self._wide, copy=False) - self._offset).astype(f"<u{self.width}")
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


class _Column:
    """Where in a slice a column is."""

    def __init__(self, kind: _Kind, at: int, rows: int) -> None:
        self.kind = kind
        self.dtype = columns_from_json({kind.name: kind.type})[kind.name]
        self.is_bytes = is_bytes(self.dtype)
        self._packing: _Packing | None = None
        formats: list[np.dtype[Any]] = [np.dtype("u1")] if kind.nullable else []
        word = _whole_number(self.dtype)
        if self.is_bytes:
            formats.append(_LENGTH)
        elif word is not None and kind.from_ is not None and kind.width is not None:
            self._packing = _Packing(word, kind.from_, kind.width)
            formats.append(np.dtype(f"<u{kind.width}"))
        else:
            formats += [np.dtype(each) for each in words_of(self.dtype) or ()]
        self.fields: list[tuple[int, np.dtype[Any]]] = []
        for format_ in formats:
            self.fields.append((at, format_))
            at += format_.itemsize * rows
        self.end = at

    def numbers(self, series: pl.Series) -> list[Words]:
        words = to_words(series)
        return words if self._packing is None else [self._packing.pack(words[0])]

    def series(self, numbers: list[Words], valid: npt.NDArray[np.bool_] | None, height: int) -> pl.Series:
        if self.dtype == pl.Null:
            return pl.Series(self.kind.name, [None], pl.Null).new_from_index(0, height)
        words = numbers if self._packing is None else [self._packing.unpack(numbers[0])]
        return from_words(self.kind.name, self.dtype, words, valid)


class SliceForm:
    """How slices hold the rows of one run or segment."""

    def __init__(self, kinds: Sequence[_Kind], rows: int) -> None:
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

    def written(self) -> bytes:
        return msgspec.json.encode(_Written(rows=self.rows, columns=[column.kind for column in self._columns]))

    @classmethod
    def read(cls, value: bytes) -> SliceForm:
        found = _DECODER.decode(value)
        if found.format != _FORMAT:
            what = f"slices of format {found.format} in the local state; this version of Headrace reads {_FORMAT}"
            raise CorruptLogError(what, hint=f"upgrade Headrace, or {DELETE_LOCAL_STATE}")
        return cls(found.columns, found.rows)

    def count(self, height: int) -> int:
        return -(-height // self.rows)

    def encode(self, rows: pl.DataFrame) -> list[bytes]:
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

    def decode(self, slices: Sequence[bytes], rows: BytePlaces | int) -> pl.DataFrame:
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
            cuts = zip(slices, begins.tolist(), ends.tolist(), strict=True)
            data = b"".join([each[begin:end] for each, begin, end in cuts])
            columns.append(from_bytes(column.kind.name, column.dtype, _strings(lengths, data, rows), valid))
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


def _strings(lengths: npt.NDArray[np.int64], data: bytes, rows: BytePlaces | int) -> pa.LargeBinaryArray:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.ravel(), out=offsets[1:])
    if int(offsets[-1]) != len(data):
        raise _damaged()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    every = pa.Array.from_buffers(pa.large_binary(), lengths.size, buffers)
    return every[:rows] if isinstance(rows, int) else every.take(pa.array(rows))


def _damaged() -> CorruptLogError:
    return CorruptLogError("a slice of rows in the local state is malformed", hint=DELETE_LOCAL_STATE)


KEPT_BYTES_MAX = 128 << 20  # how much of its data in the database a store may also keep in memory
_NO_LIMIT = 1 << 62
PIECE_ROWS = 1 << 16
VALUE_ROWS_MAX = 1 << 18
"""The most rows in one record of the changelog and in one value of the database: both have a size limit."""
_BITS_MAX = 12
_SLICES_READ_AT_ONCE = 512
_KEY = struct.Struct(">cQII")
_FORM_KEY = struct.Struct(">cQ")
HashOf = Callable[[pl.DataFrame], Hashes]
Places = npt.NDArray[np.int64]  # rows of several pieces, counted from the first row of the first piece
PieceRows = pl.DataFrame | None  # the rows of a range of hashes; None if there are none


def bits_for(rows: int) -> int:
    return min(max(0, (max(rows, 1) - 1).bit_length() - (PIECE_ROWS - 1).bit_length()), _BITS_MAX)


def deal(rows: pl.DataFrame, hash_of: HashOf | None, had: int, bits: int) -> list[PieceRows]:
    """Deal rows whose first ``had`` bits are the same by the bits after them, up to ``bits``. Their order stays."""
    number = 1 << (bits - had)
    if number == 1:
        return [rows]
    parts: list[PieceRows] = [None] * number
    if hash_of is None or not rows.height:
        parts[0] = rows
        return parts
    ids = (hash_of(rows) << np.uint64(had)) >> np.uint64(64 - (bits - had))
    if (ids[1:] >= ids[:-1]).all():  # rows in the order of their hashes need not be moved
        cuts = [0, *np.searchsorted(ids, np.arange(1, number, dtype=np.uint64)).tolist(), rows.height]
        return [rows.slice(start, stop - start) if stop > start else None for start, stop in pairwise(cuts)]
    for part, dealt in split(rows, ids.astype(np.uint8) if number <= 1 << 8 else ids.astype(np.uint16), number):
        parts[part] = dealt
    return parts


class Kept:
    """The pieces of one store that are both in the database and in memory.

    A piece that is written is kept, and the one written longest ago makes room for it, because new pieces are merged
    first. A piece that is read is kept if there is room.
    """

    def __init__(
        self,
        store: str,
        view: View | None = None,
        conform: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        *,
        in_memory: bool = False,
        sliced: bool = False,
    ) -> None:
        """``conform`` is applied to rows that are read. ``sliced``: rows are looked up."""
        self.store = store
        self.view = view
        self.conform = conform or (lambda rows: rows)
        self.sliced = sliced
        self._most = _NO_LIMIT if in_memory else KEPT_BYTES_MAX
        self.bytes = 0
        self._frames: OrderedDict[tuple[int, int], pl.DataFrame] = OrderedDict()
        self._sizes: dict[tuple[int, int], int] = {}

    def get(self, number: int, piece: int) -> pl.DataFrame | None:
        return self._frames.get((number, piece))

    def keep(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        self._put(number, piece, rows, int(rows.estimated_size()))
        while self.bytes > self._most and self._frames:
            self._drop(next(iter(self._frames)))

    def offer(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        """Unlike ``keep``: only if there is room."""
        size = int(rows.estimated_size())
        if self.bytes + size <= self._most:
            self._put(number, piece, rows, size)

    def forget(self, number: int, pieces: int) -> None:
        for piece in range(pieces):
            if (number, piece) in self._frames:
                self._drop((number, piece))

    def _put(self, number: int, piece: int, rows: pl.DataFrame, size: int) -> None:
        self._frames[number, piece] = rows
        self._sizes[number, piece] = size
        self.bytes += size

    def _drop(self, at: tuple[int, int]) -> None:
        del self._frames[at]
        self.bytes -= self._sizes.pop(at)


class Pieces:
    """Rows dealt into 2^b pieces. ``number`` identifies them in the database; no other pieces of the store have it."""

    def __init__(self, kept: Kept, number: int, heights: Sequence[int], frames: list[PieceRows] | None = None) -> None:
        """``heights``: the number of rows of each piece. Without ``frames`` the pieces are in the database."""
        self.number = number
        self.heights = list(heights)
        self.rows = sum(self.heights)
        self.bits = len(self.heights).bit_length() - 1
        self.stored = frames is None
        self._frames = frames
        self._kept = kept
        self._read_form: tuple[SliceForm | None] | None = None

    @classmethod
    def of(cls, kept: Kept, number: int, parts: Sequence[PieceRows]) -> Pieces:
        """New pieces of 2^b parts, in the order of their hashes. Small neighbours become one piece."""
        heights = [0 if part is None else part.height for part in parts]
        wide = len(parts) >> min(bits_for(sum(heights)), len(parts).bit_length() - 1)
        if wide > 1:
            groups = [parts[first : first + wide] for first in range(0, len(parts), wide)]
            parts = [next(together([iter([part]) for part in group])) for group in groups]
            heights = [0 if part is None else part.height for part in parts]
        return cls(kept, number, heights, list(parts))

    def __len__(self) -> int:
        return len(self.heights)

    def piece(self, piece: int, *, once: bool = False) -> PieceRows:
        """Those that are read ``once`` don't stay in memory."""
        if not self.heights[piece]:
            return None
        if self._frames is not None:
            return self._frames[piece]
        rows = self._kept.get(self.number, piece)
        if rows is None:
            rows = self._read(piece)
            if not once:
                self._kept.offer(self.number, piece, rows)
        return rows

    def all(self, *, once: bool = False) -> Iterator[pl.DataFrame]:
        for piece in range(len(self)):
            rows = self.piece(piece, once=once)
            if rows is not None:
                yield rows

    def at(self, places: Places) -> Iterator[tuple[pl.DataFrame, Places | None]]:
        """Yield frames, and the places in each of the wanted rows (None: all). ``places`` ascend, and may repeat."""
        ends = np.cumsum(self.heights)
        first = 0
        waiting: list[tuple[int, Places]] = []
        for piece, last in enumerate(np.searchsorted(places, ends).tolist()):
            if last == first:
                continue
            within = places[first:last] - (int(ends[piece]) - self.heights[piece])
            first = last
            form = self._form_for(piece, len(within))
            if form is not None:
                waiting.append((piece, within))
                if sum(len(each) for _, each in waiting) >= _SLICES_READ_AT_ONCE:
                    yield self._read_slices(form, waiting), None
                    waiting = []
                continue
            if waiting:
                yield self._read_slices(self._form, waiting), None
                waiting = []
            rows = self.piece(piece)
            if rows is not None:
                yield rows, within
        if waiting:
            yield self._read_slices(self._form, waiting), None

    def dealt(self, hash_of: HashOf | None, bits: int) -> Iterator[PieceRows]:
        """By at least as many bits as now; in the order of hashes."""
        finer = 1 << (bits - self.bits)
        for piece in range(len(self)):
            rows = self.piece(piece)
            yield from [None] * finer if rows is None else deal(rows, hash_of, self.bits, bits)

    def write(self, writes: Writes) -> None:
        if self._frames is None:
            return
        filled = [rows for rows in self._frames if rows is not None and rows.height]
        form = SliceForm.of(filled) if self._kept.sliced and filled else None
        self._read_form = (form,)
        if form is not None:
            writes.put(_FORM_KEY.pack(b"f", self.number), form.written())
        for piece, rows in enumerate(self._frames):
            if rows is None or not rows.height:
                continue
            keys = self._keys(piece, range(_values(rows.height, form)))
            if form is None:
                writes.put_many(keys, map(encode_rows, rows.iter_slices(VALUE_ROWS_MAX)))
            else:
                writes.put_many(keys, form.encode(rows))
        self.stored = True
        if self._kept.view is not None:
            frames, self._frames = self._frames, None
            for piece, rows in enumerate(frames):
                if rows is not None and rows.height:
                    self._kept.keep(self.number, piece, rows)

    def erase(self, writes: Writes) -> None:
        form = self._form
        if form is not None:
            writes.delete(_FORM_KEY.pack(b"f", self.number))
        for piece, height in enumerate(self.heights):
            writes.delete_many(self._keys(piece, range(_values(height, form))))
        self._kept.forget(self.number, len(self))

    @property
    def _form(self) -> SliceForm | None:
        if self._read_form is None:
            view = self._kept.view if self.stored else None
            value = None if view is None else view.get(_FORM_KEY.pack(b"f", self.number))
            self._read_form = (None if value is None else SliceForm.read(value),)
        return self._read_form[0]

    def _form_for(self, piece: int, wanted: int) -> SliceForm | None:
        if self._frames is not None or self._kept.get(self.number, piece) is not None:
            return None
        form = self._form
        return form if form is not None and 2 * wanted <= form.count(self.heights[piece]) else None

    def _read_slices(self, form: SliceForm | None, wanted: Sequence[tuple[int, Places]]) -> pl.DataFrame:
        if form is None:
            raise ValueError("these pieces have no slices")
        keys: list[bytes] = []
        places = []
        for piece, within in wanted:
            slices, nth = np.unique(within // form.rows, return_inverse=True)
            places.append((nth + len(keys)) * form.rows + within % form.rows)
            keys += self._keys(piece, slices.tolist())
        return self._kept.conform(form.decode(self._slices(keys), np.concatenate(places)))

    def _read(self, piece: int) -> pl.DataFrame:
        form, height = self._form, self.heights[piece]
        if form is not None:
            return self._kept.conform(form.decode(self._all_slices(piece, form.count(height)), height))
        keys = self._keys(piece, range(_values(height, None)))
        found = [] if self._kept.view is None else self._kept.view.get_many(keys)
        rows = concat_rows([decode_rows(value, checked=True) for value in found if value is not None])
        if rows.height != height:
            raise self._missing(f"piece {piece}")
        return self._kept.conform(rows)

    def _slices(self, keys: Sequence[bytes]) -> list[bytes]:
        found = [] if self._kept.view is None else self._kept.view.get_many(keys)
        values = [value for value in found if value is not None]
        if len(values) != len(keys):
            raise self._missing("a slice")
        return values

    def _all_slices(self, piece: int, count: int) -> list[bytes]:
        # One scan of neighbouring keys costs less than one by one.
        first, after = self._keys(piece, (0, count))
        view = self._kept.view
        values = [] if view is None else [value for _, value in view.range(first, after)]
        if len(values) != count:
            raise self._missing(f"a slice of piece {piece}")
        return values

    def _missing(self, what: str) -> CorruptLogError:
        said = f"store {self._kept.store!r}: {what} of {self.number} is missing in the local state"
        return CorruptLogError(said, hint=DELETE_LOCAL_STATE)

    def _keys(self, piece: int, places: Iterable[int]) -> list[bytes]:
        pack, number = _KEY.pack, self.number
        return [pack(b"p", number, piece, place) for place in places]


def together(flows: Sequence[Iterator[PieceRows]]) -> Iterator[PieceRows]:
    for parts in zip(*flows, strict=True):
        filled = [part for part in parts if part is not None and part.height]
        yield concat_rows(filled) if filled else None


def _values(height: int, form: SliceForm | None) -> int:
    return -(-height // VALUE_ROWS_MAX) if form is None else form.count(height)
