"""Tumbling, hopping and global windows whose state is looked up by key: each message is put into all its windows.

A message is too late if all its windows are over, including the allowed lateness. If only some are, it counts in the
others.
"""

from __future__ import annotations

import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.shapes import Hopping, Tumbling
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, START
from headrace.runtime.operators.windows.keyed import Assigned, KeyedWindow


class AssignedWindow(KeyedWindow):
    """Windows of one size, aligned to the epoch."""

    def __init__(self, node: Node, spec: Window, shape: Tumbling | Hopping, counters: Counters) -> None:
        super().__init__(node, spec, counters)
        self._size = shape.size_ms
        every = shape.every_ms if isinstance(shape, Hopping) else shape.size_ms
        last = pl.col(TIME) - (pl.col(TIME) - shape.offset_ms) % every
        number = -(-self._size // every)
        self._starts = last if number == 1 else pl.concat_list([last - back * every for back in range(number)])
        self._last = last
        self._several = number > 1

    @override
    def assign(self, rows: pl.DataFrame) -> Assigned:
        over = NEVER if self.time == NEVER else self.time - self.spec.lateness_ms - self._size
        if over > NEVER:
            late = self._last <= over
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        rows = rows.with_columns(self._starts.alias(START))
        if self._several:
            rows = rows.explode(START, empty_as_null=False)
            rows = rows.filter((pl.col(START) > over) & (pl.col(TIME) < pl.col(START) + self._size))
        rows = rows.with_columns((pl.col(START) + self._size).alias(END))
        return rows, self.store.take(rows.select(*self.keys, START).unique())


class WholeWindow(KeyedWindow):
    """One window for all of time, or until it is full."""

    @override
    def assign(self, rows: pl.DataFrame) -> Assigned:
        rows = rows.with_columns(pl.lit(0, pl.Int64).alias(START), pl.lit(FOREVER, pl.Int64).alias(END))
        return rows, self.store.take(rows.select(*self.keys, START).unique())
