"""Sessions: windows of activity that grow, and grow together.

Each message is a session from itself until the gap has passed; sessions of a key that overlap are one. A batch becomes
*spans* first: partial results of messages that are in one session for sure. Spans are few where keys repeat, and they
merge, so they may be made before a shuffle as well. The spans and the sessions that the state has of their keys are
ordered by time, and a new session begins where the gap has passed since all before: one pass over columns. A message
out of order may so extend a session to the front, or join two. What the state holds of a key never overlaps.

Where each message must be looked at (panes that count, an output of late messages), the messages themselves take the
place of spans.

A message is too late when the session that it would be part of is over, allowed lateness included. One that joins a
session that is still there is not, however old it is.
"""

from __future__ import annotations

import polars as pl
from typing_extensions import override

from headrace.api.operators.streams import LATE
from headrace.api.operators.window import Window
from headrace.api.shapes import Session
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, START
from headrace.runtime.operators.windows.keyed import Assigned, KeyedWindow
from headrace.runtime.operators.windows.panes import INDEX, NUMBER
from headrace.stores.keyed import KeyedRows

_PLACE, _SESSION = "__place", "__session"


class SessionWindow(KeyedWindow):
    """Sessions per key."""

    def __init__(self, node: Node, spec: Window, shape: Session, counters: Counters, *, combined: bool = False) -> None:
        """``combined``: what it gets are spans, made before the shuffle by ``combine``."""
        super().__init__(node, spec, counters)
        self._gap = shape.gap_ms
        self._combined = combined
        self._wire: pl.Schema | None = None

    @override
    def make_store(self, id_: str, dues: list[str]) -> KeyedRows:
        return KeyedRows(id_, self.keys, [START], dues)

    def combine(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The spans of messages, for another task of this step; each says of how many messages it is."""
        if self._event_time is None:
            raise ValueError("only windows over event time are combined")
        return self._spans(rows.with_columns(self._event_time))

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if not self._combined:
            super().on_batch(rows)
            return
        if self._wire is None:
            self._wire = self.combine(self.spec.input.empty()).schema
        if rows.schema != self._wire:
            raise DataError(
                f"operator {self.node.id!r} got partial results with the columns {dict(rows.schema)}, "
                f"not {dict(self._wire)}",
                hint="another version of the app wrote them: drain the app before changing a window, or give the "
                "partition_by before it a new id",
            )
        self._take_spans(rows)

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        if self._panes.counted or LATE in self.aside:
            super().take_in(rows)
        else:
            self._take_spans(self._spans(self.clocked(rows)))

    @override
    def assign(self, rows: pl.DataFrame) -> Assigned:
        if rows[TIME].null_count():
            raise self.null_time()
        rows, before = self._joined(rows.with_columns(pl.col(TIME).alias(START), (pl.col(TIME) + self._gap).alias(END)))
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        return rows, before

    def _spans(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Partial results of messages that are in the same session for sure.

        Where their order matters that is all of a session that the batch has: the earlier session comes first, and
        within it they keep the order of arrival. Where it doesn't, it is what a gap's length of the clock has of them:
        two of these may touch, but nothing has to be sorted.
        """
        times = rows[TIME]
        if times.null_count():
            raise self.null_time()
        low, high = times.min(), times.max()
        more = (pl.col(TIME).min().alias(START), (pl.col(TIME).max() + self._gap).alias(END), *self._panes.of)
        if not isinstance(low, int) or not isinstance(high, int) or high - low < self._gap:
            part = pl.lit(0, pl.Int64)
        elif not self.aggregation.ordered:
            part = pl.col(TIME) // self._gap
        else:
            rows, part = self._numbered(rows), pl.col(_SESSION)
        spans = self.partial(rows.with_columns(part.alias(_SESSION)), [*self.keys, _SESSION], *more).drop(_SESSION)
        return spans.sort(START) if self.aggregation.ordered else spans

    def _numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Messages with the number of the session that they make by themselves, in the order of arrival."""
        begins = pl.col(TIME).diff() >= self._gap
        if self.keys:
            begins |= pl.struct(self.keys).rle_id().diff() > 0
        rows = rows.with_row_index(_PLACE).sort(*self.keys, TIME)
        return rows.with_columns(begins.fill_null(value=True).cum_sum().alias(_SESSION)).sort(_PLACE).drop(_PLACE)

    def _take_spans(self, spans: pl.DataFrame) -> None:
        spans, before = self._joined(spans)
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self.count_late(int(spans.filter(late)[NUMBER].sum()))
            spans = spans.filter(~late)
        spans = spans.with_columns(pl.lit(0, pl.Int64).alias(INDEX))
        self.put_back(self._merged([spans] if before is None else [before, spans], self._group))

    def _joined(self, rows: pl.DataFrame) -> Assigned:
        """Messages or spans with the bounds of their sessions; and what the state has of these, taken out."""
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
        return rows, before

    def _sessions(self, spans: pl.DataFrame) -> pl.DataFrame:
        """For each span, in the order given, the bounds of the session that it is part of."""
        ordered = spans.with_row_index(_PLACE).sort(*self.keys, START)
        key = ordered.select(pl.struct(self.keys).rle_id() if self.keys else pl.repeat(0, pl.len())).to_series()
        # The latest end of a key so far, as its place among all ends: of these, a running maximum that begins anew at
        # each key is one of plain numbers, by far cheaper than one for each key.
        by_end = ordered[END].arg_sort()
        first = key.cast(pl.Int64) * ordered.height
        latest = (first + by_end.arg_sort().cast(pl.Int64)).cum_max()
        ends = ordered[END].gather(by_end).gather(latest - first)
        begins = ((ordered[START] >= ends.shift(1)) | (key != key.shift(1))).fill_null(value=True)
        session = begins.cast(pl.UInt32).cum_sum() - 1
        bounds = ordered.select(_PLACE).with_columns(
            ordered[START].filter(begins).gather(session).alias(START),
            ends.filter(begins.shift(-1, fill_value=True)).gather(session).alias(END),
        )
        return bounds.sort(_PLACE)
