"""A segment of keyed rows: rows that never change, in pieces and in the order of their keys' hashes.

Each batch needs some facts about every row, so these are in memory: the hash of the row's key, its due columns, and
whether it is alive. That is 17 bytes a row with one due column. The rows themselves are read when they are wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import Hashes, hash_rows
from headrace.serdes.rows import concat_rows, rows_where
from headrace.stores.base import Writes
from headrace.stores.binary_columns import Mask
from headrace.stores.matching import spread
from headrace.stores.pieces import Kept, PieceRows, Pieces, Places, bits_for, together

NEVER_DUE = 2**63 - 1
_HASH = "__hash of a row"

_INDEX = struct.Struct(">cQI")
_MASK = struct.Struct(">cQ")


def hashes_of(rows: pl.DataFrame, keys: Sequence[str]) -> Hashes:
    """A hash of each row's key. Without keys all hashes are equal."""
    return hash_rows(rows, keys) if keys else np.zeros(rows.height, np.uint64)


class _Index:
    """The facts about each row: arrays in the order of the rows."""

    def __init__(self, hashes: Hashes, due: dict[str, npt.NDArray[np.int64]]) -> None:
        self.hashes = hashes
        self.due = due
        self.alive: npt.NDArray[np.bool_] | None = None
        """Which rows are alive; None: all."""


