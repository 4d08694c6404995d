"""Sliding windows: for each message the window that ends with it.

The state is partial results per key and time. When the watermark has passed a time, all messages of that time have
arrived, and its window is what the key had in the ``size`` before. Partial results that are older than all windows to
come are dropped.

A message is late if it is older than all windows to come. A message that is older than the watermark, but not by so
much, counts in the windows of later messages, and has no window of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.shapes import Sliding
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, START, WindowOperator
from headrace.serdes.sorting import sort_rows
from headrace.stores.base import StateStore
from headrace.stores.lots import in_lots
from headrace.stores.runs import Runs

_TIME = "__time"
"""When the messages of a partial result happened, where people see it."""


class SlidingWindow(WindowOperator):
    """Windows that end with messages."""

    def __init__(self, node: Node, spec: Window, shape: Sliding, counters: Counters) -> None:
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
        """Emit the windows of all times from the previous one up to ``bound``."""
        began = self.time
        low = NEVER if began == NEVER else began - self._size + 1
        for over in in_lots(self._over(began, rows) for rows in self._runs.read_parts(low, bound)):
            ends = (pl.col(START) + 1).alias(END)
            self.send(over.with_columns((pl.col(START) + 1 - self._size).alias(START), ends))

    def _over(self, began: int, rows: pl.DataFrame) -> pl.DataFrame:
        """The windows of times from ``began``, from the merged rows of some keys."""
        due = rows.filter(pl.col(START) >= began)
        if not due.height:
            return due
        mine = rows.join(due, on=self.keys, how="semi", nulls_equal=True) if self.keys else rows
        rolled = self.aggregation.rolling(sort_rows(mine, [*self.keys, START]), self.keys, START, self._size)
        return rolled.filter(pl.col(START) >= began)
