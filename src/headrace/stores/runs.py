"""Runs: aggregation state as a few sorted-by-age DataFrames instead of one entry per key.

Aggregates that merge (counts, sums, ...) need not look old values up: new partial results are a new *run*,
and runs are merged when they are read, or when two neighbours are of like size (so the number of runs grows
with the logarithm of the entries, and each entry is merged a logarithmic number of times). Everything is
columnar: adding a batch of 10,000 keys costs no Python per key, and a checkpoint writes just the rows
that changed since the last one.

Two operations change it: ``add`` a run, and take all rows with ``time <= bound`` out of it (``take``, ``drop``,
``retire``). Both are logged. A large run is in pieces by the hash of its keys (``stores.pieces``), and so is what is
taken, read or merged: a range of hashes comes after the other, so that this needs little memory, however much it is.

On disk a manifest names the runs (``stores.runs_manifest``). A restart reads the manifest alone; a piece is read when
it is asked for. Taking some rows of a large run notes up to which time they are gone; they are left out when it is
read, and go when it is merged.

Rows that are to be looked up have a column with the hash of their keys: runs are in its order, and each has an index in
memory (``stores.hash_index``). So ``matching`` and ``between`` read only the slices that have what is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import Hashes, hash_rows
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import StateStore, View, Writes
from headrace.stores.hash_index import HashIndex, places_of
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
from headrace.stores.runs_manifest import Manifest, ManifestOfFormat1, RunEntry, read_manifest

_ADD = b"\x01"
_TAKE = b"\x02"
_BOUND = struct.Struct(">q")
_FRESH_ROWS_MAX = 1 << 16
_FRESH_RUNS_MAX = 64
_MERGED_ROWS_MAX = 1 << 21
"""Runs are not merged beyond this size: a merge must stay short, however large the state is."""

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1

Merge = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class _Run:
    """``low`` and ``high`` bound its times; rows up to ``gone_to`` are gone, though the pieces have them."""

    pieces: Pieces
    low: int
    high: int
    gone_to: int | None = None
    index: HashIndex | None = None

    def entry(self) -> RunEntry:
        """What a start must know of it."""
        pieces = self.pieces
        return RunEntry(
            number=pieces.number, heights=pieces.heights, low=self.low, high=self.high, gone_to=self.gone_to
        )

    def overlaps(self, low: int, high: int) -> bool:
        """Whether it may hold rows with ``low <= time <= high``."""
        return self.low <= high and self.high >= low

    def from_(self, low: int) -> int:
        """``low``, or where the times begin that aren't gone."""
        return low if self.gone_to is None else max(low, self.gone_to + 1)

    def within(self, time: str, low: int | None, bound: int | None) -> pl.Expr | None:
        """Which rows are there and have ``low <= time <= bound``; None: all that the pieces have."""
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

    ``keys`` are the columns that rows meet by: without them nothing is dealt, and everything is merged as a whole.
    ``conform`` makes rows that an earlier version of the app added what this one does, or refuses them.

    ``hashed``, instead of ``keys``, is a column that has a hash of these. Rows are added, and merged, in its order.
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
    ) -> None:
        self._id = id_
        self._time = time
        self._merge = merge
        self._hashed = hashed
        self._hash_of: HashOf | None = None
        if hashed is not None:
            self._hash_of = lambda rows: rows.get_column(hashed).to_numpy()
        elif keys:
            self._hash_of = lambda rows: hash_rows(rows, keys)
        self._conform = conform
        self._kept = Kept(id_, None, conform, sliced=hashed is not None)
        self._runs: list[_Run] = []
        self._next_number = 0
        self._gone: list[_Run] = []
        self._keys_of_format_1: list[bytes] = []
        self._fresh: list[pl.DataFrame] = []
        self._fresh_rows = 0
        self._fresh_merged = 0
        self._log: list[bytes] = []
        self._earliest: int | None = None
        self._changed = False
        self.taken: int | None = None
        """The highest bound up to which rows were ever taken or dropped."""

    @property
    @override
    def id(self) -> str:
        return self._id

    @property
    def earliest(self) -> int | None:
        """The lowest time held, None when empty. May be lower than the truth after ``take``, never higher."""
        return self._earliest

    @property
    def latest(self) -> int | None:
        """The highest time held, None when empty."""
        highest = [run.high for run in self._runs]
        highest += [self._bounds(frame)[1] for frame in self._fresh]
        return max(highest, default=None)

    def add(self, run: pl.DataFrame) -> None:
        """Take in partial results; they count from now on."""
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
        """As ``take``, in frames of different keys. The rows are gone when this returns, read or not.

        They have to be read before the next ``persist``.
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

    def frames(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """Everything that may hold rows with ``low <= time <= high``, as it is: other times are in it too."""
        for run in self._runs:
            if run.overlaps(low, high):
                there = run.within(self._time, None, None)
                for piece in run.pieces.all():
                    yield piece if there is None else piece.filter(there)
        yield from self._fresh

    def matching(self, wanted: Hashes, low: int, high: int) -> Iterator[pl.DataFrame]:
        """Everything with one of the hashes ``wanted`` and ``low <= time <= high``, as it is, older runs first.

        ``wanted`` ascends and has nothing twice. Others may be among those found. A frame is in the order of hashes.
        """
        for run in self._runs:
            if run.index is not None and run.overlaps(low, high):
                yield from self._at(run, run.index.places(wanted, run.from_(low), high))
        for frame in self._fresh:
            places = places_of(frame.get_column(self._hashed or "").to_numpy(), wanted)
            if len(places):
                yield frame[places]

    def between(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """Everything with ``low <= time <= high``, as it is. Only of rows that are looked up."""
        within = pl.col(self._time).is_between(low, high)
        for run in self._runs:
            if run.index is not None and run.overlaps(low, high):
                for rows in self._at(run, run.index.between(run.from_(low), high)):
                    yield rows.filter(within)
        for frame in self._fresh:
            yield frame.filter(within)

    def read_parts(self, low: int, bound: int, widening: int = 1) -> Iterator[pl.DataFrame]:
        """All rows with ``low <= time <= bound``, merged, in frames of different keys; they stay.

        What is taken before they are read shows nevertheless. ``widening``: how many rows the reader will make of each.
        """
        if self._earliest is None or self._earliest > bound:
            return iter(())
        found = [run for run in self._runs if run.low <= bound and run.high >= low]
        within = pl.col(self._time).is_between(low, bound)
        fresh = [frame.filter(within) for frame in self._fresh]
        return self._merged_parts(found, fresh, low, bound, widening)

    def retire(self, bound: int) -> None:
        """Remove all rows with ``time <= bound``; the bound is remembered, though there were none."""
        if self._earliest is None or (bound == self.taken and self._earliest > bound):
            return
        if self._earliest <= bound:
            self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        self._remove(bound)

    def scan(self) -> pl.DataFrame | None:
        """Everything held, merged; for inspection."""
        frames = list(self.frames(_LOWEST, _HIGHEST))
        return self._merge(concat_rows(frames)) if frames else None

    @override
    def entries(self) -> int:
        return sum(run.pieces.rows for run in self._runs) + self._fresh_rows

    @override
    def clear(self) -> None:
        for run in self._runs:
            self._leave(run)
        self._runs, self._fresh, self._log = [], [], []
        self._fresh_rows = self._fresh_merged = 0
        self._earliest = None
        self.taken = None
        self._changed = True

    # -- the changelog

    @override
    def take_changes(self, version: int) -> list[bytes]:
        del version  # a run is the same in whichever commit it becomes true
        self._settle()
        changes, self._log = self._log, []
        return changes

    @override
    def apply(self, change: bytes) -> None:
        operation, body = change[:1], change[1:]
        if operation == _ADD:
            self._push(self._kept.conform(decode_rows(body)))
        elif operation == _TAKE:
            self._remove(_BOUND.unpack(body)[0])
        else:
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    # -- the local database

    @override
    def attach(self, view: View) -> None:
        self._kept = Kept(self._id, view, self._conform, sliced=self._hashed is not None)
        manifest = read_manifest(self._id, view)
        if manifest is None:
            return
        if isinstance(manifest, ManifestOfFormat1):  # the next commit writes it anew
            self._keys_of_format_1 = manifest.keys()
            for rows in manifest.read(self._id, view):
                self._push(rows)
        else:
            self._runs = [self._attached(entry) for entry in manifest.runs]
            self._next_number = manifest.next_number
            self._earliest = min((run.low for run in self._runs), default=None)
        self.taken = manifest.taken

    def _attached(self, entry: RunEntry) -> _Run:
        pieces = Pieces(self._kept, entry.number, entry.heights)
        return _Run(pieces, entry.low, entry.high, entry.gone_to, self._index(pieces))

    @override
    def persist(self, writes: Writes) -> None:
        if not self._changed:
            return
        for key in self._keys_of_format_1:
            writes.delete(key)
        for run in self._gone:
            if run.index is not None:
                run.index.erase(writes)
            run.pieces.erase(writes)
        for run in self._runs:
            if run.index is not None:
                run.index.write(writes)
            run.pieces.write(writes)
        Manifest(runs=[run.entry() for run in self._runs], taken=self.taken).write(writes)
        self._gone, self._keys_of_format_1 = [], []
        self._changed = False

    # -- inside

    def _merged_parts(
        self, runs: Sequence[_Run], more: Sequence[pl.DataFrame], low: int | None, bound: int | None, widening: int
    ) -> Iterator[pl.DataFrame]:
        rows = sum(run.pieces.rows for run in runs) + sum(frame.height for frame in more)
        bits = self._bits(rows * widening, runs)
        flows = [self._flow(run, low, bound, bits) for run in runs]
        flows += [iter(deal(frame, self._hash_of, 0, bits)) for frame in more]
        for part in together(flows):
            if part is not None:
                yield self._merge(part)

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
            self._fresh = [self._merge(concat_rows(self._fresh))]
            self._fresh_rows = self._fresh[0].height
        self._fresh_merged = self._fresh_rows

    def _settle(self) -> None:
        """Log what is fresh and make it a run of the past."""
        if not self._fresh:
            return
        self._merge_fresh()
        frame = self._fresh[0]
        self._fresh, self._fresh_rows, self._fresh_merged = [], 0, 0
        self._log += [_ADD + encode_rows(part) for part in frame.iter_slices(VALUE_ROWS_MAX)]
        self._push(frame)

    def _push(self, frame: pl.DataFrame) -> None:
        self._runs.append(self._run(deal(frame, self._hash_of, 0, self._bits(frame.height, ()))))
        while len(self._runs) > 1:
            older, newer = self._runs[-2:]
            rows = older.pieces.rows + newer.pieces.rows
            if older.pieces.rows >= 2 * newer.pieces.rows or rows > _MERGED_ROWS_MAX:
                break
            bits = self._bits(rows, (older, newer))
            both = together([self._flow(run, None, None, bits) for run in (older, newer)])
            merged = [None if part is None else self._merge(part) for part in both]
            self._leave(older)
            self._leave(newer)
            self._runs[-2:] = [self._run(merged)] if any(part is not None for part in merged) else []
        self._earliest = min((run.low for run in self._runs), default=None)

    def _leave(self, run: _Run) -> None:
        if run.pieces.stored:
            self._gone.append(run)

    def _run(self, parts: Sequence[PieceRows]) -> _Run:
        bounds = [self._bounds(part) for part in parts if part is not None]
        pieces = Pieces.of(self._kept, self._next_number, parts)
        self._next_number += 1
        self._changed = True
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return _Run(pieces, low, high, index=self._index(pieces))

    def _index(self, pieces: Pieces) -> HashIndex | None:
        return None if self._hashed is None else HashIndex(self._kept, pieces, self._hashed, self._time)

    def _at(self, run: _Run, places: Places) -> Iterator[pl.DataFrame]:
        """The rows at these places that are still there, perhaps with others; small lots together."""
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
        """Take rows with ``time <= bound`` out of all runs. Runs that begin later aren't touched, or even loaded."""
        taken, kept = [], []
        self.taken = bound if self.taken is None else max(bound, self.taken)
        self._changed = True
        for run in self._runs:
            if run.low > bound:
                kept.append(run)
                continue
            taken.append(run)
            rest = self._rest(run, bound)
            if rest is None or rest.pieces is not run.pieces:
                self._leave(run)
            kept += [] if rest is None else [rest]
        self._runs = kept
        lows = [run.low for run in kept] + [self._bounds(frame)[0] for frame in self._fresh]
        self._earliest = min(lows, default=None)
        return taken

    def _rest(self, run: _Run, bound: int) -> _Run | None:
        """What is left of a run; a small one is written anew."""
        if run.high <= bound:
            return None
        if run.pieces.bits:
            return _Run(run.pieces, bound + 1, run.high, bound, run.index)
        later = next(run.pieces.all()).filter(pl.col(self._time) > bound)
        return self._run([later]) if later.height else None
