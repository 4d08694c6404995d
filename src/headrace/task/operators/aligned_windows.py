"""Windows that are columnar without look-ups: tumbling, hopping, sliding and overlapping counts.

**Aligned.** A batch is at once aggregated into partial results per key and *slice*: a stretch of time in which no
window begins or ends. Windows of 10 s every 4 s have slices of 2 s, and each window has five of them. A message is late
if all its windows are over. If only some are, it counts in the others.

**Sliding.** When the watermark has passed a time, its window is what the key had in the ``size`` before. A message is
late if it is older than all windows to come. One that is older than the watermark, but not by so much, counts only in
the windows of later messages.

**Count.** Slices as for hopping windows, with numbers instead of times. Count windows that don't overlap are simpler:
see ``keyed_windows.WholeWindow``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.specs import CountWindow, Hopping, Node, Sliding, Tumbling
from headrace.rows.given import concat_rows
from headrace.rows.pieces import sort_rows
from headrace.stores.base import StateStore
from headrace.stores.keyed import KeyedRows
from headrace.stores.runs import Runs
from headrace.stores.tiers import Crowd, in_lots
from headrace.task.event_time import FOREVER, NEVER
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.aggregation import TIME
from headrace.task.operators.windows import END, ROW, SLICE, START, WindowOperator

_ROWS = "__rows"


class AlignedWindow(WindowOperator):
    """Windows of one size, aligned to the epoch."""

    def __init__(self, node: Node, spec: Window, shape: Tumbling | Hopping, counters: TaskMetrics) -> None:
        super().__init__(node, spec, counters)
        self._size = shape.size_ms
        self._every = shape.every_ms if isinstance(shape, Hopping) else shape.size_ms
        self._shift = shape.offset_ms % self._every
        self._kept = [START, *self.keys]
        self._parts = [*self._kept, *self.aggregation.parts]
        self._slice = slice_start(pl.col(TIME), self._size, self._every, self._shift).alias(START)
        conform = partial(self.conformed, columns=self._parts)
        self._runs = Runs(node.id, START, self._merged, self.keys, conform, form=self.form, shown=self._shown)
        self._fired: int | None = None  # the start of the last window that is over

    @override
    def condensed(self, timed: pl.DataFrame) -> pl.DataFrame:
        return self._by_slice(timed, pl.len().cast(pl.Int64).alias(_ROWS))

    @override
    def take_partials(self, partials: pl.DataFrame) -> None:
        lowest = partials.get_column(START).min()
        if self._fired is not None and isinstance(lowest, int) and lowest < self._fired + self._every:
            late = pl.col(START) < self._fired + self._every
            self._counters.count("late", int(partials.filter(late).get_column(_ROWS).sum()))
            partials = partials.filter(~late)
        self._runs.add(partials if partials.columns == self._parts else partials[self._parts])

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
        # The messages of a batch are mostly in one slice: then grouping by key alone takes two thirds of the time.
        times = rows.get_column(TIME)
        low, high = times.min(), times.max()
        if self.keys and isinstance(low, int) and isinstance(high, int):
            first, last = (slice_of(time, self._size, self._every, self._shift) for time in (low, high))
            if first == last:
                return _of_slice(first, self.partial(rows, self.keys, *more))
        return self.partial(rows.with_columns(self._slice), self._kept, *more)

    def _merged(self, rows: pl.DataFrame) -> pl.DataFrame:
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
        return -(-self._size // self._every)

    def _base(self, time: int) -> int:
        return time - (time - self._shift) % self._every

    def _last_over(self, time: int) -> int | None:
        if time == NEVER:
            return None
        if time == FOREVER:
            latest = self._runs.latest
            return None if latest is None else self._base(latest)
        return self._base(time - self._size)

    def _windows(self, slices: Crowd, low: int, last: int) -> Crowd:
        newest = slices.times - (slices.times - self._shift) % self._every
        starts = newest[:, None] - np.arange(self._pieces) * self._every
        held = (starts >= low) & (starts <= last) & (slices.times[:, None] < starts + self._size)
        times, window = np.unique(starts[held], return_inverse=True)
        rows = np.broadcast_to(slices.counts[:, None], held.shape)[held]
        return Crowd(times, np.bincount(window, rows, len(times)).astype(np.int64))

    def _hopping_parts(self, before: int | None, last: int) -> Iterator[pl.DataFrame]:
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
    return rows.insert_column(0, pl.repeat(start, rows.height, dtype=pl.Int64, eager=True).alias(START))


def slice_of(time: int, size: int, every: int, shift: int) -> int:
    since, within = (time - shift) % every, size % every
    return time - since + (within if since >= within else 0)


def slice_start(time: pl.Expr, size: int, every: int, shift: int) -> pl.Expr:
    since = (time - shift) % every
    within = size % every
    return time - since if not within else time - since + pl.when(since >= within).then(within).otherwise(0)


_TIME = "__time"  # when the messages of a partial result happened, where people see it


class SlidingWindow(WindowOperator):
    """Windows that end with messages."""

    def __init__(self, node: Node, spec: Window, shape: Sliding, counters: TaskMetrics) -> None:
        super().__init__(node, spec, counters)
        self._size = shape.size_ms
        self._kept = [START, *self.keys]
        parts = [*self._kept, *self.aggregation.parts]
        self._runs = Runs(
            node.id,
            START,
            lambda rows: self.aggregation.merge(rows, self._kept),
            self.keys,
            lambda rows: self.conformed(rows, parts),
            form=self.form,
            shown=lambda rows: self.shown(rows.rename({START: _TIME}), _TIME),
        )

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        bound = self.time - self._size
        if self.time > NEVER:
            late = pl.col(TIME) <= bound
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        self._runs.add(self.partial(rows.with_columns(pl.col(TIME).alias(START)), self._kept))

    @override
    def advance(self, time: int) -> None:
        latest = self._runs.latest
        if latest is not None and latest >= self.time:
            self._fire(latest if time == FOREVER else time - 1)
        self._runs.retire(time if time == FOREVER else time - self._size)

    @override
    def stops(self, time: int) -> Iterable[int]:
        return [stop + 1 for stop in self._runs.crowd(self.time, time if time == FOREVER else time - 1).stops()]

    @override
    def next_ms(self) -> int | None:
        latest = self._runs.latest
        return None if latest is None or latest < self.time else latest + 1

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._runs,)

    @override
    def resume(self, watermark: int) -> None:
        super().resume(watermark)
        if self.spec.axis == "processing" and self._runs.taken is not None:
            self.time = self._runs.taken + self._size

    def _fire(self, bound: int) -> None:
        began = self.time
        low = NEVER if began == NEVER else began - self._size + 1
        for over in in_lots(self._over(began, rows) for rows in self._runs.read_parts(low, bound)):
            self.send(over.with_columns((pl.col(START) + 1 - self._size).alias(START), (pl.col(START) + 1).alias(END)))

    def _over(self, began: int, rows: pl.DataFrame) -> pl.DataFrame:
        due = rows.filter(pl.col(START) >= began)
        if not due.height:
            return due
        mine = rows.join(due, on=self.keys, how="semi", nulls_equal=True) if self.keys else rows
        rolled = self.aggregation.rolling(sort_rows(mine, [*self.keys, START]), self.keys, START, self._size)
        return rolled.filter(pl.col(START) >= began)


_NUMBER = "__number"
_TOTAL = "__total"
_BEFORE = "__before"
_ALL = "__all"
_NUMBERS = {START: "from_message", END: "to_message"}  # of messages, from 0; the end is exclusive


class CountedWindow(WindowOperator):
    """The last ``size`` messages of a key, every ``every`` messages."""

    def __init__(self, node: Node, spec: Window, shape: CountWindow, counters: TaskMetrics) -> None:
        super().__init__(node, spec, counters)
        self._size, self._every = shape.size, shape.every
        within, shift = shape.size % shape.every, -shape.size % shape.every
        self._start = slice_start(pl.col(_NUMBER), shape.size, shape.every, shift)
        first_half = (pl.col(START) - shift) % shape.every == 0
        length = pl.when(first_half).then(within or shape.every).otherwise(shape.every - within)
        self._end = pl.col(START) + length
        self._columns = [*self.keys, START, END, *self.aggregation.parts, _TOTAL]
        self._store = KeyedRows(
            node.id,
            self.keys,
            [START],
            [],
            lambda rows: self.conformed(rows, self._columns),
            form=self.form,
            shown=lambda rows: self.shown(rows.rename(_NUMBERS), *_NUMBERS.values()),
        )

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        before = self._store.take(rows.select(self.keys).unique() if self.keys else rows.head(1))
        new = self._slices(rows, before)
        if before is None:
            slices = new
        else:
            old = before.with_columns(pl.col(_TOTAL).alias(_BEFORE), pl.lit(None, pl.Int64).alias(ROW))
            both = concat_rows([old.select(new.columns), new])
            same = [pl.col(_TOTAL).max(), pl.col(_BEFORE).min(), pl.col(ROW).max()]
            slices = self.aggregation.merge(both, [*self.keys, START, END], *same)
        total = pl.col(_TOTAL).max()
        slices = slices.with_columns(total.over(self.keys) if self.keys else total)
        self._send_full(slices)
        next_end = (pl.col(_TOTAL) // self._every + 1) * self._every
        self._store.put(slices.filter(pl.col(START) >= next_end - self._size).select(self._columns))

    @override
    def advance(self, time: int) -> None:
        for left in self._store.take_all() if time == FOREVER else ():
            begun = sort_rows(left.filter(pl.col(_TOTAL) % self._every > 0), [*self.keys, START])
            bounds = [pl.col(START).min(), pl.col(END).max()]
            self.send(self.aggregation.merge(begun.with_columns(pl.lit(0).alias(_ALL)), [*self.keys, _ALL], *bounds))

    @override
    def next_ms(self) -> int | None:
        return None

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._store,)

    def _slices(self, rows: pl.DataFrame, before: pl.DataFrame | None) -> pl.DataFrame:
        if before is None:
            rows = rows.with_columns(pl.lit(0, pl.Int64).alias(_BEFORE))
        elif self.keys:
            known = before.group_by(self.keys).agg(pl.col(_TOTAL).max().alias(_BEFORE))
            rows = rows.join(known, on=self.keys, how="left", nulls_equal=True, maintain_order="left")
            rows = rows.with_columns(pl.col(_BEFORE).fill_null(0))
        else:
            rows = rows.with_columns(pl.lit(before[_TOTAL].max(), pl.Int64).alias(_BEFORE))
        place = pl.int_range(pl.len(), dtype=pl.Int64)
        rows = rows.with_columns((pl.col(_BEFORE) + (place.over(self.keys) if self.keys else place)).alias(_NUMBER))
        rows = rows.with_columns(self._start.alias(START)).with_columns(self._end.alias(END))
        rows = rows.with_row_index(ROW)
        more = [(pl.col(_NUMBER).max() + 1).alias(_TOTAL), pl.col(_BEFORE).first(), pl.col(ROW).cast(pl.Int64).max()]
        return self.partial(rows, [*self.keys, START, END], *more)

    def _send_full(self, slices: pl.DataFrame) -> None:
        ordered = sort_rows(slices, [*self.keys, END])
        rolled = self.aggregation.rolling(ordered, self.keys, END, self._size)
        before = pl.col(_BEFORE).max()
        known = ordered.select(*self.keys, END, _TOTAL, ROW, before.over(self.keys) if self.keys else before)
        ends = known.join(rolled, on=[*self.keys, END], nulls_equal=True, maintain_order="left")
        full = (pl.col(END) % self._every == 0) & (pl.col(END) <= pl.col(_TOTAL)) & (pl.col(END) > pl.col(_BEFORE))
        self.send(ends.filter(full).with_columns((pl.col(END) - self._size).alias(START)))
