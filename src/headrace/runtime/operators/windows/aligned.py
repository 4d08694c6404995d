"""Tumbling and hopping windows that emit one result, when they are over: columnar, without look-ups.

A batch is at once aggregated into partial results per key and *slice*. A slice is a stretch of time in which no window
begins or ends. So a window consists of adjacent slices, and a message is kept once, however many windows it is in. For
example, windows of 10 s every 4 s have slices of 2 s: [0, 2), [2, 4), ..., and each window has five of them. For a
tumbling window the slice is the window. The state is runs of slices (``stores.runs``). When time reaches the end of a
window, its slices are merged, finished and emitted. A slice that no later window needs is dropped.

A message is late if all its windows are over. If only some are, it counts in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.shapes import Hopping, Tumbling
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, SLICE, START, WindowOperator
from headrace.serdes.rows import concat_rows
from headrace.stores.base import StateStore
from headrace.stores.lots import Crowd, in_lots
from headrace.stores.runs import Runs

_ROWS = "__rows"


class AlignedWindow(WindowOperator):
    """Windows of one size, aligned to the epoch."""

    def __init__(
        self, node: Node, spec: Window, shape: Tumbling | Hopping, counters: Counters, *, combined: bool = False
    ) -> None:
        """``combined``: its input is partial results, made before the shuffle by ``combine``."""
        super().__init__(node, spec, counters)
        self._combined = combined
        self._counters = counters
        self._size = shape.size_ms
        self._every = shape.every_ms if isinstance(shape, Hopping) else shape.size_ms
        self._shift = shape.offset_ms % self._every
        self._kept = [START, *self.keys]
        self._parts = [*self._kept, *self.aggregation.parts]
        self._slice = slice_start(pl.col(TIME), self._size, self._every, self._shift).alias(START)
        self._runs = Runs(
            node.id,
            START,
            self._merged,
            self.keys,
            lambda rows: self.conformed(rows, self._parts),
            form=self.form,
            shown=self._shown,
        )
        self._fired: int | None = None
        """The start of the last window that is over."""

    def combine(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Partial results of messages, for another task of this step; each has the number of its messages."""
        if self._time is None:
            raise ValueError("only windows over event time are combined")
        return self._by_slice(self._time.added(rows, TIME), pl.len().cast(pl.Int64).alias(_ROWS))

    @cached_property
    def _combined_schema(self) -> pl.Schema:
        return self.combine(self.spec.input.empty()).schema

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self._combined:
            self._take_partials(rows)
        else:
            super().on_batch(rows)

    def _take_partials(self, partial: pl.DataFrame) -> None:
        partial = self.partials(partial, self._combined_schema)
        lowest = partial.get_column(START).min()
        if self._fired is not None and isinstance(lowest, int) and lowest < self._fired + self._every:
            late = pl.col(START) < self._fired + self._every
            self._counters.count("late", int(partial.filter(late).get_column(_ROWS).sum()))
            partial = partial.filter(~late)
        self._runs.add(partial if partial.columns == self._parts else partial[self._parts])

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        partial = self._by_slice(rows)
        lowest = partial[START].min()
        if self._fired is not None and isinstance(lowest, int) and lowest < self._fired + self._every:
            late = self._slice < self._fired + self._every
            self.too_late(rows.filter(late))
            partial = self._by_slice(rows.filter(~late))
        self._runs.add(partial)

    def _by_slice(self, rows: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
        """Partial results of messages by slice and key; ``more`` is computed with them.

        The messages of a batch are mostly in one slice: then grouping by key alone takes two thirds of the time.
        """
        times = rows.get_column(TIME)
        low, high = times.min(), times.max()
        if self.keys and isinstance(low, int) and isinstance(high, int):
            first, last = (slice_of(time, self._size, self._every, self._shift) for time in (low, high))
            if first == last:
                return _of_slice(first, self.partial(rows, self.keys, *more))
        return self.partial(rows.with_columns(self._slice), self._kept, *more)

    def _merged(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Merge partial results; as with messages, they may be of one slice."""
        starts = rows.get_column(START)
        low, high = starts.min(), starts.max()
        if self.keys and isinstance(low, int) and low == high:
            return _of_slice(low, self.aggregation.merge(rows, self.keys))
        return self.aggregation.merge(rows, self._kept)

    @override
    def advance(self, time: int) -> None:
        last = self._last_over(time)
        before = self._fired
        if last is None or (before is not None and last <= before):
            return
        self._fired = last
        tumbling = self._every == self._size
        for part in in_lots(self._runs.take_parts(last) if tumbling else self._hopping_parts(before, last)):
            self.send(part.with_columns((pl.col(START) + self._size).alias(END)))

    @override
    def stops(self, time: int) -> Iterable[int]:
        last, first_end = self._last_over(time), self.next_ms()
        if last is None or first_end is None or first_end >= last + self._size:  # at most one window is over
            return ()
        low = NEVER if self._fired is None else self._fired + self._every
        slices = self._runs.crowd(low, last + self._size - 1, self._pieces)
        return [start + self._size for start in self._windows(slices, low, last).stops()]

    @override
    def next_ms(self) -> int | None:
        earliest = self._runs.earliest
        if earliest is None:
            return None
        first = self._base(earliest) - (self._pieces - 1) * self._every
        if first + self._size <= earliest:  # the slice begins after the end of the first window that could hold it
            first += self._every
        return (first if self._fired is None else max(first, self._fired + self._every)) + self._size

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._runs,)

    @override
    def resume(self, watermark: int) -> None:
        super().resume(watermark)
        if self.spec.axis == "event":
            self._fired = self._last_over(watermark)
        elif self._runs.taken is not None:  # which windows the clock has ended can't be derived from a watermark
            self._fired = self._base(self._runs.taken)
            self.time = self._fired + self._size

    def _shown(self, merged: pl.DataFrame) -> pl.DataFrame:
        if self._every == self._size:
            return self.shown(merged.with_columns((pl.col(START) + self._size).alias(END)), START, END)
        return self.shown(merged.rename({START: SLICE}), SLICE)

    @property
    def _pieces(self) -> int:
        """The largest number of windows that hold a message."""
        return -(-self._size // self._every)

    def _base(self, time: int) -> int:
        """The start of the last window that holds ``time``."""
        return time - (time - self._shift) % self._every

    def _last_over(self, time: int) -> int | None:
        """The start of the last window that ends by ``time``."""
        if time == NEVER:
            return None
        if time == FOREVER:
            latest = self._runs.latest
            return None if latest is None else self._base(latest)
        return self._base(time - self._size)

    def _windows(self, slices: Crowd, low: int, last: int) -> Crowd:
        """How many rows the slices have in each window that begins from ``low`` to ``last``."""
        newest = slices.times - (slices.times - self._shift) % self._every
        starts = newest[:, None] - np.arange(self._pieces) * self._every
        held = (starts >= low) & (starts <= last) & (slices.times[:, None] < starts + self._size)
        times, window = np.unique(starts[held], return_inverse=True)
        rows = np.broadcast_to(slices.counts[:, None], held.shape)[held]
        return Crowd(times, np.bincount(window, rows, len(times)).astype(np.int64))

    def _hopping_parts(self, before: int | None, last: int) -> Iterator[pl.DataFrame]:
        """The merged results of all windows that begin after ``before``, up to ``last``."""
        low = NEVER if before is None else before + self._every
        read = self._runs.read_parts(low, last + self._size - 1, self._pieces)
        self._runs.retire(last + self._every - 1)
        base = pl.col(START) - (pl.col(START) - self._shift) % self._every
        for slices in read:
            pieces = slices.sort(START) if self.aggregation.ordered else slices  # earlier slices come first
            held = []
            for back in range(self._pieces):
                start = base - back * self._every
                due = start.is_between(low, last) & (pl.col(START) < start + self._size)
                held.append(pieces.filter(due).with_columns(start.alias(START)))
            yield self.aggregation.merge(concat_rows(held), self._kept)


def _of_slice(start: int, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of one slice, with its start in front."""
    return rows.insert_column(0, pl.repeat(start, rows.height, dtype=pl.Int64, eager=True).alias(START))


def slice_of(time: int, size: int, every: int, shift: int) -> int:
    """The start of the slice that holds ``time``, as ``slice_start`` computes it."""
    since, within = (time - shift) % every, size % every
    return time - since + (within if since >= within else 0)


def slice_start(time: pl.Expr, size: int, every: int, shift: int) -> pl.Expr:
    """The start of the slice that holds ``time``: windows begin at multiples of ``every``, and end ``size`` later."""
    since = (time - shift) % every
    within = size % every
    return time - since if not within else time - since + pl.when(since >= within).then(within).otherwise(0)
