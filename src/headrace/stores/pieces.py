"""Pieces: how rows that never change lie in memory and in the local database.

Runs (``stores.runs``) and segments (``stores.segment``) are many rows that are written once. They are dealt by the
first bits of a hash of their keys, so that piece i of 2^b holds what pieces 2i and 2i + 1 of 2^(b+1) hold. So any
number of them are merged, or read to the end, a range of hashes at a time: no more rows need be in memory than such
a range has.

A piece that isn't in the database yet is in memory. One that is may be in memory too, as far as its store's ``Kept``
has room, or else is read when it is asked for.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import Hashes, split
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import View, Writes

KEPT_BYTES_MAX = 128 << 20
"""So much of what is in the database a store has in memory as well."""
_NO_LIMIT = 1 << 62
PIECE_ROWS = 1 << 16
VALUE_ROWS_MAX = 1 << 18
"""One record of the changelog, one value of the database: both have a greatest size."""
_BITS_MAX = 12

_KEY = struct.Struct(">cQII")

HashOf = Callable[[pl.DataFrame], Hashes]
Places = npt.NDArray[np.int64]
"""Rows of several pieces, by their number from the first piece's first row on."""
Part = pl.DataFrame | None
"""The rows of a range of hashes; None: there are none."""


def bits_for(rows: int) -> int:
    """How many bits deal so many rows into pieces of about ``PIECE_ROWS`` at most."""
    return min(max(0, (max(rows, 1) - 1).bit_length() - (PIECE_ROWS - 1).bit_length()), _BITS_MAX)


