"""Overlapping count windows: the last ``size`` messages of a key, whenever ``every`` more have arrived.

The messages of a key are numbered as they arrive. The state is partial results per key and slice, as for hopping
windows (``aligned``), with numbers instead of times. A batch's keys are looked up, their windows that are full are
emitted, and slices that no later window needs are dropped.

Count windows that don't overlap are simpler: see ``assigned.WholeWindow``.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.shapes import CountWindow
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import FOREVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aligned import slice_start
from headrace.runtime.operators.windows.base import END, ROW, START, WindowOperator
from headrace.serdes.rows import concat_rows
from headrace.serdes.sorting import sort_rows
from headrace.stores.base import StateStore
from headrace.stores.keyed import KeyedRows

_NUMBER = "__number"
_TOTAL = "__total"
_BEFORE = "__before"
_ALL = "__all"
_NUMBERS = {START: "from_message", END: "to_message"}
"""What people see of a part of a window: the numbers of its messages, from 0; the end is exclusive."""


class CountedWindow(WindowOperator):
    """The last ``size`` messages of a key, every ``every`` messages."""

    def __init__(self, node: Node, spec: Window, shape: CountWindow, counters: Counters) -> None:
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
            both = concat_rows(
                [
                    before.with_columns(pl.col(_TOTAL).alias(_BEFORE), pl.lit(None, pl.Int64).alias(ROW)).select(
                        new.columns
                    ),
                    new,
                ]
            )
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
        """Partial results of a batch, with the number of its key's messages before the batch and including it."""
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
        last = pl.col(ROW).cast(pl.Int64).max()
        more = [(pl.col(_NUMBER).max() + 1).alias(_TOTAL), pl.col(_BEFORE).first(), last]
        return self.partial(rows, [*self.keys, START, END], *more)

    def _send_full(self, slices: pl.DataFrame) -> None:
        """Emit the windows that this batch has filled."""
        ordered = sort_rows(slices, [*self.keys, END])
        rolled = self.aggregation.rolling(ordered, self.keys, END, self._size)
        before = pl.col(_BEFORE).max()
        known = ordered.select(*self.keys, END, _TOTAL, ROW, before.over(self.keys) if self.keys else before)
        ends = known.join(rolled, on=[*self.keys, END], nulls_equal=True, maintain_order="left")
        full = (pl.col(END) % self._every == 0) & (pl.col(END) <= pl.col(_TOTAL)) & (pl.col(END) > pl.col(_BEFORE))
        self.send(ends.filter(full).with_columns((pl.col(END) - self._size).alias(START)))
