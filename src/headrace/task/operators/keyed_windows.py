"""Windows whose state is looked up by key: with panes, users' functions, sessions and full count windows.

The state has one row per key and window (``stores.keyed``). The rows of a batch's keys are taken out, merged with the
batch's partial results, and put back; panes that a trigger makes due are emitted in between.

A trigger that counts must see each message: a batch that fills a window several times gives as many panes. For that the
messages are numbered, not visited one by one: with a pane every 3 messages and 2 messages since the last one, a batch
of 5 has the pane numbers 0, 1, 1, 1, 2, of which 0 and 1 are full.

**Session.** A batch is first aggregated into *spans*: partial results of messages that are certainly in one session,
which can be made before a shuffle as well. Spans and the sessions in the state are sorted by time. A new session begins
where the gap has passed since all earlier ones: with a gap of 10, the session [0, 15) and spans [12, 22) and [30, 40)
become [0, 22) and [30, 40). If each message must be seen (panes that count, a side output of late messages), messages
take the place of spans.

A message is too late if all its windows are over, including the allowed lateness. If only some are, it counts in the
others. One that joins a session which still exists is never too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import polars as pl
from typing_extensions import override

from headrace.api import specs
from headrace.api.operators.steps import LATE
from headrace.api.operators.window import Window
from headrace.api.specs import CountWindow, GlobalWindow, Hopping, Node, Session, Tumbling
from headrace.rows.given import concat_rows
from headrace.rows.pieces import sort_rows
from headrace.stores.base import StateStore
from headrace.stores.keyed import KeyedRows
from headrace.stores.tiers import in_lots
from headrace.task.event_time import FOREVER, NEVER
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.aggregation import TIME
from headrace.task.operators.aligned_windows import AlignedWindow, CountedWindow, SlidingWindow
from headrace.task.operators.base import BuildContext
from headrace.task.operators.windows import (
    DUE,
    END,
    FULL,
    INDEX,
    NOW,
    NUMBER,
    PANE,
    PLACE,
    ROW,
    START,
    TOTAL,
    WAKE,
    Panes,
    WindowOperator,
)

_ALL_BEFORE = 1 << 62  # more than any number of panes
Conform = Callable[[pl.DataFrame], pl.DataFrame]  # gives rows of the state the columns that they have now
Assigned = tuple[pl.DataFrame, pl.DataFrame | None]  # with ``START`` and ``END``; and their rows of the state


class KeyedWindow(WindowOperator):
    """One row of state per key and window. Subclasses assign messages to windows."""

    def __init__(self, node: Node, spec: Window, counters: TaskMetrics) -> None:
        super().__init__(node, spec, counters)
        self.delay_ms = spec.lateness_ms
        self._panes = Panes(spec)
        self._accumulating = spec.panes == "accumulating"
        self._group = [*self.keys, START, END]
        self._columns = [*self._group, *self.aggregation.parts, *self._panes.columns, INDEX, *self._panes.dues]
        self.store = self.make_store(node.id, self._panes.dues, lambda rows: self.conformed(rows, self._columns))

    def make_store(self, id_: str, dues: list[str], conform: Conform) -> KeyedRows:
        return KeyedRows(id_, [*self.keys, START], [], dues, conform, form=self.form, shown=self.people)

    def assign(self, rows: pl.DataFrame) -> Assigned:
        raise NotImplementedError

    def people(self, rows: pl.DataFrame) -> pl.DataFrame:
        bounds = [] if isinstance(self.spec.shape, CountWindow | GlobalWindow) else [START, END]
        return self.shown(rows, *bounds, DUE)

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

    def clocked(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.lit(self.now(), pl.Int64).alias(NOW)) if self._panes.clocked else rows

    def put_back(self, rows: pl.DataFrame) -> None:
        self._keep(rows)
        if self._due_by(DUE, self.time):
            self._emit_due(DUE, self.time, self.time, self.time)

    def _merged(self, frames: list[pl.DataFrame], keys: list[str], *more: str) -> pl.DataFrame:
        """The columns ``more`` are the same in all rows of a key."""
        rows = concat_rows([frame.select(frames[-1].columns) for frame in frames])
        same = [pl.col(column).max() for column in more]
        return self.aggregation.merge(rows, keys, *self._panes.merge, pl.col(INDEX).max(), *same)

    def _by_pane(self, rows: pl.DataFrame, before: pl.DataFrame | None) -> pl.DataFrame:
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

    def _due_by(self, column: str, bound: int) -> bool:
        earliest = self.store.earliest(column)
        return earliest is not None and earliest <= bound

    def _emit_due(self, column: str, bound: int, before: int, time: int) -> None:
        on_time = (pl.col(END) > before) & (pl.col(END) <= time)
        some = pl.col(NUMBER) > 0
        due = ((some | on_time) if self._accumulating else some).alias("__emitted"), on_time.alias("__on_time")
        emitted = pl.col("__emitted")
        for part in in_lots(self.store.take_due(column, bound)):
            rows = part.with_columns(due)
            self._send(rows.filter(emitted), time)
            left = rows.filter(~self._panes.over(time))
            if left.height:
                self._keep(left.with_columns(pl.col(INDEX) + emitted.cast(pl.Int64), *self._after(emitted)), time)

    def _send(self, rows: pl.DataFrame, time: int) -> None:
        if not self.spec.marked:
            self.send(rows)
            return
        on_time = pl.col("__on_time") if "__on_time" in rows.columns else pl.lit(value=False)
        late_or_early = pl.when(pl.col(END) > time).then(pl.lit("early")).otherwise(pl.lit("late"))
        pane = pl.when(on_time).then(pl.lit("on_time")).otherwise(late_or_early)
        self.send(rows.with_columns(pane.alias("pane"), pl.col(INDEX).alias("pane_index")), "pane", "pane_index")

    def _after(self, emitted: pl.Expr) -> list[pl.Expr]:
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


class AssignedWindow(KeyedWindow):
    """Windows of one size, aligned to the epoch."""

    def __init__(self, node: Node, spec: Window, shape: Tumbling | Hopping, counters: TaskMetrics) -> None:
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


_PLACE, _SESSION = "__place", "__session"


class SessionWindow(KeyedWindow):
    """Sessions per key."""

    order = (END, START)

    def __init__(self, node: Node, spec: Window, shape: Session, counters: TaskMetrics) -> None:
        super().__init__(node, spec, counters)
        self._gap = shape.gap_ms

    @override
    def make_store(self, id_: str, dues: list[str], conform: Conform) -> KeyedRows:
        return KeyedRows(id_, self.keys, [START], dues, conform, form=self.form, shown=self.people)

    @override
    def take_in(self, rows: pl.DataFrame) -> None:
        if self._panes.counted or LATE in self.aside:
            self.take_together(rows)
        else:
            self.take_partials(self.condensed(self.clocked(rows)))

    @override
    def assign(self, rows: pl.DataFrame) -> Assigned:
        rows, before = self._joined(rows.with_columns(pl.col(TIME).alias(START), (pl.col(TIME) + self._gap).alias(END)))
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self.too_late(rows.filter(late))
            rows = rows.filter(~late)
        return rows, before

    @override
    def condensed(self, timed: pl.DataFrame) -> pl.DataFrame:
        """Spans: in the order of sessions if that matters, else by multiples of the gap, with nothing to sort."""
        times = timed[TIME]
        low, high = times.min(), times.max()
        more = (pl.col(TIME).min().alias(START), (pl.col(TIME).max() + self._gap).alias(END), *self._panes.of)
        if not isinstance(low, int) or not isinstance(high, int) or high - low < self._gap:
            part = pl.lit(0, pl.Int64)
        elif not self.aggregation.ordered:
            part = pl.col(TIME) // self._gap
        else:
            timed, part = self._numbered(timed), pl.col(_SESSION)
        spans = self.partial(timed.with_columns(part.alias(_SESSION)), [*self.keys, _SESSION], *more).drop(_SESSION)
        return spans.sort(START) if self.aggregation.ordered else spans

    def _numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        begins = pl.col(TIME).diff() >= self._gap
        if self.keys:
            begins |= pl.struct(self.keys).rle_id().diff() > 0
        rows = sort_rows(rows.with_row_index(_PLACE), [*self.keys, TIME])
        return rows.with_columns(begins.fill_null(value=True).cum_sum().alias(_SESSION)).sort(_PLACE).drop(_PLACE)

    @override
    def take_partials(self, partials: pl.DataFrame) -> None:
        spans, before = self._joined(partials)
        if self.time > NEVER:
            late = self._panes.over(self.time)
            self._counters.count("late", int(spans.filter(late)[NUMBER].sum()))
            spans = spans.filter(~late)
        spans = spans.with_columns(pl.lit(0, pl.Int64).alias(INDEX))
        self.put_back(self._merged([spans] if before is None else [before, spans], self._group))

    def _joined(self, rows: pl.DataFrame) -> Assigned:
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


def build_window(node: Node, spec: Window, context: BuildContext) -> WindowOperator:
    window = window_operator(node, spec, context.counters)
    window.combined = context.takes_partials
    return window


def window_operator(node: Node, spec: Window, counters: TaskMetrics) -> WindowOperator:
    by_function = any(aggregate.function is not None for _, aggregate in spec.aggregates)
    match spec.shape:
        case specs.Tumbling() | specs.Hopping() as shape if not spec.marked and not by_function:
            return AlignedWindow(node, spec, shape, counters)
        case specs.Tumbling() | specs.Hopping() as shape:
            return AssignedWindow(node, spec, shape, counters)
        case specs.Sliding() as shape:
            return SlidingWindow(node, spec, shape, counters)
        case specs.Session() as shape:
            return SessionWindow(node, spec, shape, counters)
        case specs.GlobalWindow():
            return WholeWindow(node, spec, counters)
        case specs.CountWindow(size=size, every=every) if size == every:
            full = specs.Trigger(f"every {size}", (specs.Alternative(True, size),))
            return WholeWindow(node, replace(spec, early=full, panes="discarding"), counters)
        case specs.CountWindow() as shape:
            return CountedWindow(node, spec, shape, counters)