def deal(rows: pl.DataFrame, hash_of: HashOf | None, had: int, bits: int) -> list[Part]:
    """Rows whose first ``had`` bits are the same, dealt by the bits after them up to ``bits``; their order stays."""
    number = 1 << (bits - had)
    if number == 1:
        return [rows]
    parts: list[Part] = [None] * number
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
    """The pieces of one store that are in the database and in memory too.

    What was just written stays, and what was written longest ago makes room: what is new is merged soonest. What was
    read stays where there is room. Hashes have no favourites, so there would be no use in asking who was read last.
    """

    def __init__(
        self,
        store: str,
        view: View | None = None,
        conform: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        *,
        in_memory: bool = False,
    ) -> None:
        """``conform`` is applied to rows that are read; ``in_memory``: there is room for all."""
        self.store = store
        self.view = view
        self.conform = conform or _as_they_are
        self._most = _NO_LIMIT if in_memory else KEPT_BYTES_MAX
        self.bytes = 0
        self._frames: OrderedDict[tuple[int, int], pl.DataFrame] = OrderedDict()
        self._sizes: dict[tuple[int, int], int] = {}

    def get(self, number: int, piece: int) -> pl.DataFrame | None:
        """The piece, if it is here."""
        return self._frames.get((number, piece))

    def keep(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        """A piece that was written."""
        self._put(number, piece, rows, int(rows.estimated_size()))
        while self.bytes > self._most and self._frames:
            self._drop(next(iter(self._frames)))

    def offer(self, number: int, piece: int, rows: pl.DataFrame) -> None:
        """A piece that was read."""
        size = int(rows.estimated_size())
        if self.bytes + size <= self._most:
            self._put(number, piece, rows, size)

    def forget(self, number: int, pieces: int) -> None:
        """These pieces are not asked for any more."""
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
    """Rows dealt into a power of two of pieces. ``number`` is their name in the database, and no other rows'."""

    def __init__(self, kept: Kept, number: int, heights: Sequence[int], frames: list[Part] | None = None) -> None:
        """``heights`` are the rows of each piece; without ``frames`` they are in the database."""
        self.number = number
        self.heights = list(heights)
        self.rows = sum(self.heights)
        self.bits = len(self.heights).bit_length() - 1
        self.stored = frames is None
        self._frames = frames
        self._kept = kept

    @classmethod
    def of(cls, kept: Kept, number: int, parts: Sequence[Part]) -> Pieces:
        """New ones: a power of two of parts, in the order of their hashes. Small neighbours become one."""
        heights = [0 if part is None else part.height for part in parts]
        wide = len(parts) >> min(bits_for(sum(heights)), len(parts).bit_length() - 1)
        if wide > 1:
            groups = [parts[first : first + wide] for first in range(0, len(parts), wide)]
            parts = [next(together([iter([part]) for part in group])) for group in groups]
            heights = [0 if part is None else part.height for part in parts]
        return cls(kept, number, heights, list(parts))

    def __len__(self) -> int:
        return len(self.heights)

    def piece(self, piece: int) -> Part:
        """The rows of one piece."""
        if not self.heights[piece]:
            return None
        if self._frames is not None:
            return self._frames[piece]
        rows = self._kept.get(self.number, piece)
        if rows is None:
            rows = self._read(piece)
            self._kept.offer(self.number, piece, rows)
        return rows

    def all(self) -> Iterator[pl.DataFrame]:
        """Piece by piece, those with rows."""
        for piece in range(len(self)):
            rows = self.piece(piece)
            if rows is not None:
                yield rows

    def at(self, places: Places) -> Iterator[tuple[pl.DataFrame, Places]]:
        """The pieces that have rows at ``places``, which ascend and may repeat, and the places of these in each."""
        ends = np.cumsum(self.heights)
        first = 0
        for piece, last in enumerate(np.searchsorted(places, ends).tolist()):
            rows = self.piece(piece) if last > first else None
            if rows is not None:
                yield rows, places[first:last] - (int(ends[piece]) - rows.height)
            first = last

    def dealt(self, hash_of: HashOf | None, bits: int) -> Iterator[Part]:
        """The rows dealt by ``bits`` bits, at least as many as they are dealt by already; in the order of hashes."""
        finer = 1 << (bits - self.bits)
        for piece in range(len(self)):
            rows = self.piece(piece)
            yield from [None] * finer if rows is None else deal(rows, hash_of, self.bits, bits)

    def write(self, writes: Writes) -> None:
        """Write them, if they aren't in the database yet."""
        if self._frames is None:
            return
        for piece, rows in enumerate(self._frames):
            if rows is not None and rows.height:
                for place, part in enumerate(rows.iter_slices(VALUE_ROWS_MAX)):
                    writes.put(_KEY.pack(b"p", self.number, piece, place), encode_rows(part))
        self.stored = True
        if self._kept.view is not None:
            frames, self._frames = self._frames, None
            for piece, rows in enumerate(frames):
                if rows is not None and rows.height:
                    self._kept.keep(self.number, piece, rows)

    def erase(self, writes: Writes) -> None:
        """Remove them from the database."""
        for piece, height in enumerate(self.heights):
            for place in range(_values(height)):
                writes.delete(_KEY.pack(b"p", self.number, piece, place))
        self._kept.forget(self.number, len(self))

    def _read(self, piece: int) -> pl.DataFrame:
        view = self._kept.view
        keys = [_KEY.pack(b"p", self.number, piece, place) for place in range(_values(self.heights[piece]))]
        values = [None if view is None else view.get(key) for key in keys]
        rows = concat_rows([decode_rows(value, checked=True) for value in values if value is not None])
        if rows.height != self.heights[piece]:
            raise CorruptLogError(
                f"store {self._kept.store!r}: piece {piece} of {self.number} is missing in the local state",
                hint="delete the task's local state: it is rebuilt from the changelog",
            )
        return self._kept.conform(rows)


def together(flows: Sequence[Iterator[Part]]) -> Iterator[Part]:
    """Flows dealt alike, range by range: the rows of the first stand first."""
    for parts in zip(*flows, strict=True):
        filled = [part for part in parts if part is not None and part.height]
        yield concat_rows(filled) if filled else None


def _as_they_are(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


def _values(height: int) -> int:
    return -(-height // VALUE_ROWS_MAX)
