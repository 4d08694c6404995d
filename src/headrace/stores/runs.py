"""Runs: aggregation state as a few sorted-by-age DataFrames instead of one entry per key.

Aggregates that merge (counts, sums, ...) need not look old values up: new partial results are a new *run*,
and runs are merged when they are read, or when two neighbours are of like size (so the number of runs grows
with the logarithm of the entries, and each entry is merged a logarithmic number of times). Everything is
columnar: adding a batch of 10,000 keys costs no Python per key, and a checkpoint writes just the rows
that changed since the last one.

Two operations change it: ``add`` a run, ``take`` all rows with ``time <= bound`` out of it. Both are logged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import polars as pl

from headrace.core.errors import CorruptLogError
from headrace.serdes.ipc import decode_rows, encode_rows

_ADD = b"\x01"
_TAKE = b"\x02"
_BOUND = struct.Struct(">q")
_FRESH_ROWS_MAX = 1 << 16
_CHANGE_ROWS_MAX = 1 << 18  # a change is one record of the changelog, and records have a greatest size

Merge = Callable[[pl.DataFrame], pl.DataFrame]


class Runs:
    """Rows under a time column that merge by key. ``merge`` turns any concatenation of runs into one run."""

    def __init__(self, id_: str, time: str, merge: Merge) -> None:
        self._id = id_
        self._time = time
        self._merge = merge
        self._tiers: list[pl.DataFrame] = []
        self._fresh: list[pl.DataFrame] = []
        self._fresh_rows = 0
        self._fresh_merged = 0
        self._log: list[bytes] = []
        self._earliest: int | None = None

    @property
    def id(self) -> str:
        """See ``StateStore``."""
        return self._id

    @property
    def earliest(self) -> int | None:
        """The lowest time held, None when empty. May be lower than the truth after ``take``, never higher."""
        return self._earliest

    def add(self, run: pl.DataFrame) -> None:
        """Take in partial results; they count from now on."""
        if not run.height:
            return
        self._notice(run)
        self._fresh.append(run)
        self._fresh_rows += run.height
        if self._fresh_rows > max(_FRESH_ROWS_MAX, 2 * self._fresh_merged):
            self._merge_fresh()

    def take(self, bound: int) -> pl.DataFrame | None:
        """Remove and return (merged) all rows with ``time <= bound``; None when there are none."""
        if self._earliest is None or self._earliest > bound:
            return None
        self._settle()
        self._log.append(_TAKE + _BOUND.pack(bound))
        return self._remove(bound)

    def take_changes(self) -> list[bytes]:
        """See ``StateStore``."""
        self._settle()
        changes, self._log = self._log, []
        return changes

    def apply(self, change: bytes) -> None:
        """See ``StateStore``."""
        operation, body = change[:1], change[1:]
        if operation == _ADD:
            run = decode_rows(body)
            self._notice(run)
            self._push(run)
        elif operation == _TAKE:
            self._remove(_BOUND.unpack(body)[0])
        else:
            raise CorruptLogError(
                f"store {self._id!r}: unknown change format {operation!r} in the changelog",
                hint="the changelog was written by a newer Headrace; upgrade this one",
            )

    def snapshot(self) -> Iterator[bytes]:
        """See ``StateStore``."""
        self._merge_fresh()
        for run in [*self._tiers, *self._fresh]:
            yield from _added(run)

    def clear(self) -> None:
        """See ``StateStore``."""
        self._tiers, self._fresh, self._log = [], [], []
        self._fresh_rows = self._fresh_merged = 0
        self._earliest = None

    def entries(self) -> int:
        """See ``StateStore``."""
        return sum(run.height for run in self._tiers) + self._fresh_rows

    def scan(self) -> pl.DataFrame | None:
        """Everything held, merged; for inspection."""
        runs = [*self._tiers, *self._fresh]
        return self._merge(pl.concat(runs)) if runs else None

    # -- inside

    def _notice(self, run: pl.DataFrame) -> None:
        low = run[self._time].min()
        if isinstance(low, int) and (self._earliest is None or low < self._earliest):
            self._earliest = low

    def _merge_fresh(self) -> None:
        if len(self._fresh) > 1:
            self._fresh = [self._merge(pl.concat(self._fresh))]
            self._fresh_rows = self._fresh[0].height
        self._fresh_merged = self._fresh_rows

    def _settle(self) -> None:
        """Log what is fresh and make it a tier: from here on it is the past."""
        if not self._fresh:
            return
        self._merge_fresh()
        run = self._fresh[0]
        self._fresh, self._fresh_rows, self._fresh_merged = [], 0, 0
        self._log += _added(run)
        self._push(run)

    def _push(self, run: pl.DataFrame) -> None:
        self._tiers.append(run)
        while len(self._tiers) > 1 and self._tiers[-2].height < 2 * self._tiers[-1].height:
            self._tiers[-2:] = [self._merge(pl.concat(self._tiers[-2:]))]

    def _remove(self, bound: int) -> pl.DataFrame | None:
        out, kept = [], []
        for run in self._tiers:
            taken = run.filter(pl.col(self._time) <= bound)
            if taken.height:
                out.append(taken)
            if taken.height < run.height:
                kept.append(run.filter(pl.col(self._time) > bound) if taken.height else run)
        self._tiers = kept
        self._earliest = None
        for run in kept:
            self._notice(run)
        return self._merge(pl.concat(out)) if out else None


def _added(run: pl.DataFrame) -> Iterator[bytes]:
    """The changes that add a run."""
    for part in run.iter_slices(_CHANGE_ROWS_MAX):
        yield _ADD + encode_rows(part)
