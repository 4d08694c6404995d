"""The base of all window operators: time, late messages, result columns, and panes.

Time is event time, moved by the watermark, or processing time: then a message belongs to the moment at which it is
processed, and time stands still while the clock is set back. A null key is a key like any other, as in Polars; a null
event time is an error.

**Panes.** When a window emits results, as columns beside its partial results. ``DUE`` on the window's own axis and
``WAKE`` by the wall clock say when a pane is due, so one comparison finds all of them. A window is *open* until time
reaches its end. Then its on-time pane is emitted; later panes are late ones. It is over, and its state is dropped, when
the allowed lateness has passed as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import ClassVar

import polars as pl
from typing_extensions import override

from headrace.api.operators.steps import LATE
from headrace.api.operators.window import Window
from headrace.api.specs import Alternative, Deadline, Node, Trigger
from headrace.core.errors import DataError, DeclarationError
from headrace.rows.casting import is_bounded
from headrace.rows.pieces import sort_rows
from headrace.stores import pieces
from headrace.stores.base import readable
from headrace.task.event_time import FOREVER, NEVER, StepTime, from_ms, is_whole_ms
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.aggregation import TIME, Aggregation
from headrace.task.operators.base import RAISED, UNCOMPUTABLE, Operator
from headrace.task.operators.functions import WrongResult, users_line

START, END = "__start", "__end"  # the bounds of a window, or of a part of one, in ms; the end is exclusive
ROW = "__row"  # the number of the message of a batch that has completed a result
SLICE = "__slice"  # the start of a part that belongs to several windows, where people see it


class Aggregating(Operator):
    """The base of steps that aggregate the rows of each key."""

    aggregation: Aggregation

    def __init__(self, node: Node, keys: Sequence[str], aggregates: Sequence[str]) -> None:
        super().__init__(node)
        assert node.schema is not None, "what aggregates has an output schema"
        self.keys = list(keys)
        self.output = node.schema.columns
        self._bounded = [name for name in aggregates if is_bounded(self.output[name])]

    def partial(self, rows: pl.DataFrame, keys: list[str], *more: pl.Expr) -> pl.DataFrame:
        try:
            return self.aggregation.partial(rows, keys, *more)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "an aggregate") from error

    def check_results(self, results: pl.DataFrame) -> None:
        self._check_sums(results)
        self.check_bounds(results, self._bounded, "an aggregate")

    def _check_sums(self, results: pl.DataFrame) -> None:
        name = self.aggregation.overflown(results)
        if name is None:
            return
        missing = results.filter(pl.col(name).is_null())
        key = ", ".join(f"{column} = {missing.item(0, column)!r:.100}" for column in self.keys)
        dtype = self.output[name]
        wider = "" if isinstance(dtype, pl.Decimal) else ".cast(pl.Decimal(38, 0)), or of "
        raise DataError(
            f"{self.described(f'the sum {name!r}')} is too large for {dtype} "
            f"in {missing.height} of {results.height} results{key and f'; the first has {key}'}",
            hint=f"sum something wider: of the column{wider or ' '}.cast(pl.Float64), which rounds; "
            "or filter out the messages that are too large",
        )

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        try:
            with self.user_call():
                yield
        except WrongResult as error:
            raise error.told(self, what) from error
        except RAISED as error:
            raise self.failed(error, what, users_line(error)) from error


class WindowOperator(Aggregating):
    """A window step of one task. Subclasses take messages, and emit results when time advances."""

    combined = False  # its input is partial results, made before the shuffle by ``combine``
    order: ClassVar[Sequence[str]] = (START,)  # results in this order are in that of the windows' ends

    def __init__(self, node: Node, spec: Window, counters: TaskMetrics) -> None:
        super().__init__(node, spec.keys, [name for name, _ in spec.aggregates])
        self.spec = spec
        self.time = NEVER  # the time on the step's axis; ``NEVER`` before the first watermark
        at: pl.Expr | None = None
        self._time: StepTime | None = None
        if spec.event_time is not None:
            time, dtype = spec.event_time, spec.input.columns[spec.event_time.column]
            at = pl.col(TIME) if is_whole_ms(dtype) else pl.col(time.column).to_physical()
            self._time = StepTime(f"operator {node.id!r}", time, dtype)
        self.aggregation = Aggregation(
            spec.aggregates,
            {name: self.output[name] for name, _ in spec.aggregates},
            spec.input,
            at=at,
            calling=self.calling,
        )
        self.form = spec.state_forms(node.id, (spec.input,))[node.id]
        self._counters = counters

    def take_in(self, rows: pl.DataFrame) -> None:
        raise NotImplementedError

    def advance(self, time: int) -> None:
        raise NotImplementedError

    def stops(self, time: int) -> Iterable[int]:
        """Stops on the way to ``time``, ascending, so that what is due meanwhile is one lot; each is asked for late."""
        return ()

    def next_ms(self) -> int | None:
        """When the next window is over, on the step's axis; None or ``FOREVER`` if no time ends one."""
        raise NotImplementedError

    def combine(self, rows: pl.DataFrame) -> pl.DataFrame:
        assert self._time is not None, "only windows over event time are combined"
        return self.condensed(self._time.added(rows, TIME))

    def condensed(self, timed: pl.DataFrame) -> pl.DataFrame:
        raise NotImplementedError

    def take_partials(self, partials: pl.DataFrame) -> None:
        raise NotImplementedError

    @cached_property
    def _combined_schema(self) -> pl.Schema:
        return self.combine(self.spec.input.empty()).schema

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self.combined:
            self.take_partials(self.partials(rows, self._combined_schema))
            return
        if self.spec.axis == "processing":
            now = max(self.now(), self.time)  # no message is late because the clock was set back
            if now > self.time:
                self.on_time(now)
            rows = rows.with_columns(pl.lit(now, pl.Int64).alias(TIME))
        elif self._time is not None:
            rows = self._time.added(rows, TIME)
        self.take_in(rows)

    @override
    def on_watermark(self, watermark: int) -> None:
        if self.spec.axis == "event":
            self._advance_to(watermark)

    @override
    def on_time(self, now_ms: int) -> None:
        if self.spec.axis == "processing" and now_ms > self.time:
            self._advance_to(now_ms)

    @override
    def due_ms(self) -> int | None:
        return self.next_ms() if self.spec.axis == "processing" else None

    @override
    def on_end(self) -> None:
        self._advance_to(FOREVER)

    @override
    def resume(self, watermark: int) -> None:
        if self.spec.axis == "event":
            self.time = watermark

    @property
    @override
    def owes(self) -> bool:
        return self.spec.axis == "event" and self.next_ms() not in (None, FOREVER)

    def now(self) -> int:
        assert self.now_ms is not None, "the host sets the wall clock before it hands on messages"
        return self.now_ms

    def conformed(self, rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        if rows.columns == list(columns):
            return rows
        types = {**self.spec.input.columns, **self.aggregation.types}
        return self.aggregation.conformed(self.node.id, rows, {name: types.get(name, pl.Int64()) for name in columns})

    def partials(self, rows: pl.DataFrame, wanted: pl.Schema) -> pl.DataFrame:
        if rows.schema == wanted:
            return rows
        try:
            return self.aggregation.conformed(self.node.id, rows, wanted)
        except DeclarationError as error:
            raise DataError(
                f"operator {self.node.id!r} got partial results with the columns {dict(rows.schema)}, "
                f"not {dict(wanted)}",
                hint="another version of the app wrote them: drain the app before changing a window, or give the "
                "partition_by before it a new id",
            ) from error

    def too_late(self, rows: pl.DataFrame) -> None:
        self._counters.count("late", rows.height)
        if rows.height:
            self.emit_aside(LATE, rows.select(list(self.spec.input.columns)))

    def send(self, merged: pl.DataFrame, *more: str) -> None:
        """In the order of windows' ends and keys, or of the messages in ``ROW``; with columns ``more``."""
        if not merged.height:
            return
        of_messages = [ROW] if ROW in merged.columns else []
        merged = sort_rows(merged, [*of_messages, *self.order, *self.keys])
        result = self.aggregation.final(merged, [START, END, *self.keys, *more])
        self.check_results(result)
        bounds = [
            from_ms(ours, self.output[public]).alias(public)
            for ours, public in ((START, "window_start"), (END, "window_end"))
            if public in self.output
        ]
        first = 0
        for part in result.with_columns(bounds).select(list(self.output)).iter_slices(pieces.PIECE_ROWS):
            if of_messages:
                messages = merged[ROW][first : first + part.height]
                self.provenance.became(lambda messages=messages: messages)  # type: ignore[misc]
            first += part.height
            self.emit(part)

    def shown(self, merged: pl.DataFrame, *bounds: str) -> pl.DataFrame:
        return readable(self.aggregation.final(merged, [*self.keys, *bounds]))

    def _advance_to(self, time: int) -> None:
        for stop in itertools.chain(self.stops(time), (time,)):
            now = max(stop, self.time)
            self.advance(now)
            self.time = now


# -- panes -------------------------------------------------------------------------------------------
NOW = "__now"  # the wall clock when a message arrived
NUMBER, INDEX = "__n", "__panes"
DUE, WAKE = "__due", "__wake"
PLACE, TOTAL = "__place", "__total"
PANE, FULL = "__pane", "__full"
_FIRST, _LAST = "__first", "__last"
_FIRST_NOW, _LAST_NOW = "__first_now", "__last_now"
Limits = tuple[int | None, int | None]  # the number of messages for the first pane, and for each later one; None: never


class Panes:
    """The columns that a window's triggers need, and the panes that follow from them."""

    def __init__(self, spec: Window) -> None:
        self._lateness = spec.lateness_ms
        self._early = _alternatives(spec.early, clock=spec.axis == "processing")
        self._late = _alternatives(spec.late, clock=spec.axis == "processing")
        waits = [d for a in (*self._early, *self._late) for d in a.deadlines]
        self.clocked = any(deadline.processing for deadline in waits)  # though the window is over event time
        self.soonest = min((d.ms for d in waits if not d.processing and d.since != "tick"), default=None)
        self.early_limits, self.late_limits = _limits(self._early), _limits(self._late)
        self.counted = self.early_limits != (None, None) or self.late_limits != (None, None)  # messages
        self.of: list[pl.Expr] = [pl.len().cast(pl.Int64).alias(NUMBER)]
        self.merge: list[pl.Expr] = [pl.col(NUMBER).sum()]
        self._reset: list[pl.Expr] = [pl.lit(0, pl.Int64).alias(NUMBER)]
        if any(not deadline.processing for deadline in waits):
            self._measure(TIME, _FIRST, _LAST)
        if self.clocked:
            self._measure(NOW, _FIRST_NOW, _LAST_NOW)
        self.dues = [DUE, WAKE] if self.clocked else [DUE]
        self.columns = [expr.meta.output_name() for expr in self.of]

    def _measure(self, time: str, first: str, last: str) -> None:
        self.of += [pl.col(time).min().alias(first), pl.col(time).max().alias(last)]
        self.merge += [pl.col(first).min(), pl.col(last).max()]
        self._reset += [pl.lit(None, pl.Int64).alias(first), pl.lit(None, pl.Int64).alias(last)]

    def reset(self, emitted: pl.Expr) -> list[pl.Expr]:
        columns = (expr.meta.output_name() for expr in self._reset)
        pairs = zip(columns, self._reset, strict=True)
        return [pl.when(emitted).then(expr).otherwise(pl.col(column)).alias(column) for column, expr in pairs]

    def due(self, time: int) -> list[pl.Expr]:
        is_open = pl.col(END) > time
        end = pl.when(is_open).then(pl.col(END)).otherwise(pl.col(END) + self._lateness)
        result = [pl.min_horizontal(end, self._deadline(is_open, time, processing=False)).alias(DUE)]
        if self.clocked:
            result.append(self._deadline(is_open, time, processing=True).alias(WAKE))
        return result

    def _deadline(self, is_open: pl.Expr, time: int, *, processing: bool) -> pl.Expr:
        early = _earliest((a for a in self._early if a.deadlines and a.processing == processing), time)
        late = _earliest((a for a in self._late if a.deadlines and a.processing == processing), time)
        return pl.when(is_open).then(early).otherwise(late)

    def over(self, time: int) -> pl.Expr:
        return pl.col(END) <= time - self._lateness if time < FOREVER else pl.lit(value=True)

    def number(self, time: int) -> list[pl.Expr]:
        """``PANE`` counts from the next pane on, ``FULL``: how many will be full. ``TOTAL`` is of the batch."""
        is_open = pl.col(END) > time
        first, rest = (
            pl.when(is_open).then(pl.lit(early, pl.Int64)).otherwise(pl.lit(late, pl.Int64))
            for early, late in zip(self.early_limits, self.late_limits, strict=True)
        )
        first = pl.when(pl.col(INDEX) == 0).then(first).otherwise(rest)
        before = pl.min_horizontal(pl.col(NUMBER), first - 1)

        def full(messages: pl.Expr) -> pl.Expr:
            more = pl.when(rest.is_null()).then(0).otherwise((messages - first) // rest)
            return pl.when(first.is_null() | (messages < first)).then(0).otherwise(1 + more)

        return [
            full(before + pl.col(PLACE)).cast(pl.Int64).alias(PANE),
            full(before + pl.col(TOTAL)).cast(pl.Int64).alias(FULL),
        ]


def _alternatives(trigger: Trigger | None, *, clock: bool) -> tuple[Alternative, ...]:
    if trigger is None or not clock:
        return () if trigger is None else trigger.alternatives
    waits = [tuple(Deadline(d.since, d.ms) for d in a.deadlines) for a in trigger.alternatives]
    return tuple(Alternative(a.repeats, a.count, d) for a, d in zip(trigger.alternatives, waits, strict=True))


def _limits(alternatives: tuple[Alternative, ...]) -> Limits:
    counts = [a for a in alternatives if not a.deadlines]
    return min((a.count for a in counts), default=None), min((a.count for a in counts if a.repeats), default=None)


def _earliest(alternatives: Iterable[Alternative], time: int) -> pl.Expr:
    moments = [pl.lit(FOREVER, pl.Int64)]
    for alternative in alternatives:
        ready = pl.col(NUMBER) >= max(1, alternative.count)
        if not alternative.repeats:
            ready &= pl.col(INDEX) == 0
        last = pl.max_horizontal([_moment(deadline, time) for deadline in alternative.deadlines])
        moments.append(pl.when(ready).then(last).otherwise(FOREVER))
    return pl.min_horizontal(moments)


def _moment(deadline: Deadline, time: int) -> pl.Expr:
    first, last = (_FIRST_NOW, _LAST_NOW) if deadline.processing else (_FIRST, _LAST)
    match deadline.since:
        case "first":
            return pl.col(first) + deadline.ms
        case "last":
            return pl.col(last) + deadline.ms
        case "tick":
            # Messages out of order wait for the next tick, too, or each such batch would make a pane.
            now = NEVER if deadline.processing else time
            return (pl.max_horizontal(pl.col(first), pl.lit(now, pl.Int64)) // deadline.ms + 1) * deadline.ms
