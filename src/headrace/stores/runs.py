"""Runs: aggregation state as a few DataFrames, ordered by age, instead of one entry per key.

Aggregates that merge (counts, sums, ...) need no look-up of old values. New partial results are a new *run*. Runs are
merged when they are read, or when neighbours are of like size (``stores.tiers``). Two operations are logged: ``add`` a
run, and remove all rows with ``time <= bound``. Taking some rows of a large run records the time up to which its rows
are gone: they are left out when the run is read, and disappear when it is merged.

Rows that are looked up have a column with the hash of their keys. Their runs are in its order, and each has an index in
memory (``HashIndex``), 10 bytes a row: the whole hash, since half of it would match many rows by chance, and the time
in steps of 1/65,536 of the time that the run covers. In the database the index is one value; where it is missing, or of
an unknown format, it is computed from the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.rows.given import concat_rows
from headrace.rows.hashing import Hashes, hash_rows
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.stores.base import Share, StateForm, StateStore, View, Writes, readable, rows_in_portions, unknown_change
from headrace.stores.matching import spread
from headrace.stores.pieces import (
    PIECE_ROWS,
    VALUE_ROWS_MAX,
    HashOf,
    Kept,
    PieceRows,
    Pieces,
    Places,
    bits_for,
    deal,
    together,
)
from headrace.stores.tiers import EMPTY, Crowd, Manifest, Tiers, crowd, lot_rows

_LEFT_OUT = 7
_WORTH_IT = 0.8  # a merge that leaves at most this share of its rows was worth its time


class Worth:
    """Whether it is worth its time to merge partial results. ``always``: merges do more than save rows.

    A merge of rows with mostly different keys takes long and leaves about as many. So if the last one did, the next
    ones of as many rows are left out, and then it is tried again. Each size, by powers of two, is judged by itself.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._to_leave_out: dict[int, int] = {}

    def wanted(self, rows: int) -> bool:
        """Whether to merge so many rows. If not, that counts as one left out."""
        left = self._to_leave_out.get(rows.bit_length(), 0)
        self._to_leave_out[rows.bit_length()] = max(0, left - 1)
        return self._always or left == 0

    def merged(self, before: int, after: int) -> None:
        self._to_leave_out[before.bit_length()] = _LEFT_OUT if after > _WORTH_IT * before else 0


Times = npt.NDArray[np.int64]
_KEY = struct.Struct(">cQ")
_HEAD = struct.Struct("<qBB6x")
_FORMAT = 1
_ROW_BYTES = 10
_AGE_BITS = 16
_AGE_MAX = (1 << _AGE_BITS) - 1
_ALL_BITS = (1 << 64) - 1


@dataclass(slots=True)
class _Columns:
    """Hashes, ascending, and ages: the time since ``first``, in steps of 2^``shift`` milliseconds."""

    hashes: Hashes
    ages: npt.NDArray[np.uint16]
    first: int
    shift: int

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
        return (time - self.first) >> self.shift


class HashIndex:
    """Finds the places of rows in a run by hash and time."""

    def __init__(self, kept: Kept, pieces: Pieces, hash_: str, time: str) -> None:
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
        columns = self._read()
        lowest, highest = columns.age(low), columns.age(high)
        if lowest > _AGE_MAX or highest < 0:
            return np.empty(0, np.int64)
        ages = columns.ages
        places: Places = np.flatnonzero((ages >= max(0, lowest)) & (ages <= min(highest, _AGE_MAX)))
        return places

    def write(self, writes: Writes) -> None:
        if not self._pieces.stored:
            writes.put(_KEY.pack(b"i", self._pieces.number), self._read().written())

    def erase(self, writes: Writes) -> None:
        writes.delete(_KEY.pack(b"i", self._pieces.number))

    def _read(self) -> _Columns:
        if self._columns is None:
            view = self._kept.view if self._pieces.stored else None
            value = None if view is None else view.get(_KEY.pack(b"i", self._pieces.number))
            stored = None if value is None else _Columns.read(value, self._pieces.rows)
            self._columns = self._from_rows() if stored is None else stored
        return self._columns

    def _from_rows(self) -> _Columns:
        names = (self._hash, self._time)
        columns = [[piece.get_column(name).to_numpy() for name in names] for piece in self._pieces.all()]
        hashes, times = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        return _Columns.of(hashes, times)


