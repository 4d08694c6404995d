"""Runs: aggregation state as a few sorted-by-age DataFrames instead of one entry per key.

Aggregates that merge (counts, sums, ...) need not look old values up: new partial results are a new *run*,
and runs are merged when they are read, or when two neighbours are of like size (so the number of runs grows
with the logarithm of the entries, and each entry is merged a logarithmic number of times). Everything is
columnar: adding a batch of 10,000 keys costs no Python per key, and a checkpoint writes just the rows
that changed since the last one.

Two operations change it: ``add`` a run, and take all rows with ``time <= bound`` out of it (``take``, ``drop``,
``retire``). Both are logged. What is taken or read can be much; then it comes in several frames, each with other
keys, so that merging it needs little more memory than the rows themselves.

On disk a run is a few values of the local database, and a manifest names the runs. A restart reads the manifest
alone; a run is loaded when it is merged or taken from, and let go again when too many are in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import concat_rows, decode_rows, encode_rows
from headrace.stores.base import View, Writes

_ADD = b"\x01"
_TAKE = b"\x02"
_BOUND = struct.Struct(">q")
_FRESH_ROWS_MAX = 1 << 16
_FRESH_RUNS_MAX = 64
_PIECE_ROWS_MAX = 1 << 18  # one record of the changelog, one value of the database: both have a greatest size
_MERGED_ROWS_MAX = 1 << 21
"""Runs are not merged beyond this size: a merge must stay short, however large the state is."""
_CACHED_ROWS_MAX = 1 << 21
_PART_ROWS_MAX = 1 << 20
_PARTS_MAX = 1 << 8
"""What is taken or read is merged in parts of so many rows, about, and so many parts at most."""

_MANIFEST = b"manifest"
_MANIFEST_FORMAT = 1
_PIECE = struct.Struct(">cQI")

Merge = Callable[[pl.DataFrame], pl.DataFrame]


class _RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    rows: int
    low: int
    high: int
    pieces: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = _MANIFEST_FORMAT
    runs: list[_RunEntry]
    taken: int | None = None


_MANIFEST_DECODER = msgspec.json.Decoder(_Manifest)


@dataclass(slots=True, eq=False)
class _Run:
    """A run: in memory (``frame``), on disk (``stored``), or both. ``low`` and ``high`` bound its times."""

    number: int
    rows: int
    low: int
    high: int
    pieces: int
    frame: pl.DataFrame | None
    stored: bool = False


class Runs:
    """Rows under a time column that merge by key. ``merge`` turns any concatenation of runs into one run."""

    def __init__(self, id_: str, time: str, merge: Merge) -> None:
        self._id = id_
        self._time = time
        self._merge = merge
        self._view: View | None = None
        self._runs: list[_Run] = []
        self._next_number = 0
        self._gone: list[_Run] = []
        self._fresh: list[pl.DataFrame] = []
        self._fresh_rows = 0
        self._fresh_merged = 0
        self._log: list[bytes] = []
        self._earliest: int | None = None
        self._changed = False
        self.taken: int | None = None
        """The highest bound up to which rows were ever taken or dropped."""

    @property
    def id(self) -> str:
        """See ``StateStore``."""
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
        if self._earliest is None or self._earliest > bound:
            return None
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        taken = self._remove(bound)
        return self._merge(concat_rows(taken)) if taken else None

    def drop(self, bound: int) -> None:
        """Remove all rows with ``time <= bound``."""
        if self._earliest is None or self._earliest > bound:
            return
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        self._remove(bound)

    def frames(self, low: int, high: int) -> Iterator[pl.DataFrame]:
        """The runs that may hold rows with ``low <= time <= high``, each as it is: other times are in them too."""
        for run in self._runs:
            if run.low <= high and run.high >= low:
                yield self._load(run)
        yield from self._fresh

    def take_parts(self, bound: int, keys: Sequence[str]) -> Iterator[pl.DataFrame]:
        """As ``take``, in frames of different ``keys``. The rows are gone when this returns, read or not."""
        if self._earliest is None or self._earliest > bound:
            return iter(())
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        return self._merged_parts(self._remove(bound), keys, 1)

    def read_parts(self, low: int, bound: int, keys: Sequence[str], widening: int = 1) -> Iterator[pl.DataFrame]:
        """All rows with ``low <= time <= bound``, merged, in frames of different ``keys``; they stay.

        ``widening``: how many rows the reader will make of each.
        """
        if self._earliest is None or self._earliest > bound:
            return iter(())
        within = pl.col(self._time).is_between(low, bound)
        found = [frame.filter(within) for frame in self.frames(low, bound)]
        return self._merged_parts(found, keys, widening)

    def retire(self, bound: int) -> None:
        """Remove all rows with ``time <= bound``; the bound is remembered, though there were none."""
        if self._earliest is None or bound == self.taken:
            return
        if self._earliest <= bound:
            self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        self._remove(bound)

    def scan(self) -> pl.DataFrame | None:
        """Everything held, merged; for inspection."""
        frames = [*(self._load(run) for run in self._runs), *self._fresh]
        return self._merge(concat_rows(frames)) if frames else None

    def entries(self) -> int:
        """See ``StateStore``."""
        return sum(run.rows for run in self._runs) + self._fresh_rows

    def clear(self) -> None:
        """See ``StateStore``."""
        self._gone += [run for run in self._runs if run.stored]
        self._runs, self._fresh, self._log = [], [], []
        self._fresh_rows = self._fresh_merged = 0
        self._earliest = None
        self.taken = None
        self._changed = True

    # -- the changelog

    def take_changes(self, version: int) -> list[bytes]:
        """See ``StateStore``."""
        del version  # a run is the same in whichever commit it becomes true
        self._settle()
        changes, self._log = self._log, []
        return changes

    def apply(self, change: bytes) -> None:
        """See ``StateStore``."""
        operation, body = change[:1], change[1:]
        if operation == _ADD:
            self._push(decode_rows(body))
        elif operation == _TAKE:
            self._remove(_BOUND.unpack(body)[0])
        else:
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    # -- the local database

    def attach(self, view: View) -> None:
        """See ``StateStore``."""
        self._view = view
        data = view.get(_MANIFEST)
        if data is None:
            return
        manifest = _MANIFEST_DECODER.decode(data)
        if manifest.format != _MANIFEST_FORMAT:
            raise CorruptLogError(
                f"store {self._id!r}: local state of format {manifest.format}; this Headrace reads {_MANIFEST_FORMAT}",
                hint="upgrade Headrace, or delete the local state: it is rebuilt from the changelog",
            )
        self._runs = [_Run(e.number, e.rows, e.low, e.high, e.pieces, frame=None, stored=True) for e in manifest.runs]
        self._next_number = max((run.number + 1 for run in self._runs), default=0)
        self._earliest = min((run.low for run in self._runs), default=None)
        self.taken = manifest.taken

    def persist(self, writes: Writes) -> None:
        """See ``StateStore``."""
        if not self._changed:
            return
        for run in self._gone:
            for piece in range(run.pieces):
                writes.delete(_PIECE.pack(b"r", run.number, piece))
        for run in self._runs:
            if not run.stored and run.frame is not None:
                for piece, part in enumerate(run.frame.iter_slices(_PIECE_ROWS_MAX)):
                    writes.put(_PIECE.pack(b"r", run.number, piece), encode_rows(part))
                run.stored = True
        entries = [_RunEntry(number=r.number, rows=r.rows, low=r.low, high=r.high, pieces=r.pieces) for r in self._runs]
        writes.put(_MANIFEST, msgspec.json.encode(_Manifest(runs=entries, taken=self.taken)))
        self._gone = []
        self._changed = False
        if self._view is not None:
            self._let_go()

    def _load(self, run: _Run) -> pl.DataFrame:
        if run.frame is not None:
            return run.frame
        pieces = []
        for piece in range(run.pieces):
            data = self._view.get(_PIECE.pack(b"r", run.number, piece)) if self._view is not None else None
            if data is None:
                raise CorruptLogError(
                    f"store {self._id!r}: piece {piece} of run {run.number} is missing in the local state",
                    hint="delete the task's local state: it is rebuilt from the changelog",
                )
            pieces.append(decode_rows(data, checked=True))
        return concat_rows(pieces)

    def _let_go(self) -> None:
        """Keep the newest runs in memory: they are merged soonest."""
        cached = 0
        for run in reversed(self._runs):
            cached += run.rows
            if cached > _CACHED_ROWS_MAX and run.stored:
                run.frame = None

    # -- inside

    def _merged_parts(self, frames: list[pl.DataFrame], keys: Sequence[str], widening: int) -> Iterator[pl.DataFrame]:
        rows = sum(frame.height for frame in frames)
        number = min(-(-rows * widening // _PART_ROWS_MAX), _PARTS_MAX) if keys else 1
        if not rows:
            return
        if number == 1:
            yield self._merge(concat_rows(frames))
            return
        parts: list[list[pl.DataFrame]] = [[] for _ in range(number)]
        frames.reverse()
        while frames:  # a frame goes when its rows have been dealt out, so there are never two of all
            frame = frames.pop()
            for part, dealt in split(frame, partition_of(frame, keys, number), number):
                parts[part].append(dealt)
        del frame
        for part in range(number):
            dealt_rows, parts[part] = parts[part], []
            if dealt_rows:
                yield self._merge(concat_rows(dealt_rows))

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
        self._log += [_ADD + encode_rows(part) for part in frame.iter_slices(_PIECE_ROWS_MAX)]
        self._push(frame)

    def _push(self, frame: pl.DataFrame) -> None:
        self._runs.append(self._run(frame))
        while len(self._runs) > 1:
            older, newer = self._runs[-2:]
            if older.rows >= 2 * newer.rows or older.rows + newer.rows > _MERGED_ROWS_MAX:
                break
            merged = self._merge(concat_rows([self._load(older), self._load(newer)]))
            self._gone += [run for run in (older, newer) if run.stored]
            self._runs[-2:] = [self._run(merged)]
        self._earliest = min(run.low for run in self._runs)

    def _run(self, frame: pl.DataFrame) -> _Run:
        low, high = self._bounds(frame)
        number = self._next_number
        self._next_number += 1
        self._changed = True
        return _Run(number, frame.height, low, high, -(-frame.height // _PIECE_ROWS_MAX), frame)

    def _remove(self, bound: int) -> list[pl.DataFrame]:
        """Take rows with ``time <= bound`` out of all runs. Runs that begin later aren't touched, or even loaded."""
        taken, kept = [], []
        self.taken = bound if self.taken is None else max(bound, self.taken)
        self._changed = True
        for run in self._runs:
            if run.low > bound:
                kept.append(run)
                continue
            frame = self._load(run)
            self._gone += [run] if run.stored else []
            if run.high <= bound:
                taken.append(frame)
                continue
            taken.append(frame.filter(pl.col(self._time) <= bound))
            kept.append(self._run(frame.filter(pl.col(self._time) > bound)))
        self._runs = kept
        lows = [run.low for run in kept] + [self._bounds(frame)[0] for frame in self._fresh]
        self._earliest = min(lows, default=None)
        return taken
