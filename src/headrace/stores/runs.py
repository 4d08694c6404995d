"""Runs: aggregation state as a few DataFrames, ordered by age, instead of one entry per key.

Aggregates that merge (counts, sums, ...) need no look-up of old values. New partial results are a new *run*. Runs are
merged when they are read, or when neighbours are of like size (``stores.tiers``). Everything is columnar: adding a
batch of 10,000 keys costs no Python per key, and a checkpoint writes only the rows that changed since the last one.

Two operations change the state, and both are logged: ``add`` a run, and remove all rows with ``time <= bound``
(``take``, ``drop``, ``retire``). A large run is in pieces by the hash of its keys (``stores.pieces``). Taking, reading
and merging process one range of hashes at a time, so they need little memory for any number of rows.

A restart reads the manifest alone; a piece is read when it is asked for. Taking some rows of a large run records the
time up to which its rows are gone. They are left out when the run is read, and disappear when it is merged.

Rows that are looked up have a column with the hash of their keys. Their runs are in its order, and each run has an
index in memory (``stores.hash_index``), so ``matching`` and ``between`` read only the slices they need.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl
from typing_extensions import override

from headrace.serdes.hashing import Hashes, hash_rows
from headrace.serdes.ipc import decode_rows, encode_rows
from headrace.serdes.rows import concat_rows
from headrace.stores.base import StateStore, View, Writes
from headrace.stores.form import StateForm
from headrace.stores.hash_index import HashIndex, places_of
from headrace.stores.lots import EMPTY, Crowd, crowd, lot_rows
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
from headrace.stores.portions import rows_in_portions
from headrace.stores.readable import readable
from headrace.stores.share import Share
from headrace.stores.tiers import Manifest, Tiers, unknown_change
from headrace.stores.worth import Worth

_ADD = b"\x01"
_TAKE = b"\x02"
_TAKEN = b"\x03"
"""Rows were taken before they moved to this store. Rows that are here stay."""
_BOUND = struct.Struct(">q")
_FRESH_ROWS_MAX = 1 << 16
_FRESH_RUNS_MAX = 64
_MERGED_ROWS_MAX = 1 << 21
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1

_FORMAT = 5

Merge = Callable[[pl.DataFrame], pl.DataFrame]


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest says of a run."""

    number: int
    heights: list[int]
    low: int
    high: int
    gone_to: int | None = None