def places_of(held: Hashes, wanted: Hashes) -> Places:
    """Both ascend, and ``wanted`` has no duplicates."""
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


_ADD = b"\x01"
_TAKE = b"\x02"
_TAKEN = b"\x03"  # Rows were taken before they moved to this store. Rows that are here stay.
_BOUND = struct.Struct(">q")
_FRESH_ROWS_MAX = 1 << 16
_FRESH_RUNS_MAX = 64
_MERGED_ROWS_MAX = 1 << 21
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_RUNS_FORMAT = 5
Merge = Callable[[pl.DataFrame], pl.DataFrame]
Span = tuple[int | None, int | None]


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    heights: list[int]
    low: int
    high: int
    gone_to: int | None = None


class _Manifest(Manifest, frozen=True, kw_only=True):
    format: int = _RUNS_FORMAT
    runs: list[_Entry]
    taken: int | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """``low`` and ``high`` bound its times. Rows up to ``gone_to`` are removed, although the pieces still have them."""

    pieces: Pieces
    low: int
    high: int
    gone_to: int | None = None
    index: HashIndex | None = None

    @property
    def living(self) -> int:
        return self.pieces.rows

    def write(self, writes: Writes) -> None:
        if self.index is not None:
            self.index.write(writes)
        self.pieces.write(writes)

    def erase(self, writes: Writes) -> None:
        if self.index is not None:
            self.index.erase(writes)
        self.pieces.erase(writes)

    def overlaps(self, low: int, high: int) -> bool:
        return self.low <= high and self.high >= low

    def from_(self, low: int) -> int:
        return low if self.gone_to is None else max(low, self.gone_to + 1)

    def within(self, time: str, low: int | None, bound: int | None) -> pl.Expr | None:
        """Which rows aren't gone and have ``low <= time <= bound``; None: all that the pieces have."""
        tests = []
        if self.gone_to is not None:
            tests.append(pl.col(time) > self.gone_to)
        if low is not None and self.low < low:
            tests.append(pl.col(time) >= low)
        if bound is not None and self.high > bound:
            tests.append(pl.col(time) <= bound)
        return pl.all_horizontal(tests) if tests else None


