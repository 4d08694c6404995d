"""Merge pieces into runs: rows of a task's partitions in order of event time. Pure.

The pieces of a task arrive in the order of their first times. So rows older than the first time of the newest piece are
complete and may be returned; the rest is held. A *run* consists of rows of one partition. Runs are in the order that
the stage needs (``plan.batch.Order``). If order holds between partitions, a run ends where another partition has an
older row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from headrace.core.ids import SSP
from headrace.plan.batch import Order
from headrace.runtime.event_time.watermark import FOREVER
from headrace.serdes.pieces import TIME, Piece
from headrace.serdes.rows import concat_rows

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one partition. All rows older than ``complete`` came before them, in all partitions."""

    ssp: SSP
    rows: pl.DataFrame
    complete: int


class Merging:
    """The pieces of one task that have been read and not yet handed out."""

    def __init__(self, order: Order, ranks: Mapping[SSP, int], enough: int = ROWS_AT_ONCE) -> None:
        """``ranks``: of rows of equal time, those of the partition with the lowest rank come first.

        ``enough``: how many rows are held before it is worth while to look for complete ones.
        """
        self._order = order
        self._ranks = ranks
        self._held: dict[SSP, list[pl.DataFrame]] = {}
        self.held = 0
        """How many rows are held."""
        self._least = self._enough = enough
        self._newest: int | None = None

    def add(self, ssp: SSP, piece: Piece) -> Iterator[Run]:
        """Take the next piece; hand out what is complete now, if it is worth while."""
        if self.held >= self._enough and self._newest is not None and piece.first > self._newest:
            yield from self._until(piece.first)
            self._enough = max(self._least, 2 * self.held)  # else what overlaps would be looked through at each piece
        self._newest = piece.first
        self._held.setdefault(ssp, []).append(piece.frame)
        self.held += piece.rows

    def rest(self) -> Iterator[Run]:
        """Return everything that is left, after the last piece."""
        yield from self._until(FOREVER)

    def _until(self, time: int) -> Iterator[Run]:
        ready: dict[SSP, pl.DataFrame] = {}
        for ssp in sorted(self._held, key=lambda each: (self._ranks[each], each)):
            rows = concat_rows(self._held.pop(ssp)).sort(TIME, maintain_order=True)
            count = rows.height if time == FOREVER else int(rows.get_column(TIME).search_sorted(time, "left"))
            if count:
                ready[ssp] = rows.head(count)
                self.held -= count
            if count < rows.height:
                self._held[ssp] = [rows.slice(count)]
        if ready and (self._order.watched or (self._order.between and len(ready) > 1)):
            yield from _alternating(ready, watched=self._order.watched)
            return
        lowest = min((int(rows.item(0, TIME)) for rows in ready.values()), default=time)
        for ssp, rows in ready.items():
            for part in rows.iter_slices(ROWS_AT_ONCE):
                yield Run(ssp, part.drop(TIME), int(part.item(0, TIME)) if len(ready) == 1 else lowest)


def _alternating(ready: Mapping[SSP, pl.DataFrame], *, watched: bool) -> Iterator[Run]:
    """Runs in order of time between partitions, too. ``watched``: no run has rows of two times."""
    ssps = list(ready)
    times = np.concatenate([rows.get_column(TIME).to_numpy() for rows in ready.values()])
    owner = np.repeat(np.arange(len(ssps)), [rows.height for rows in ready.values()])
    order = np.lexsort((owner, times))  # stable: rows of a partition stay in their order
    owner, times = owner[order], times[order]
    changes = owner[1:] != owner[:-1]
    if watched:
        changes |= times[1:] != times[:-1]
    begins = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(begins[1:], len(owner))
    taken = [0] * len(ssps)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        which = int(owner[begin])
        rows = ready[ssps[which]].slice(taken[which], end - begin)
        taken[which] += end - begin
        yield Run(ssps[which], rows.drop(TIME), int(times[begin]))