class _Manifest(Manifest, frozen=True, kw_only=True):
    format: int = _FORMAT
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
        """How many rows the pieces have."""
        return self.pieces.rows

    def entry(self) -> _Entry:
        """What the manifest says of it."""
        pieces = self.pieces
        return _Entry(number=pieces.number, heights=pieces.heights, low=self.low, high=self.high, gone_to=self.gone_to)

    def write(self, writes: Writes) -> None:
        """Write it, if it isn't in the database yet."""
        if self.index is not None:
            self.index.write(writes)
        self.pieces.write(writes)

    def erase(self, writes: Writes) -> None:
        """Remove it from the database."""
        if self.index is not None:
            self.index.erase(writes)
        self.pieces.erase(writes)

    def overlaps(self, low: int, high: int) -> bool:
        """Whether it may hold rows with ``low <= time <= high``."""
        return self.low <= high and self.high >= low

    def from_(self, low: int) -> int:
        """``low``, or the first time that isn't gone."""
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

    ``keys`` are the columns that rows are merged by. Without them runs aren't dealt into pieces, and are merged whole.
    ``conform`` turns rows that an earlier version of the app added into rows of this version, or refuses them.
    ``form`` is that of the rows.

    ``shown`` turns merged rows into what people read.

    ``hashed``, instead of ``keys``, is a column with a hash of the keys. Rows are added, and merged, in its order.
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
        self._id = id_
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
        self._earliest: int | None = None
        self.taken: int | None = None
        """The highest bound up to which rows were ever taken or dropped."""

    @property
    @override
    def id(self) -> str:
        return self._id

    @property
    def earliest(self) -> int | None:
        """The lowest time held, None when empty. After ``take`` it may be too low, never too high."""
        return self._earliest

    @property
    def latest(self) -> int | None:
        """The highest time held, None when empty."""
        highest = [run.high for run in self._tiers.parts]
        highest += [self._bounds(frame)[1] for frame in self._fresh]
        return max(highest, default=None)

    def add(self, run: pl.DataFrame) -> None:
        """Add partial results."""
        if not run.height:
            return
        low, _ = self._bounds(run)
        self._earliest = low if self._earliest is None else min(low, self._earliest)
        self._fresh.append(run)
        self._fresh_rows += run.height
        if self._fresh_rows > max(_FRESH_ROWS_MAX, 2 * self._fresh_merged) or len(self._fresh) > _FRESH_RUNS_MAX:
            self._merge_fresh()

    def take(self, bound: int) -> pl.DataFrame | None:
        """Remove and return (merged) all rows with ``time <= bound``; None when there are none."""
        parts = list(self.take_parts(bound))
        return concat_rows(parts) if parts else None

    def take_parts(self, bound: int) -> Iterator[pl.DataFrame]:
        """Like ``take``, in frames that share no keys. The rows are removed when this returns, read or not.

        The caller has to read them before the next ``persist``.
        """
        if self._earliest is None or self._earliest > bound:
            return iter(())
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        return self._merged_parts(self._remove(bound), (), None, bound, 1)

    def drop(self, bound: int) -> None:
        """Remove all rows with ``time <= bound``."""
        if self._earliest is not None and self._earliest <= bound:
            self._settle()
            self._log.append(_TAKE + _BOUND.pack(bound))
            self._remove(bound)

    def held(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """All frames that may hold rows with ``low <= time <= high``, unmerged. They may hold other times, too."""
        for run in self._tiers.parts:
            if run.overlaps(low, high):
                yield from self._there(run)
        yield from self._fresh

    def matching(self, wanted: Hashes, low: int, high: int) -> Iterator[pl.DataFrame]:
        """All rows with one of the hashes ``wanted`` and ``low <= time <= high``, unmerged, older runs first.

        ``wanted`` ascends and has no duplicates. Other rows may be among those found. Frames are in hash order.
        """
        for run in self._tiers.parts:
            if run.index is not None and run.overlaps(low, high):
                yield from self._at(run, run.index.places(wanted, run.from_(low), high))
        for frame in self._fresh:
            places = places_of(frame.get_column(self._hashed or "").to_numpy(), wanted)
            if len(places):
                yield frame[places]

    def between(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """All rows with ``low <= time <= high``, unmerged. Only for stores with ``hashed``."""
        within = pl.col(self._time).is_between(low, high)
        for run in self._tiers.parts:
            if run.index is not None and run.overlaps(low, high):
                for rows in self._at(run, run.index.between(run.from_(low), high)):
                    yield rows.filter(within)
        for frame in self._fresh:
            yield frame.filter(within)

    def read_parts(self, low: int, bound: int, widening: int = 1) -> Iterator[pl.DataFrame]:
        """All rows with ``low <= time <= bound``, merged, in frames that share no keys. They stay in the store.

        Rows that are taken before they are read still show. ``widening``: how many rows the reader makes of each.
        """
        if self._earliest is None or self._earliest > bound:
            return iter(())
        found = [run for run in self._tiers.parts if run.low <= bound and run.high >= low]
        within = pl.col(self._time).is_between(low, bound)
        fresh = [frame.filter(within) for frame in self._fresh]
        return self._merged_parts(found, fresh, low, bound, widening)

    def crowd(self, low: int, bound: int, widening: int = 1) -> Crowd:
        """How many rows, unmerged, there are at each time with ``low <= time <= bound``; empty if all fit in one lot.

        ``widening`` is as for ``read_parts``.
        """
        rows = sum(run.pieces.rows for run in self._tiers.parts if run.overlaps(low, bound)) + self._fresh_rows
        if rows * widening <= lot_rows():
            return EMPTY
        times = (frame.get_column(self._time) for frame in self.held(low, bound))
        return crowd(each.filter(each.is_between(low, bound)) for each in times)

    def retire(self, bound: int) -> None:
        """Remove all rows with ``time <= bound``, and remember the bound even if there were none."""
        if self._earliest is None or (bound == self.taken and self._earliest > bound):
            return
        if self._earliest <= bound:
            self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        self._remove(bound)

    def scan(self) -> pl.DataFrame | None:
        """Everything held, merged; for inspection."""
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
        self._earliest = None
        self.taken = None

    # -- the changelog

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
            raise unknown_change(self._id, operation)

    @override
    def whole(self, share: Share | None = None) -> Iterator[bytes]:
        yield from self._tiers.whole_form()
        if self.taken is not None:
            yield _TAKEN + _BOUND.pack(self.taken)
        for run in self._tiers.parts:
            rows = self._there(run, once=True)
            mine = rows if share is None else (share.of(self._id, part) for part in rows)
            for part in rows_in_portions(mine, VALUE_ROWS_MAX):
                yield _ADD + encode_rows(part)

    @override
    def frames(self) -> Iterator[pl.DataFrame]:
        return map(self._shown, self.read_parts(_LOWEST, _HIGHEST))

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        manifest = self._tiers.attach(view, _Manifest, _FORMAT)
        if manifest is not None:
            self._tiers.restore([self._attached(entry) for entry in manifest.runs])
            if self._tiers.other_columns:  # refuse rows that don't fit now, not when they are first read
                for run in self._tiers.parts:
                    next(run.pieces.all(), None)
            self._earliest = min((run.low for run in self._tiers.parts), default=None)
            self.taken = manifest.taken

    def _attached(self, entry: _Entry) -> _Run:
        pieces = Pieces(self._kept, entry.number, entry.heights)
        return _Run(pieces, entry.low, entry.high, entry.gone_to, self._index(pieces))

    @override
    def persist(self, writes: Writes) -> None:
        if self._tiers.changed:
            self._tiers.persist(
                writes,
                lambda: _Manifest(
                    runs=[run.entry() for run in self._tiers.parts], taken=self.taken, form=self._tiers.kept_form
                ),
            )

    # -- inside

    def _merged_parts(
        self, runs: Sequence[_Run], more: Sequence[pl.DataFrame], low: int | None, bound: int | None, widening: int
    ) -> Iterator[pl.DataFrame]:
        return (self._merge(part) for part in self._ranges(runs, more, (low, bound), widening) if part is not None)

    def _ranges(
        self,
        runs: Sequence[_Run],
        more: Sequence[pl.DataFrame] = (),
        within: tuple[int | None, int | None] = (None, None),
        widening: int = 1,
    ) -> Iterator[PieceRows]:
        """The rows of each range of hashes."""
        rows = sum(run.pieces.rows for run in runs) + sum(map(len, more))
        bits = self._bits(rows * widening, runs)
        flows = [self._flow(run, *within, bits) for run in runs]
        flows += [iter(deal(frame, self._hash_of, 0, bits)) for frame in more]
        return together(flows)

    def _there(self, run: _Run, *, once: bool = False) -> Iterator[pl.DataFrame]:
        """The rows of a run that aren't gone, piece by piece."""
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
            raise TypeError(f"store {self._id!r}: rows without a time")
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
        """Log the fresh rows and make a run of them."""
        if not self._fresh:
            return
        self._merge_fresh()
        frame = self._fresh[0]
        self._fresh, self._fresh_rows, self._fresh_merged = [], 0, 0
        self._log += [_ADD + encode_rows(part) for part in frame.iter_slices(VALUE_ROWS_MAX)]
        self._push(frame)

    def _push(self, frame: pl.DataFrame) -> None:
        self._tiers.push(self._run(deal(frame, self._hash_of, 0, self._bits(frame.height, ()))))
        self._earliest = min((run.low for run in self._tiers.parts), default=None)

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
        """The rows at these places that aren't gone, perhaps with others. Small frames are concatenated."""
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
        """Remove rows with ``time <= bound`` from all runs. Runs that begin later aren't even loaded."""
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
        self._earliest = min(lows, default=None)
        return taken

    def _rest(self, run: _Run, bound: int) -> _Run | None:
        """What is left of a run. A small run is rewritten."""
        if run.high <= bound:
            return None
        if run.pieces.bits:
            return _Run(run.pieces, bound + 1, run.high, bound, run.index)
        later = next(run.pieces.all()).filter(pl.col(self._time) > bound)
        return self._run([later]) if later.height else None
