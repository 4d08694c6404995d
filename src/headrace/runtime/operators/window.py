"""Tumbling event-time windows with built-in aggregates, columnar throughout.

A batch becomes partial results per (window, key) at once; the state is runs of partial results
(``stores.runs``). When the watermark reaches a window's end, its rows are taken out, merged, finished and
emitted, in the order of window and key. A message older than the watermark whose window has left is late:
it is counted and dropped. A null key is a key like any other, as in Polars; a null event time is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.api.specs import Node, Window
from headrace.core.errors import DataError
from headrace.runtime.operators.aggregation import Aggregation
from headrace.runtime.operators.base import Counters, Operator
from headrace.runtime.operators.event_time import from_ms, time_ms
from headrace.runtime.watermark import FOREVER, NEVER
from headrace.stores.base import StateStore
from headrace.stores.runs import Runs

_START = "__start"
_END = "__end"


class WindowOperator(Operator):
    """A window step of one task."""

    def __init__(self, node: Node, spec: Window, counters: Counters) -> None:
        super().__init__(node)
        schema = node.schema
        if schema is None:
            raise ValueError("a window node has an output schema")
        self._spec = spec
        self._output = schema
        self._counters = counters
        self._size = spec.shape.size_ms
        time = time_ms(spec.event_time, spec.input.columns[spec.event_time.column])
        shift = spec.shape.offset_ms % self._size
        self._start = (time - (time - shift) % self._size).alias(_START)
        names = [name for name, _ in spec.aggregates]
        self._aggregation = Aggregation(
            [_START, *spec.keys], spec.aggregates, {name: schema.columns[name] for name in names}
        )
        self._runs = Runs(node.id, _START, self._aggregation.merge)
        self._watermark = NEVER

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        partial = self._partial(rows)
        lowest = self._lowest(partial)
        bound = self._watermark - self._size
        if self._watermark > NEVER and lowest <= bound:
            partial = self._without_late(rows, bound)
        self._runs.add(partial)

    def on_watermark(self, watermark: int) -> None:
        """See ``Operator``."""
        self._watermark = watermark
        self._fire(watermark - self._size)

    def on_end(self) -> None:
        """See ``Operator``."""
        self._fire(FOREVER)

    def stores(self) -> Sequence[StateStore]:
        """See ``Operator``."""
        return (self._runs,)

    def resume(self, watermark: int) -> None:
        """See ``Operator``."""
        self._watermark = watermark

    def _partial(self, rows: pl.DataFrame) -> pl.DataFrame:
        try:
            return self._aggregation.partial(rows.with_columns(self._start))
        except pl.exceptions.PolarsError as error:
            raise self.failed(error, "an aggregate") from error

    def _lowest(self, partial: pl.DataFrame) -> int:
        starts = partial[_START]
        if starts.null_count():
            raise DataError(
                f"operator {self.node.id!r} got messages whose event time ({self._spec.event_time.column!r}) is null",
                hint="filter them out before the window, or give them a time",
            )
        low = starts.min()
        return low if isinstance(low, int) else FOREVER

    def _without_late(self, rows: pl.DataFrame, bound: int) -> pl.DataFrame:
        stamped = rows.with_columns(self._start)
        kept = stamped.filter(pl.col(_START) > bound)
        self._counters.count("late", stamped.height - kept.height)
        return self._aggregation.partial(kept)

    def _fire(self, bound: int) -> None:
        done = self._runs.take(bound)
        if done is None:
            return
        done = done.sort(_START, *self._spec.keys)
        start, end = (self._output.columns[name] for name in ("window_start", "window_end"))
        result = (
            self._aggregation.final(done)
            .with_columns((pl.col(_START) + self._size).alias(_END))
            .with_columns(from_ms(_START, start).alias("window_start"), from_ms(_END, end).alias("window_end"))
        )
        self.emit(result.select(list(self._output.columns)))
