"""The index of a run: each row's hash, and roughly its time, in memory.

A run in the order of its rows' hashes is searched without its rows. A look-up finds the places of the rows it wants,
and reads only those (``stores.runs``). The index takes 10 bytes a row. It has the whole hash: with half of it, 20 keys
of a batch of 10,000 would match some of ten million rows by chance, and each would cost the reading of a piece. Times
are kept in steps of 1/65,536 of the time that the run covers, so rows from shortly before or after the wanted time may
be found, too.

In the database the index is one value beside the run's pieces, read when it is first needed. Where it is missing, or of
an unknown format, it is computed from the rows.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from headrace.serdes.hashing import Hashes
from headrace.stores.base import Writes
from headrace.stores.matching import spread
from headrace.stores.pieces import Kept, Pieces, Places

Times = npt.NDArray[np.int64]

_KEY = struct.Struct(">cQ")
_HEAD = struct.Struct("<qBB6x")
_FORMAT = 1
_ROW_BYTES = 10
_AGE_BITS = 16
_AGE_MAX = (1 << _AGE_BITS) - 1
_ALL_BITS = (1 << 64) - 1


class _Columns:
    """Hashes, ascending, and ages: the time since ``first``, in steps of 2^``shift`` milliseconds."""

    def __init__(self, hashes: Hashes, ages: npt.NDArray[np.uint16], first: int, shift: int) -> None:
        self.hashes = hashes
        self.ages = ages
        self.first = first
        self.shift = shift

    @classmethod
    def of(cls, hashes: Hashes, times: Times) -> _Columns:
        first = int(times.min())
        shift = max(0, (int(times.max()) - first).bit_length() - _AGE_BITS)
        # Two times may be further apart than an int64 reaches: unsigned numbers wrap as they should.
        since = times.astype(np.uint64) - np.uint64(first & _ALL_BITS)
        return cls(hashes, (since >> np.uint64(shift)).astype(np.uint16), first, shift)

    @classmethod
    def read(cls, value: bytes, rows: int) -> _Columns | None:
        if len(value) != _HEAD.size + _ROW_BYTES * rows:
            return None
        first, shift, format_ = _HEAD.unpack_from(value)
        if format_ != _FORMAT:
            return None
        hashes = np.frombuffer(value, "<u8", rows, _HEAD.size)
        ages = np.frombuffer(value, "<u2", rows, _HEAD.size + 8 * rows)
        return cls(hashes.astype(np.uint64, copy=False), ages.astype(np.uint16, copy=False), first, shift)

    def written(self) -> bytes:
        hashes, ages = self.hashes.astype("<u8", copy=False), self.ages.astype("<u2", copy=False)
        return _HEAD.pack(self.first, self.shift, _FORMAT) + hashes.tobytes() + ages.tobytes()

    def age(self, time: int) -> int:
        """The age of a time. It may be less than 0, or more than that of any row."""
        return (time - self.first) >> self.shift


class HashIndex:
    """Finds the places of rows in a run by hash and time."""

    def __init__(self, kept: Kept, pieces: Pieces, hash_: str, time: str) -> None:
        """``hash_`` and ``time`` are columns of the rows, which are in the order of ``hash_``."""
        self._kept = kept
        self._pieces = pieces
        self._hash = hash_
        self._time = time
        self._columns: _Columns | None = None

    def places(self, wanted: Hashes, low: int, high: int) -> Places:
        """The rows with one of the hashes ``wanted`` and ``low <= time <= high``, approximately, in ascending order."""
        columns = self._read()
        places = places_of(columns.hashes, wanted)
        lowest, highest = columns.age(low), columns.age(high)
        if not len(places) or (lowest <= 0 and highest >= _AGE_MAX):
            return places
        if lowest > _AGE_MAX or highest < 0:
            return places[:0]
        ages = columns.ages[places]
        return places[(ages >= max(0, lowest)) & (ages <= min(highest, _AGE_MAX))]

    def between(self, low: int, high: int) -> Places:
        """The rows with ``low <= time <= high``, approximately, in ascending order."""
        columns = self._read()
        lowest, highest = columns.age(low), columns.age(high)
        if lowest > _AGE_MAX or highest < 0:
            return np.empty(0, np.int64)
        ages = columns.ages
        places: Places = np.flatnonzero((ages >= max(0, lowest)) & (ages <= min(highest, _AGE_MAX)))
        return places

    def write(self, writes: Writes) -> None:
        """Write it. Call this before the pieces are written."""
        if not self._pieces.stored:
            writes.put(_KEY.pack(b"i", self._pieces.number), self._read().written())

    def erase(self, writes: Writes) -> None:
        """Remove it from the database."""
        writes.delete(_KEY.pack(b"i", self._pieces.number))

    def _read(self) -> _Columns:
        if self._columns is None:
            self._columns = self._stored() or self._from_rows()
        return self._columns

    def _stored(self) -> _Columns | None:
        view = self._kept.view if self._pieces.stored else None
        value = None if view is None else view.get(_KEY.pack(b"i", self._pieces.number))
        return None if value is None else _Columns.read(value, self._pieces.rows)

    def _from_rows(self) -> _Columns:
        columns = [
            (piece.get_column(self._hash).to_numpy(), piece.get_column(self._time).to_numpy())
            for piece in self._pieces.all()
        ]
        hashes, times = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        return _Columns.of(hashes, times)


def places_of(held: Hashes, wanted: Hashes) -> Places:
    """The places in ``held`` of the values in ``wanted``. Both ascend, and ``wanted`` has no duplicates."""
    if not len(held) or not len(wanted):
        return np.empty(0, np.int64)
    if len(held) < len(wanted):  # look up the shorter one in the longer
        near = np.minimum(np.searchsorted(wanted, held), len(wanted) - 1)
        places: Places = np.flatnonzero(wanted[near] == held)
        return places
    last = len(held) - 1
    starts: Places = np.searchsorted(held, wanted, "left")
    starts = starts[held[np.minimum(starts, last)] == wanted]
    repeated = (starts < last) & (held[np.minimum(starts + 1, last)] == held[starts])
    if not repeated.any():
        return starts
    counts = np.ones(len(starts), np.int64)
    counts[repeated] = np.searchsorted(held, held[starts[repeated]], "right") - starts[repeated]
    return spread(starts, counts)