class Runs(StateStore):
    """Rows under a time column that merge by key. ``merge`` turns any concatenation of runs into one run.

    Without ``keys`` runs aren't dealt into pieces, and are merged whole. ``hashed``, instead of ``keys``, is a column
    with a hash of the keys: rows are added, and merged, in its order. ``conform`` turns rows that an earlier version of
    the app added into rows of this version, or refuses them. ``shown`` turns merged rows into what people read.
    """

    def __init__(
        self,
        id_: str,
        time: str,
        merge: Merge,
        keys: Sequence[str] = (),
        conform: Merge | None = None,
        *,
        hashed: str | None = None,
        form: StateForm | None = None,
        shown: Merge = readable,
    ) -> None:
        self.id = id_
        self._time = time
        self._shown = shown
        self._merge = merge
        self._hashed = hashed
        self._hash_of: HashOf | None = None
        if hashed is not None:
            self._hash_of = lambda rows: rows.get_column(hashed).to_numpy()
        elif keys:
            self._hash_of = lambda rows: hash_rows(rows, keys)
        self._kept = Kept(id_, None, conform, sliced=hashed is not None)
        self._tiers: Tiers[_Run] = Tiers(self._kept, _MERGED_ROWS_MAX, self._merged, form, wait=hashed is None)
        self._fresh: list[pl.DataFrame] = []
        self._fresh_rows = 0
        self._fresh_merged = 0
        self._worth = Worth(always=hashed is not None)  # those merges put the rows in order, too
        self._log: list[bytes] = []
        self.earliest: int | None = None
        """The lowest time held, None when empty. After ``take_parts`` it may be too low, never too high."""
        self.taken: int | None = None  # the highest bound up to which rows were ever taken or dropped

    @property
    def latest(self) -> int | None:
        highest = [run.high for run in self._tiers.parts]
        highest += [self._bounds(frame)[1] for frame in self._fresh]
        return max(highest, default=None)

    def add(self, run: pl.DataFrame) -> None:
        if not run.height:
            return
        low, _ = self._bounds(run)
        self.earliest = low if self.earliest is None else min(low, self.earliest)
        self._fresh.append(run)
        self._fresh_rows += run.height
        if self._fresh_rows > max(_FRESH_ROWS_MAX, 2 * self._fresh_merged) or len(self._fresh) > _FRESH_RUNS_MAX:
            self._merge_fresh()

    def take_parts(self, bound: int) -> Iterator[pl.DataFrame]:
        """Remove and return, merged, rows up to ``bound``; the caller must read them before the next ``persist``."""
        if self.earliest is None or self.earliest > bound:
            return iter(())
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        return self._merged_parts(self._remove(bound), (), (None, bound), 1)

    def drop(self, bound: int) -> None:
        self.take_parts(bound)

    def held(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """Unmerged frames, which may hold other times, too."""
        for run in self._tiers.parts:
            if run.overlaps(low, high):
                yield from self._there(run)
        yield from self._fresh

    def matching(self, wanted: Hashes, low: int, high: int) -> Iterator[pl.DataFrame]:
        """Rows with one of these ascending hashes, perhaps with others; unmerged, in hash order, older runs first."""
        for run in self._tiers.parts:
            if run.index is not None and run.overlaps(low, high):
                yield from self._at(run, run.index.places(wanted, run.from_(low), high))
        for frame in self._fresh:
            places = places_of(frame.get_column(self._hashed or "").to_numpy(), wanted)
            if len(places):
                yield frame[places]

    def between(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        within = pl.col(self._time).is_between(low, high)
        for run in self._tiers.parts:
            if run.index is not None and run.overlaps(low, high):
                for rows in self._at(run, run.index.between(run.from_(low), high)):
                    yield rows.filter(within)
        for frame in self._fresh:
            yield frame.filter(within)

    def read_parts(self, low: int, bound: int, widening: int = 1) -> Iterator[pl.DataFrame]:
        """Merged, in frames that share no keys; the rows stay. ``widening``: how many rows the reader makes of each."""
        if self.earliest is None or self.earliest > bound:
            return iter(())
        found = [run for run in self._tiers.parts if run.overlaps(low, bound)]
        within = pl.col(self._time).is_between(low, bound)
        fresh = [frame.filter(within) for frame in self._fresh]
        return self._merged_parts(found, fresh, (low, bound), widening)

    def crowd(self, low: int, bound: int, widening: int = 1) -> Crowd:
        rows = sum(run.pieces.rows for run in self._tiers.parts if run.overlaps(low, bound)) + self._fresh_rows
        if rows * widening <= lot_rows():
            return EMPTY
        times = (frame.get_column(self._time) for frame in self.held(low, bound))
        return crowd(each.filter(each.is_between(low, bound)) for each in times)

    def retire(self, bound: int) -> None:
        """Remember the bound even if there were no rows."""
        if self.earliest is None or (bound == self.taken and self.earliest > bound):
            return
        if self.earliest <= bound:
            self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        self._remove(bound)

    def scan(self) -> pl.DataFrame | None:
        frames = list(self.held(_LOWEST, _HIGHEST))
        return self._merge(concat_rows(frames)) if frames else None

    @override
    def entries(self) -> int:
        return sum(run.pieces.rows for run in self._tiers.parts) + self._fresh_rows

    @override
    def clear(self) -> None:
        self._tiers.clear()
        self._tiers.kept_form = None
        self._fresh, self._log = [], []
        self._fresh_rows = self._fresh_merged = 0
        self.earliest = None
        self.taken = None

    @override
    def take_changes(self, version: int) -> list[bytes]:
        del version  # a run is the same in whichever commit it becomes true
        self._settle()
        changes, self._log = self._log, []
        return [*self._tiers.form_change(), *changes] if changes else changes

    @override
    def apply(self, change: bytes) -> None:
        operation, body = change[:1], change[1:]
        if self._tiers.apply_form(operation, body):
            return
        if operation == _ADD:
            self._push(self._kept.conform(decode_rows(body)))
        elif operation == _TAKE:
            self._remove(_BOUND.unpack(body)[0])
        elif operation == _TAKEN:
            bound = _BOUND.unpack(body)[0]
            self.taken = bound if self.taken is None else max(bound, self.taken)
            self._tiers.changed = True
        else:
            raise unknown_change(f"store {self.id!r}", operation)

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        yield from self._tiers.whole_form()
        if self.taken is not None:
            yield _TAKEN + _BOUND.pack(self.taken)
        for run in self._tiers.parts:
            rows = self._there(run, once=True)
            mine = rows if share is None else (share.of(self.id, part) for part in rows)
            for part in rows_in_portions(mine, VALUE_ROWS_MAX):
                yield _ADD + encode_rows(part)

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        return map(self._shown, self.read_parts(_LOWEST, _HIGHEST))

    @override
    def attach(self, view: View) -> None:
        manifest = self._tiers.attach(view, _Manifest, _RUNS_FORMAT)
        if manifest is not None:
            self._tiers.restore([self._attached(entry) for entry in manifest.runs])
            if self._tiers.other_columns:  # refuse rows that don't fit now, not when they are first read
                for run in self._tiers.parts:
                    next(run.pieces.all(), None)
            self.earliest = min((run.low for run in self._tiers.parts), default=None)
            self.taken = manifest.taken

    def _attached(self, entry: _Entry) -> _Run:
        pieces = Pieces(self._kept, entry.number, entry.heights)
        return _Run(pieces, entry.low, entry.high, entry.gone_to, self._index(pieces))

    @override
    def persist(self, writes: Writes) -> None:
        if self._tiers.changed:
            self._tiers.persist(writes, self._manifest)

    def _manifest(self) -> _Manifest:
        runs = [
            _Entry(number=r.pieces.number, heights=r.pieces.heights, low=r.low, high=r.high, gone_to=r.gone_to)
            for r in self._tiers.parts
        ]
        return _Manifest(runs=runs, taken=self.taken, form=self._tiers.kept_form)

    def _merged_parts(
        self, runs: Sequence[_Run], more: Sequence[pl.DataFrame], within: Span, widening: int
    ) -> Iterator[pl.DataFrame]:
        return (self._merge(part) for part in self._ranges(runs, more, within, widening) if part is not None)

    def _ranges(
        self, runs: Sequence[_Run], more: Sequence[pl.DataFrame] = (), within: Span = (None, None), widening: int = 1
    ) -> Iterator[PieceRows]:
        rows = sum(run.pieces.rows for run in runs) + sum(map(len, more))
        bits = self._bits(rows * widening, runs)
        flows = [self._flow(run, *within, bits) for run in runs]
        flows += [iter(deal(frame, self._hash_of, 0, bits)) for frame in more]
        return together(flows)

    def _there(self, run: _Run, *, once: bool = False) -> Iterator[pl.DataFrame]:
        there = run.within(self._time, None, None)
        return (piece if there is None else piece.filter(there) for piece in run.pieces.all(once=once))

    def _flow(self, run: _Run, low: int | None, bound: int | None, bits: int) -> Iterator[PieceRows]:
        within = run.within(self._time, low, bound)
        dealt = run.pieces.dealt(self._hash_of, bits)
        if within is None:
            return dealt
        return (part if part is None else part.filter(within) for part in dealt)

    def _bits(self, rows: int, runs: Sequence[_Run]) -> int:
        least = max((run.pieces.bits for run in runs), default=0)
        return max(least, bits_for(rows)) if self._hash_of is not None else 0

    def _bounds(self, run: pl.DataFrame) -> tuple[int, int]:
        times = run.get_column(self._time)
        low, high = times.min(), times.max()
        if not isinstance(low, int) or not isinstance(high, int):
            raise TypeError(f"store {self.id!r}: rows without a time")
        return low, high

    def _merge_fresh(self) -> None:
        if len(self._fresh) > 1:
            rows = concat_rows(self._fresh)
            if self._worth.wanted(before := rows.height):
                rows = self._merge(rows)
                self._worth.merged(before, rows.height)
            self._fresh, self._fresh_rows = [rows], rows.height
        self._fresh_merged = self._fresh_rows

    def _settle(self) -> None:
        if not self._fresh:
            return
        self._merge_fresh()
        frame = self._fresh[0]
        self._fresh, self._fresh_rows, self._fresh_merged = [], 0, 0
        self._log += [_ADD + encode_rows(part) for part in frame.iter_slices(VALUE_ROWS_MAX)]
        self._push(frame)

    def _push(self, frame: pl.DataFrame) -> None:
        self._tiers.push(self._run(deal(frame, self._hash_of, 0, self._bits(frame.height, ()))))
        self.earliest = min((run.low for run in self._tiers.parts), default=None)

    def _merged(self, runs: Sequence[_Run]) -> list[_Run]:
        rows = sum(run.living for run in runs)
        wanted = self._worth.wanted(rows)
        merged = [self._merge(part) if wanted and part is not None else part for part in self._ranges(runs)]
        if wanted:
            self._worth.merged(rows, sum(part.height for part in merged if part is not None))
        return [self._run(merged)] if any(part is not None for part in merged) else []

    def _run(self, parts: Sequence[PieceRows]) -> _Run:
        bounds = [self._bounds(part) for part in parts if part is not None]
        pieces = Pieces.of(self._kept, self._tiers.number(), parts)
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return _Run(pieces, low, high, index=self._index(pieces))

    def _index(self, pieces: Pieces) -> HashIndex | None:
        return None if self._hashed is None else HashIndex(self._kept, pieces, self._hashed, self._time)

    def _at(self, run: _Run, places: Places) -> Iterator[pl.DataFrame]:
        """Other rows may be among them. Small frames are concatenated."""
        there = run.within(self._time, None, None)
        waiting: list[pl.DataFrame] = []
        for piece, within in run.pieces.at(places):
            rows = piece if within is None or 2 * len(within) > piece.height else piece[within]
            waiting.append(rows if there is None else rows.filter(there))
            if sum(rows.height for rows in waiting) >= PIECE_ROWS:
                yield concat_rows(waiting)
                waiting = []
        if waiting:
            yield concat_rows(waiting)

    def _remove(self, bound: int) -> list[_Run]:
        """Doesn't even load runs that begin later."""
        taken, kept = [], []
        self.taken = bound if self.taken is None else max(bound, self.taken)
        for run in self._tiers.parts:
            if run.low > bound:
                kept.append(run)
                continue
            taken.append(run)
            rest = self._rest(run, bound)
            kept += [] if rest is None else [rest]
        self._tiers.replace(kept)
        self._tiers.changed = True
        lows = [run.low for run in kept] + [self._bounds(frame)[0] for frame in self._fresh]
        self.earliest = min(lows, default=None)
        return taken

    def _rest(self, run: _Run, bound: int) -> _Run | None:
        """A small run is rewritten."""
        if run.high <= bound:
            return None
        if run.pieces.bits:
            return _Run(run.pieces, bound + 1, run.high, bound, run.index)
        later = next(run.pieces.all()).filter(pl.col(self._time) > bound)
        return self._run([later]) if later.height else None
