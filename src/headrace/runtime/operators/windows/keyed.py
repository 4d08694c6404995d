"""Windows whose state is looked up by key: with panes, with users' functions, sessions, and full count windows.

The state has one row per key and window (``stores.keyed``). The rows of a batch's keys are taken out, merged with the
batch's partial results, and put back; panes that a trigger makes due are emitted in between. When time advances, the
rows that are due are taken out and emitted; then they are dropped, or put back for their next pane.

A trigger that counts must see each message: a batch that fills a window several times gives as many panes, each with
what the window had then. The messages are numbered for that, and not visited one by one: with a pane every 3 messages
and 2 messages since the last one, a batch of 5 has the pane numbers 0, 1, 1, 1, 2, of which 0 and 1 are full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.window import Window
from headrace.api.shapes import CountWindow, GlobalWindow
from headrace.api.specs import Node
from headrace.runtime.event_time.watermark import FOREVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.windows.aggregation import TIME
from headrace.runtime.operators.windows.base import END, ROW, START, WindowOperator
from headrace.runtime.operators.windows.panes import DUE, FULL, INDEX, NOW, NUMBER, PANE, PLACE, TOTAL, WAKE, Panes
from headrace.serdes.rows import concat_rows
from headrace.serdes.sorting import sort_rows
from headrace.stores.base import StateStore
from headrace.stores.keyed import KeyedRows
from headrace.stores.lots import in_lots

_ALL_BEFORE = 1 << 62
"""More than any number of panes."""

Conform = Callable[[pl.DataFrame], pl.DataFrame]
"""Gives rows of the state the columns that they have now."""
Assigned = tuple[pl.DataFrame, pl.DataFrame | None]
"""Messages with their windows, ``START`` and ``END``; and the rows of those keys and windows, taken from the state."""


class KeyedWindow(WindowOperator):
    """One row of state per key and window. Subclasses assign messages to windows."""

    def __init__(self, node: Node, spec: Window, counters: Counters) -> None:
        super().__init__(node, spec, counters)
        self.delay_ms = spec.lateness_ms
        self._panes = Panes(spec)
        self._accumulating = spec.panes == "accumulating"
        self._group = [*self.keys, START, END]
        self._columns = [*self._group, *self.aggregation.parts, *self._panes.columns, INDEX, *self._panes.dues]
        self.store = self.make_store(node.id, self._panes.dues, lambda rows: self.conformed(rows, self._columns))

    # -- what a shape does

    def make_store(self, id_: str, dues: list[str], conform: Conform) -> KeyedRows:
        """The state, with the columns that it is looked up by."""
        return KeyedRows(id_, [*self.keys, START], [], dues, conform, form=self.form, shown=self.people)

    def assign(self, rows: pl.DataFrame) -> Assigned:
        """Put each message into its windows; report messages that are too late, and leave them out."""
        raise NotImplementedError

    def people(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The state as people read it. The one window for all of time has no bounds that mean anything."""
        bounds = [] if isinstance(self.spec.shape, CountWindow | GlobalWindow) else [START, END]
        return self.shown(rows, *bounds, DUE)

    # -- the hooks

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        soonest = self._panes.soonest
        earliest = None if soonest is None else rows.get_column(TIME).min()
        if soonest is not None and isinstance(earliest, int) and earliest + soonest <= self.time:
            # The pane of some message is due at once, before the next message is in it.
            for row in rows.iter_slices(1):
                self.take_together(row)
        else:
            self.take_together(rows)

    def take_together(self, rows: pl.DataFrame) -> None:
        """Take messages; panes by time that are due already follow them all."""
        if self._panes.counted:
            rows = rows.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
        assigned, before = self.assign(self.clocked(rows))
        if self._panes.counted:
            self.put_back(self._send_full(self._by_pane(assigned, before)))
        else:
            new = self.partial(assigned, self._group, *self._panes.of).with_columns(pl.lit(0, pl.Int64).alias(INDEX))
            self.put_back(new if before is None else self._merged([before, new], self._group))

    @override
    def advance(self, time: int) -> None:
        if self._due_by(DUE, time):
            self._emit_due(DUE, time, self.time, time)

    @override
    def stops(self, time: int) -> Iterable[int]:
        while stops := self.store.crowd(DUE, time).stops():
            yield stops[0]  # what was emitted there may be due again

    @override
    def on_time(self, now_ms: int) -> None:
        super().on_time(now_ms)
        if self._panes.clocked and self._due_by(WAKE, now_ms):
            self._emit_due(WAKE, now_ms, self.time, self.time)

    @override
    def due_ms(self) -> int | None:
        wake = self.store.earliest(WAKE) if self._panes.clocked else super().due_ms()
        return None if wake == FOREVER else wake

    @override
    def next_ms(self) -> int | None:
        return self.store.earliest(DUE)

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self.store,)

    # -- after a batch

    def clocked(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Messages with the wall clock as a column, if a trigger needs it."""
        return rows.with_columns(pl.lit(self.now(), pl.Int64).alias(NOW)) if self._panes.clocked else rows

    def put_back(self, rows: pl.DataFrame) -> None:
        """Put merged rows back into the state; emit those that are due already."""
        self._keep(rows)
        if self._due_by(DUE, self.time):
            self._emit_due(DUE, self.time, self.time, self.time)

    def _merged(self, frames: list[pl.DataFrame], keys: list[str], *more: str) -> pl.DataFrame:
        """Merged partial results; the columns ``more`` are the same in all rows of a key."""
        rows = concat_rows([frame.select(frames[-1].columns) for frame in frames])
        same = [pl.col(column).max() for column in more]
        return self.aggregation.merge(rows, keys, *self._panes.merge, pl.col(INDEX).max(), *same)

    def _by_pane(self, rows: pl.DataFrame, before: pl.DataFrame | None) -> pl.DataFrame:
        """Partial results per window, key and pane, from the next pane on; ``FULL``: how many panes are full."""
        group = self._group
        zero = pl.lit(0, pl.Int64)
        if before is None:
            rows = rows.with_columns(zero.alias(NUMBER), zero.alias(INDEX))
        else:
            known = before.group_by(group).agg(pl.col(NUMBER).sum(), pl.col(INDEX).max())
            rows = rows.join(known, on=group, how="left", nulls_equal=True, maintain_order="left")
            rows = rows.with_columns(pl.col(NUMBER, INDEX).fill_null(0))
        place = pl.int_range(pl.len(), dtype=pl.Int64).over(group).alias(PLACE)
        rows = rows.with_columns(place, pl.len().cast(pl.Int64).over(group).alias(TOTAL))
        rows = rows.with_columns(self._panes.number(self.time))
        new = self.partial(rows, [*group, PANE], *self._panes.of, pl.col(INDEX, FULL).first(), pl.col(ROW).max())
        if before is None:
            return new
        full = new.select(*group, FULL).unique()
        old = before.join(full, on=group, how="left", nulls_equal=True, maintain_order="left")
        old = old.with_columns(zero.alias(PANE), pl.col(FULL).fill_null(0), pl.lit(None, pl.Int64).alias(ROW))
        return self._merged([old, new], [*group, PANE], FULL, ROW)

    def _send_full(self, parts: pl.DataFrame) -> pl.DataFrame:
        """Emit the panes that are full; return the rest, one row per window and key."""
        if not parts.height or parts[FULL].max() == 0:
            return parts.drop(PANE, FULL, ROW)
        group = self._group
        parts = sort_rows(parts, [*group, PANE])
        if self._accumulating:
            rolled = self.aggregation.rolling(parts, group, PANE, _ALL_BEFORE)
            others = parts.select(*group, PANE, *self._panes.columns, INDEX, FULL, ROW)
            parts = others.join(rolled, on=[*group, PANE], nulls_equal=True, maintain_order="left")
        parts = self.aggregation.settle(parts)
        self._send(parts.filter(pl.col(PANE) < pl.col(FULL)).with_columns(pl.col(INDEX) + pl.col(PANE)), self.time)
        rest = parts.group_by(group, maintain_order=True).last()
        emitted = pl.col(PANE) < pl.col(FULL)
        return rest.with_columns(pl.col(INDEX) + pl.col(FULL), *self._after(emitted)).drop(PANE, FULL, ROW)

    # -- when something is due

    def _due_by(self, column: str, bound: int) -> bool:
        earliest = self.store.earliest(column)
        return earliest is not None and earliest <= bound

    def _emit_due(self, column: str, bound: int, before: int, time: int) -> None:
        """Emit the panes that are due by ``bound``; time has advanced from ``before`` to ``time``."""
        for rows in in_lots(self.store.take_due(column, bound)):
            self._emit_panes(rows, before, time)

    def _emit_panes(self, rows: pl.DataFrame, before: int, time: int) -> None:
        on_time = (pl.col(END) > before) & (pl.col(END) <= time)
        some = pl.col(NUMBER) > 0
        emitted = (some | on_time) if self._accumulating else some
        rows = rows.with_columns(emitted.alias("__emitted"), on_time.alias("__on_time"))
        self._send(rows.filter("__emitted"), time)
        emitted = pl.col("__emitted")
        left = rows.filter(~self._panes.over(time))
        if left.height:
            self._keep(left.with_columns(pl.col(INDEX) + emitted.cast(pl.Int64), *self._after(emitted)), time)

    # -- either

    def _send(self, rows: pl.DataFrame, time: int) -> None:
        if not self.spec.marked:
            self.send(rows)
            return
        on_time = pl.col("__on_time") if "__on_time" in rows.columns else pl.lit(value=False)
        pane = (
            pl.when(on_time)
            .then(pl.lit("on_time"))
            .when(pl.col(END) > time)
            .then(pl.lit("early"))
            .otherwise(pl.lit("late"))
        )
        self.send(rows.with_columns(pane.alias("pane"), pl.col(INDEX).alias("pane_index")), "pane", "pane_index")

    def _after(self, emitted: pl.Expr) -> list[pl.Expr]:
        """The columns of a row after a pane, if ``emitted``."""
        columns = self._panes.reset(emitted)
        if not self._accumulating:
            parts = self.aggregation.nothing.items()
            columns += [pl.when(emitted).then(pl.lit(nothing)).otherwise(pl.col(c)).alias(c) for c, nothing in parts]
        return columns

    def _keep(self, rows: pl.DataFrame, time: int | None = None) -> None:
        if not self.spec.marked:  # the next result doesn't depend on earlier ones
            rows = rows.filter(pl.col(NUMBER) > 0)
        due = self._panes.due(self.time if time is None else time)
        self.store.put(self.aggregation.settle(rows).with_columns(due).select(self._columns))
