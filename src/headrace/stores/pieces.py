"""Pieces: how rows that never change are kept in memory and in the local database.

Runs (``stores.runs``) and segments (``stores.segment``) are many rows that are written once. They are dealt by the
first bits of a hash of their keys, so that piece i of 2^b has the rows of pieces 2i and 2i + 1 of 2^(b+1). So any
number of runs or segments are merged, or read to the end, one range of hashes at a time. No more rows need be in
memory than such a range has.

A piece that isn't in the database yet is in memory. A piece that is in the database may be in memory, too, if its
store's ``Kept`` has room; otherwise it is read when it is needed. Where rows are looked up, pieces are written in
slices (``stores.slices``), so that some rows can be read without the rest. Pieces that are always read as a whole are
written as a whole.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import Hashes, split
from headrace.serdes.ipc import decode_rows, encode_rows
from headrace.serdes.rows import concat_rows
from headrace.stores.base import View, Writes
from headrace.stores.slices import SliceForm

KEPT_BYTES_MAX = 128 << 20
"""How much of its data in the database a store may also keep in memory."""
_NO_LIMIT = 1 << 62
PIECE_ROWS = 1 << 16
VALUE_ROWS_MAX = 1 << 18
"""The most rows in one record of the changelog and in one value of the database: both have a size limit."""
_BITS_MAX = 12

_SLICES_READ_AT_ONCE = 512
_KEY = struct.Struct(">cQII")
_FORM_KEY = struct.Struct(">cQ")

HashOf = Callable[[pl.DataFrame], Hashes]
Places = npt.NDArray[np.int64]
"""Rows of several pieces, counted from the first row of the first piece."""
PieceRows = pl.DataFrame | None
"""Return the rows of a range of hashes; None if there are none."""


def bits_for(rows: int) -> int:
    """How many bits deal this number of rows into pieces of about ``PIECE_ROWS`` at most."""
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
    first. A piece that is read is kept if there is room. Every range of hashes is read equally often, so evicting the
    least recently read piece would not help.
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
        """``conform`` is applied to rows that are read; ``in_memory``: there is room for all.

        ``sliced``: rows are looked up, so they are written in slices where their types allow it.
        """
        self.store = store
        self.view = view
        self.conform = conform or _as_they_are
        self.sliced = sliced
        self._most = _NO_LIMIT if in_memory else KEPT_BYTES_MAX
        self.bytes = 0
        self._frames: OrderedDict[tuple[int, int], pl.DataFrame] = OrderedDict()
        self._sizes: dict[tuple[int, int], int] = {}

    def get(self, number: int, piece: int) -> pl.DataFrame | None:
        """The piece, if it is in memory."""
        return self._frames.get((number, piece))

    def keep(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        """Keep a piece that was written."""
        self._put(number, piece, rows, int(rows.estimated_size()))
        while self.bytes > self._most and self._frames:
            self._drop(next(iter(self._frames)))

    def offer(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        """Keep a piece that was read, if there is room."""
        size = int(rows.estimated_size())
        if self.bytes + size <= self._most:
            self._put(number, piece, rows, size)

    def forget(self, number: int, pieces: int) -> None:
        """Drop these pieces, which are no longer needed."""
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
        """The rows of one piece. Those that are read ``once`` don't stay in memory."""
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
        """The pieces that have rows."""
        for piece in range(len(self)):
            rows = self.piece(piece, once=once)
            if rows is not None:
                yield rows

    def at(self, places: Places) -> Iterator[tuple[pl.DataFrame, Places | None]]:
        """Yield frames with the rows at ``places``, which ascend and may repeat.

        Beside each frame are the places of the wanted rows in it; None: it has nothing else. If few rows of a piece are
        wanted, only their slices are read.
        """
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
        """The rows dealt by ``bits`` bits, which are at least as many as now; in the order of hashes."""
        finer = 1 << (bits - self.bits)
        for piece in range(len(self)):
            rows = self.piece(piece)
            yield from [None] * finer if rows is None else deal(rows, hash_of, self.bits, bits)

    def write(self, writes: Writes) -> None:
        """Write the pieces, if they aren't in the database yet."""
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
        """Remove the pieces from the database."""
        form = self._form
        if form is not None:
            writes.delete(_FORM_KEY.pack(b"f", self.number))
        for piece, height in enumerate(self.heights):
            writes.delete_many(self._keys(piece, range(_values(height, form))))
        self._kept.forget(self.number, len(self))

    # -- inside

    @property
    def _form(self) -> SliceForm | None:
        """The form of the slices in the database; None: the pieces are whole."""
        if self._read_form is None:
            view = self._kept.view if self.stored else None
            value = None if view is None else view.get(_FORM_KEY.pack(b"f", self.number))
            self._read_form = (None if value is None else SliceForm.read(value),)
        return self._read_form[0]

    def _form_for(self, piece: int, wanted: int) -> SliceForm | None:
        """The form of the slices, if this number of rows of the piece should be read from slices."""
        if self._frames is not None or self._kept.get(self.number, piece) is not None:
            return None
        form = self._form
        return form if form is not None and 2 * wanted <= form.count(self.heights[piece]) else None

    def _read_slices(self, form: SliceForm | None, wanted: Sequence[tuple[int, Places]]) -> pl.DataFrame:
        """The rows at these places of some pieces."""
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
        """Read neighbouring keys in one scan, which costs less than one by one."""
        first, after = self._keys(piece, (0, count))
        view = self._kept.view
        values = [] if view is None else [value for _, value in view.range(first, after)]
        if len(values) != count:
            raise self._missing(f"a slice of piece {piece}")
        return values

    def _missing(self, what: str) -> CorruptLogError:
        return CorruptLogError(
            f"store {self._kept.store!r}: {what} of {self.number} is missing in the local state",
            hint="delete the task's local state: it is rebuilt from the changelog",
        )

    def _keys(self, piece: int, places: Iterable[int]) -> list[bytes]:
        pack, number = _KEY.pack, self.number
        return [pack(b"p", number, piece, place) for place in places]


def together(flows: Sequence[Iterator[PieceRows]]) -> Iterator[PieceRows]:
    """Zip flows that are divided alike: the rows of each range, those of the first flow first."""
    for parts in zip(*flows, strict=True):
        filled = [part for part in parts if part is not None and part.height]
        yield concat_rows(filled) if filled else None


def _as_they_are(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def _values(height: int, form: SliceForm | None) -> int:
    return -(-height // VALUE_ROWS_MAX) if form is None else form.count(height)