class Segment:
    """Some rows and the facts about them."""

    def __init__(
        self,
        kept: Kept,
        pieces: Pieces,
        due: Sequence[str],
        index: _Index | None,
        *,
        living: int,
        lows: Sequence[int],
        masked: bool = False,
    ) -> None:
        """``lows``: the lowest value of each due column. Without ``index`` the segment is in the database."""
        self.pieces = pieces
        self.living = living
        self.masked = masked
        """Some of its rows are dead."""
        self._kept = kept
        self._due = list(due)
        self._lows: dict[str, int] | None = dict(zip(due, lows, strict=True))
        self._index = index
        self._masked_since_stored = False
        self._ends = np.cumsum(pieces.heights)

    @classmethod
    def of(cls, kept: Kept, number: int, rows: pl.DataFrame, keys: Sequence[str], due: Sequence[str]) -> Segment:
        """A new segment. The rows of one key keep their order."""
        hashed = rows.with_columns(pl.Series(_HASH, hashes_of(rows, keys), dtype=pl.UInt64))
        return cls._of_parts(kept, number, _cut(hashed.sort(_HASH, maintain_order=True), bits_for(rows.height)), due)

    @classmethod
    def joined(cls, kept: Kept, number: int, segments: Sequence[Segment], due: Sequence[str]) -> Segment:
        """A new segment of the rows alive in several. Reads one range of hashes at a time."""
        parts = [None if part is None else part.sort(_HASH, maintain_order=True) for part in _ranges(segments)]
        return cls._of_parts(kept, number, parts, due)

    @classmethod
    def _of_parts(cls, kept: Kept, number: int, parts: Sequence[PieceRows], due: Sequence[str]) -> Segment:
        filled = [part for part in parts if part is not None]
        index = _Index(
            np.concatenate([part.get_column(_HASH).to_numpy() for part in filled]),
            {column: np.concatenate([part.get_column(column).to_numpy() for part in filled]) for column in due},
        )
        bare = [None if part is None else part.drop(_HASH) for part in parts]
        lows = [int(values.min()) for values in index.due.values()]
        return cls(kept, Pieces.of(kept, number, bare), due, index, living=len(index.hashes), lows=lows)

    # -- what is in it

    def low(self, column: str) -> int:
        """The lowest value of a due column among the rows alive."""
        if self._lows is None:
            index = self.index
            self._lows = {}
            for name, values in index.due.items():
                living = values if index.alive is None else values[index.alive]
                self._lows[name] = int(living.min()) if len(living) else NEVER_DUE
        return self._lows[column]

    def find(
        self, wanted: pl.DataFrame, hashes: Hashes, same: Sequence[str]
    ) -> tuple[Places, pl.DataFrame, Places] | None:
        """Return the live rows that match a row of ``wanted`` in the columns ``same``; None if there are none.

        Returns their places, the rows, and for each the place in ``wanted`` of the row that it agrees with.

        ``hashes`` are those of ``wanted``, which should be in their order: then memory is read side by side. A null
        agrees with a null.
        """
        # For example, with index.hashes 3 3 5 8 and hashes 3 4 8: ``starts`` is 0 2 3; ``hits`` is 0 2, for 4 isn't
        # there; of these, ``starts`` is 0 3 and ``counts`` 2 1. So ``places`` is 0 1 3 and ``of_wanted`` 0 0 2.
        if not self.living:
            return None
        index = self.index
        starts = np.searchsorted(index.hashes, hashes, "left")
        hits = np.flatnonzero(index.hashes[np.minimum(starts, len(index.hashes) - 1)] == hashes)
        starts = starts[hits]
        counts = np.searchsorted(index.hashes, hashes[hits], "right") - starts
        of_wanted = np.repeat(hits, counts)
        places = spread(starts, counts)
        if index.alive is not None:
            there = index.alive[places]
            places, of_wanted = places[there], of_wanted[there]
        if not len(places):
            return None
        order = np.argsort(places, kind="stable")
        places, of_wanted = places[order], of_wanted[order]
        rows = concat_rows(list(self.rows(places)))
        agree = np.ones(len(places), np.bool_)
        for column in same:
            equal = rows.get_column(column).eq_missing(wanted.get_column(column).gather(of_wanted))
            agree &= equal.to_numpy()
        if agree.all():
            return places, rows, of_wanted
        return (places[agree], rows_where(rows, pl.Series(agree)), of_wanted[agree]) if agree.any() else None

    def due(self, column: str, bound: int) -> Places:
        """The places of the rows alive whose ``column`` is ``bound`` or less."""
        hit = self.index.due[column] <= bound
        alive = self.index.alive
        places: Places = np.flatnonzero(hit if alive is None else hit & alive)
        return places

    def when_due(self, column: str, bound: int) -> npt.NDArray[np.int64]:
        """The values of ``column`` up to ``bound`` among the rows alive."""
        return self.index.due[column][self.due(column, bound)]

    def rows(self, places: Places) -> Iterator[pl.DataFrame]:
        """The rows at ascending places, which may repeat, piece by piece."""
        return (rows if within is None else rows[within] for rows, within in self.pieces.at(places))

    def alive(self) -> Iterator[pl.DataFrame]:
        """The rows alive."""
        mask = self.index.alive
        return self.pieces.all() if mask is None else self.rows(np.flatnonzero(mask))

    def alive_once(self) -> Iterator[pl.DataFrame]:
        """The rows alive, for a reader that reads them once: they don't stay in memory, nor do the facts about them."""
        if not self.masked:
            return self.pieces.all(once=True)
        return self._unmasked(self._read_mask() if self._index is None else self._index.alive)

    def _unmasked(self, mask: Mask | None) -> Iterator[pl.DataFrame]:
        begin = 0
        for rows in self.pieces.all(once=True):
            yield rows if mask is None else rows_where(rows, pl.Series(mask[begin : begin + rows.height]))
            begin += rows.height

    def kill(self, places: Places) -> None:
        """Mark these rows as dead. No place may repeat."""
        if not len(places):
            return
        index = self.index
        if index.alive is None:
            index.alive = np.ones(self.pieces.rows, np.bool_)
        index.alive[places] = False
        self.living -= len(places)
        self.masked = self._masked_since_stored = True
        if self._lows is not None and any(
            int(values[places].min()) <= self._lows[name] for name, values in index.due.items()
        ):
            self._lows = None

    # -- in the database

    @property
    def index(self) -> _Index:
        """The facts about each row, read when they are first needed."""
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def write(self, writes: Writes) -> None:
        """Write what has changed."""
        number = self.pieces.number
        if not self.pieces.stored:
            begin = 0
            for piece, end in enumerate(self._ends.tolist()):
                columns = [self.index.hashes, *self.index.due.values()]
                if end > begin:
                    value = b"".join(_little(column[begin:end]).tobytes() for column in columns)
                    writes.put(_INDEX.pack(b"i", number, piece), value)
                begin = end
            self.pieces.write(writes)
        if self._masked_since_stored and self.index.alive is not None:
            writes.put(_MASK.pack(b"m", number), np.packbits(self.index.alive).tobytes())
            self._masked_since_stored = False

    def erase(self, writes: Writes) -> None:
        """Remove it from the database."""
        for piece in range(len(self.pieces)):
            writes.delete(_INDEX.pack(b"i", self.pieces.number, piece))
        writes.delete(_MASK.pack(b"m", self.pieces.number))
        self.pieces.erase(writes)

    def _read_index(self) -> _Index:
        number, heights = self.pieces.number, self.pieces.heights
        parts = []
        for piece, height in enumerate(heights):
            if height:
                value = self._read(_INDEX.pack(b"i", number, piece), 8 * height * (1 + len(self._due)))
                parts.append(np.frombuffer(value, "<u8").reshape(-1, height))
        columns = np.concatenate(parts, axis=1) if parts else np.empty((1 + len(self._due), 0), np.uint64)
        due = {column: values.view(np.int64) for column, values in zip(self._due, columns[1:], strict=True)}
        index = _Index(columns[0], due)
        if self.masked:
            index.alive = self._read_mask()
        return index

    def _read_mask(self) -> Mask:
        mask = self._read(_MASK.pack(b"m", self.pieces.number), -(-self.pieces.rows // 8))
        return np.unpackbits(np.frombuffer(mask, np.uint8), count=self.pieces.rows).astype(np.bool_)

    def _read(self, key: bytes, size: int) -> bytes:
        value = None if self._kept.view is None else self._kept.view.get(key)
        if value is None or len(value) != size:
            raise CorruptLogError(
                f"store {self._kept.store!r}: a part of segment {self.pieces.number} is missing in the local state",
                hint="delete the task's local state: it is rebuilt from the changelog",
            )
        return value


def ranges(segments: Sequence[Segment]) -> Iterator[pl.DataFrame]:
    """All rows of several segments, one range of hashes at a time: no two frames share a key."""
    for part in _ranges(segments):
        if part is not None:
            yield part.drop(_HASH)


def _ranges(segments: Sequence[Segment]) -> Iterator[PieceRows]:
    living = sum(segment.living for segment in segments)
    bits = max([bits_for(living), *(segment.pieces.bits for segment in segments)])
    return together([_dealt(segment, bits) for segment in segments])


def _dealt(segment: Segment, bits: int) -> Iterator[PieceRows]:
    index, begin = segment.index, 0
    finer = bits - segment.pieces.bits
    for number, height in enumerate(segment.pieces.heights):
        end = begin + height
        rows = segment.pieces.piece(number)
        if rows is None:
            yield from [None] * (1 << finer)
            continue
        rows = rows.with_columns(pl.Series(_HASH, index.hashes[begin:end], dtype=pl.UInt64))
        if index.alive is not None:
            rows = rows.filter(pl.Series(index.alive[begin:end]))
        yield from _cut(rows, bits, number << finer, 1 << finer)
        begin = end


def _cut(rows: pl.DataFrame, bits: int, first: int = 0, number: int | None = None) -> list[PieceRows]:
    """Cut rows in the order of their hashes by the first ``bits`` bits: into ``number`` parts, from ``first`` on."""
    number = 1 << bits if number is None else number
    if number == 1:
        return [rows if rows.height else None]
    bounds = (np.arange(first + 1, first + number, dtype=np.uint64)) << np.uint64(64 - bits)
    inner = np.searchsorted(rows.get_column(_HASH).to_numpy(), bounds, "left").tolist()
    cuts = [0, *inner, rows.height]
    return [rows.slice(a, b - a) if b > a else None for a, b in pairwise(cuts)]


def _little(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.astype(column.dtype.newbyteorder("<"), copy=False)
