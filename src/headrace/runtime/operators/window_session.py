"""Sessions: windows of activity that grow, and grow together.

Each message is a session from itself until the gap has passed; sessions of a key that overlap are one. A batch's
messages and the sessions that the state has of their keys are ordered by time, and a new session begins where the gap
has passed since all before: one pass over columns. A message out of order may so extend a session to the front, or join
two. What the state holds of a key never overlaps.

A message is too late when the session that it would be part of is over, allowed lateness included. One that joins a
session that is still there is not, however old it is.
"""

from __future__ import annotations

import polars as pl

from headrace.api.shapes import Session
from headrace.api.specs import Node, Window
from headrace.runtime.operators.aggregation import TIME
from headrace.runtime.operators.base import Counters
from headrace.runtime.operators.window import END, START
from headrace.runtime.operators.window_keyed import Assigned, KeyedWindow
from headrace.runtime.watermark import NEVER
from headrace.stores.keyed import KeyedRows

_PLACE = "__place"


class SessionWindow(KeyedWindow):
    """Sessions per key."""

    def __init__(self, node: Node, spec: Window, shape: Session, counters: Counters) -> None:
        super().__init__(node, spec, counters)
        self._gap = shape.gap_ms

    def make_store(self, id_: str, dues: list[str]) -> KeyedRows:
        """See ``KeyedWindow``."""
        return KeyedRows(id_, self.keys, [START], dues)

    def assign(self, rows: pl.DataFrame) -> Assigned:
        """See ``KeyedWindow``."""
        if rows[TIME].null_count():
            raise self.null_time()
        rows = rows.with_columns(pl.col(TIME).alias(START), (pl.col(TIME) + self._gap).alias(END))
        before = self.store.take(rows.select(self.keys).unique() if self.keys else rows.head(1))
        spans = [rows.select(self._group)]
        if before is not None:
            before = before.sort(START)  # of two that become one, the messages of the earlier come first
            spans.insert(0, before.select(self._group))
        whole = self._sessions(pl.concat(spans))
        held = 0 if before is None else before.height
        rows = rows.with_columns(whole[START].slice(held), whole[END].slice(held))
        if before is not None:
            before = before.with_columns(whole[START].head(held), whole[END].head(held))
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        return rows, before

    def _sessions(self, spans: pl.DataFrame) -> pl.DataFrame:
        """For each span, in the order given, the bounds of the session that it is part of."""
        ordered = spans.with_row_index(_PLACE).sort(*self.keys, START)
        before = pl.col(END).cum_max().shift(1)
        begins = pl.col(START) >= (before.over(self.keys) if self.keys else before)
        ordered = ordered.select(_PLACE, START, END, begins.fill_null(value=True).cum_sum().alias("__session"))
        bounds = (pl.col(START).min().over("__session"), pl.col(END).max().over("__session"))
        return ordered.with_columns(bounds).sort(_PLACE)
