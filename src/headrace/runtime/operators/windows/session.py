"""Sessions: windows of activity that grow and merge.

A message begins a session that lasts until the gap has passed; overlapping sessions of a key are one. A batch is first
aggregated into *spans*: partial results of messages that are certainly in one session. There are few spans if keys
repeat, and spans can be merged, so they can be made before a shuffle as well. The spans, and the sessions of their keys
in the state, are sorted by time. A new session begins where the gap has passed since all earlier ones: one pass over
columns. For example, with a gap of 10, the session [0, 15) and spans [12, 22) and [30, 40) become [0, 22) and [30, 40).
A message out of order can extend a session to the front, or join two. The sessions of a key in the state never overlap.

If each message must be seen (panes that count, a side output of late messages), the messages take the place of spans.

A message is too late if its session would be over, including the allowed lateness. A message that joins a session which
still exists is never too late, however old it is.
"""

from __future__ import annotations

from functools import cached_property

import polars as pl
from typing_extensions import override

from headrace.api.operators.streams import LATE
from headrace.api.operators.window import Window
from headrace.api.shapes import Session
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, START
from headrace.runtime.operators.windows.keyed import Assigned, Conform, KeyedWindow
from headrace.runtime.operators.windows.panes import INDEX, NUMBER
from headrace.serdes.rows import concat_rows
from headrace.serdes.sorting import sort_rows
from headrace.stores.keyed import KeyedRows

_PLACE, _SESSION = "__place", "__session"


class SessionWindow(KeyedWindow):
    """Sessions per key."""

    order = (END, START)

    def __init__(self, node: Node, spec: Window, shape: Session, counters: Counters, *, combined: bool = False) -> None:
        """``combined``: its input is spans, made before the shuffle by ``combine``."""
        super().__init__(node, spec, counters)
        self._gap = shape.gap_ms
        self._combined = combined

    @override
    def make_store(self, id_: str, dues: list[str], conform: Conform) -> KeyedRows:
        return KeyedRows(id_, self.keys, [START], dues, conform, form=self.form, shown=self.people)

    def combine(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The spans of messages, for another task of this step; each has the number of its messages."""
        if self._time is None:
            raise ValueError("only windows over event time are combined")
        return self._spans(self._time.added(rows, TIME))

    @cached_property
    def _combined_schema(self) -> pl.Schema:
        return self.combine(self.spec.input.empty()).schema

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if not self._combined:
            super().on_batch(rows)
            return
        self._take_spans(self.partials(rows, self._combined_schema))

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        if self._panes.counted or LATE in self.aside:
            self.take_together(rows)
        else:
            self._take_spans(self._spans(self.clocked(rows)))

    @override
    def assign(self, rows: pl.DataFrame) -> Assigned:
        rows, before = self._joined(rows.with_columns(pl.col(TIME).alias(START), (pl.col(TIME) + self._gap).alias(END)))
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        return rows, before

    def _spans(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Partial results of messages that are certainly in the same session.

        If the order of messages matters, a span is all messages of the batch in one session; earlier sessions come
        first, and within a session messages keep the order of arrival. If it doesn't matter, a span is all messages
        between two multiples of the gap: two spans may touch, but nothing has to be sorted.
        """
        times = rows[TIME]
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
        """Messages with the number of the session that they form within the batch, in the order of arrival."""
        begins = pl.col(TIME).diff() >= self._gap
        if self.keys:
            begins |= pl.struct(self.keys).rle_id().diff() > 0
        rows = sort_rows(rows.with_row_index(_PLACE), [*self.keys, TIME])
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
        """Messages or spans with the bounds of their sessions; and those sessions, taken from the state."""
        before = self.store.take(rows.select(self.keys).unique() if self.keys else rows.head(1))
        spans = [rows.select(self._group)]
        if before is not None:
            before = before.sort(START)  # when two sessions merge, the messages of the earlier one come first
            spans.insert(0, before.select(self._group))
        whole = self._sessions(concat_rows(spans))
        held = 0 if before is None else before.height
        rows = rows.with_columns(whole[START].slice(held), whole[END].slice(held))
        if before is not None:
            before = before.with_columns(whole[START].head(held), whole[END].head(held))
        return rows, before

    def _sessions(self, spans: pl.DataFrame) -> pl.DataFrame:
        """For each span, in the given order, the bounds of its session."""
        ordered = sort_rows(spans.with_row_index(_PLACE), [*self.keys, START])
        key = ordered.select(pl.struct(self.keys).rle_id() if self.keys else pl.repeat(0, pl.len())).to_series()
        # The latest end of a key so far, as its rank among all ends. A running maximum of ranks that restarts at each
        # key is a running maximum of plain numbers, which is much cheaper than one for each key.
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
