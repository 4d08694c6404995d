"""Operators with event time: ``window``, ``deduplicate`` and ``drop_late``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import Aggregate, aggregate_dtype
from headrace.api.checks import Location, key_columns, value_dtype
from headrace.api.draft import Output, check_target
from headrace.api.operators.spec import (
    ColumnSet,
    EventTime,
    LostTime,
    OperatorSpec,
    StateMeaning,
    Time,
    bound_dtype,
    columns_read,
    names,
    needed_time,
    offset,
    on_one_line,
    typed,
    union,
)
from headrace.api.specs import (
    CountWindow,
    GlobalWindow,
    Hopping,
    Panes,
    Session,
    Sliding,
    TimeAxis,
    Trigger,
    Tumbling,
    WindowShape,
)
from headrace.api.windows import as_trigger, every
from headrace.core.clock import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.rows.schema import Schema
from headrace.stores.base import StateForm, described, with_types

START, END = "window_start", "window_end"
PANE, PANE_INDEX = "pane", "pane_index"
RESULT_TIME = EventTime(END, -1)
"""The event time of a result is the last millisecond of its window."""
PROCESSING = "processing"


@dataclass(frozen=True, slots=True, eq=False)
class Window(OperatorSpec):
    """Aggregates per key and window; a window's result leaves when time reaches its end.

    ``event_time`` is None if the messages' time plays no part. ``early`` and ``late`` trigger further results, before
    and after that of the end. If ``marked``, each result says which pane it is.
    """

    shape: WindowShape
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    event_time: EventTime | None
    input: Schema
    axis: TimeAxis = "event"
    early: Trigger | None = None
    late: Trigger | None = None
    lateness_ms: int = 0
    panes: Panes = "accumulating"
    marked: bool = False
    kind = "window"
    hidden_state = "a window"

    @property
    @override
    def places_results(self) -> bool:
        return isinstance(self.shape, CountWindow)

    @property
    @override
    def defers(self) -> bool:
        by_watermark = self.axis == "event" and not isinstance(self.shape, CountWindow | GlobalWindow)
        return by_watermark and not self.marked and not self.lateness_ms

    @property
    def mergeable(self) -> bool:
        """Partial results of any batches can be merged in any grouping; only built-in aggregates can."""
        simple = isinstance(self.shape, Tumbling | Hopping | Session) and self.axis == "event" and not self.marked
        return simple and not any(aggregate.kind in ("fold", "reduce") for _, aggregate in self.aggregates)

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        """An aggregate may come and go; as long as it is there, its kind and type stay."""
        words = [str(self.shape)]
        if self.marked or self._calls_functions:
            words.append("with panes or functions")
        if self.axis == "processing":
            words.append("by processing time")
        elif any(a.processing for trigger in (self.early, self.late) if trigger for a in trigger.alternatives):
            words.append("with triggers by the clock")
        results = window_columns(self)
        return {
            id_: StateForm(
                what=f"a window of {', '.join(words)}",
                key=with_types(self.keys, self.input.columns),
                columns={
                    name: aggregate_form(
                        one, results[name], self.input, self.event_time, clocked=self.axis == "processing"
                    )
                    for name, one in self.aggregates
                },
            )
        }

    @property
    def _calls_functions(self) -> bool:
        return any(aggregate.function is not None for _, aggregate in self.aggregates)

    @property
    @override
    def needs_event_time(self) -> bool:
        if self.axis == "processing" or isinstance(self.shape, CountWindow):
            return False
        triggers = (trigger for trigger in (self.early, self.late) if trigger is not None)
        by_time = any(a.deadlines and not a.processing for trigger in triggers for a in trigger.alternatives)
        return by_time or not isinstance(self.shape, GlobalWindow)

    @property
    @override
    def detail(self) -> str:
        by = f" by {names(self.keys)}" if self.keys else ""
        words = [f"{self.shape}{by}"]
        words += ["processing time"] if self.axis == "processing" else []
        words += [f"early {self.early}"] if self.early else []
        words += [f"late {self.late} for {format_ms(self.lateness_ms)}"] if self.late else []
        words += [self.panes] if self.marked else []
        results = ", ".join(f"{name} = {aggregate.kind}" for name, aggregate in self.aggregates)
        return f"{', '.join(words)}: {results}"

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return tuple(
            f"{name} = {aggregate.kind} of {on_one_line(aggregate.expr)}"
            for name, aggregate in self.aggregates
            if aggregate.expr is not None
        )

    @property
    @override
    def gathers_keys(self) -> bool:
        return bool(self.keys)

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys,) if self.keys else ()

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        time = self.event_time
        fixed = {
            "kind": self.kind,
            "shape": str(self.shape),
            "key": typed(self.keys, self.input),
            "time": self.axis if time is None else f"{time.column}{offset(time.offset_ms)}",
        }
        if isinstance(self.shape, Tumbling | Hopping) and self._calls_functions and not self.marked:
            fixed["state"] = "for fold and reduce"
        if self.marked:
            fixed |= {
                "early": str(self.early),
                "late": str(self.late),
                "allowed lateness": format_ms(self.lateness_ms),
                "panes": self.panes,
            }
        aggregates = {name: aggregate.definition for name, aggregate in self.aggregates}
        return {id_: StateMeaning(fixed=fixed, columns=aggregates, sheds=True, key=self.keys)}

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return {key: (key,) for key in self.keys}

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        # Late messages leave with all columns, and a user's function is given all of them.
        if has_side_outputs or self._calls_functions:
            return None
        time = {self.event_time.column} if self.event_time is not None else set()
        exprs = [expr for _, one in self.aggregates for expr in (one.expr, one.by) if expr is not None]
        return union(frozenset(self.keys) | time, columns_read(exprs))


def aggregate_form(
    aggregate: Aggregate, result: pl.DataType, rows: Schema, time: EventTime | None, *, clocked: bool = False
) -> str:
    """What the parts of an aggregate of ``rows`` are, which stays as long as it is there."""
    words: list[str] = [aggregate.kind]
    if aggregate.kind in ("first", "last"):
        words.append("by time" if time is not None or clocked else "by arrival")
        # Times that aggregates keep are in the unit of their column.
        dtype = None if time is None else rows.columns[time.column]
        words += [f"in {dtype.time_unit}"] if isinstance(dtype, pl.Datetime) and dtype.time_unit != "ms" else []
    words.append(*described({"": result}).values())
    if aggregate.kind in ("n_unique", "approx_n_unique") and aggregate.expr is not None:
        words += ["of", *described({"": value_dtype(rows, aggregate.expr)}).values()]
    if aggregate.by is not None:
        words += ["by", *described({"": value_dtype(rows, aggregate.by)}).values()]
    return " ".join(words)


@dataclass(frozen=True, slots=True)
class Timing:
    """The arguments of ``window`` that say when it emits results."""

    time: str | None
    early: object
    late: object
    allowed_lateness: Duration
    panes: Panes


def window_step(
    shape: WindowShape, *, key: str | Sequence[str] | None, schema: Schema, time: Time, timing: Timing
) -> Window:
    """The checked spec of a window, without its aggregates."""
    if not isinstance(shape, WindowShape):
        raise DeclarationError(
            f"the shape of a window can't be {type(shape).__name__} {shape!r:.80}",
            hint='write hr.tumbling("10s"), hr.hopping("1m", every="10s"), hr.session("30m"), '
            'hr.windows.sliding("10s"), hr.windows.count(100) or hr.windows.global_()',
        )
    keys = () if key is None else key_columns(key, schema, "window")
    axis: TimeAxis = "processing" if timing.time == PROCESSING else "event"
    early, late, lateness_ms = _triggers(timing)
    marked = early is not None or late is not None or lateness_ms > 0
    _check_shape(shape, axis, early, late, lateness_ms)
    if timing.panes not in ("accumulating", "discarding"):
        raise DeclarationError(
            f"panes={timing.panes!r} is not one of the choices", hint='write "accumulating" or "discarding"'
        )
    if timing.panes == "discarding" and not marked:
        raise DeclarationError(
            'panes="discarding" is not for a window that emits only one result',
            hint="add early= or allowed_lateness=, or leave it out",
        )
    step = Window(
        shape=shape,
        keys=keys,
        aggregates=(),
        event_time=_event_time(shape, axis, schema, time, timing.time),
        input=schema,
        axis=axis,
        early=early,
        late=late,
        lateness_ms=lateness_ms,
        panes=timing.panes,
        marked=marked,
    )
    check_columns(tuple(schema.columns), "a window")
    for bound in _own_columns(step):
        if bound in step.keys:
            raise DeclarationError(f"the key {bound!r} would collide with the window's own column", hint="rename it")
    _check_deadlines(step)
    return step


def with_aggregates(window: Window, aggregates: tuple[tuple[str, Aggregate], ...]) -> Window:
    """The window's spec with its aggregates, or the error that says what is wrong with them."""
    if not aggregates:
        raise DeclarationError(
            "it names no aggregate, so the window would yield nothing",
            hint='write .agg(views=pl.len(), bytes=pl.col("bytes").sum())',
        )
    own = _own_columns(window)
    for name, aggregate in aggregates:
        _check_aggregate(name, aggregate, window, own)
    check_columns(tuple(name for name, _ in aggregates), "a window")
    return replace(window, aggregates=aggregates)


@lru_cache(maxsize=500)
def window_columns(window: Window) -> Mapping[str, pl.DataType]:
    """The columns of the results: keys, the window's bounds and pane, aggregates. To resolve them takes a while."""
    columns = window.input.columns
    own = {key: columns[key] for key in window.keys} | _own_columns(window)
    return own | aggregate_columns(window.aggregates, window.input)


def aggregate_columns(aggregates: Iterable[tuple[str, Aggregate]], given: Schema) -> dict[str, pl.DataType]:
    """The columns of aggregates over messages of the schema ``given``; an error names the aggregate."""
    result = {}
    for name, aggregate in aggregates:
        try:
            values = [value_dtype(given, expr) for expr in (aggregate.expr, aggregate.by) if expr is not None]
            result[name] = aggregate_dtype(aggregate, *values)
        except DeclarationError as error:
            raise DeclarationError(f"{name!r}: {error.message}", hint=error.hint) from None
    return result


def result_time(window: Window, time: Time, here: Location) -> Time:
    """The event time of the results: the end of their window, if windows end by event time."""
    if window.axis == "processing":
        return LostTime(END, "was taken from the clock", "window", here)
    if isinstance(window.shape, CountWindow | GlobalWindow):
        return LostTime(time.column, "was aggregated", "window", here) if isinstance(time, EventTime) else time
    return RESULT_TIME


def late_target(target: object, window: Window) -> None:
    """Raise unless late messages of this window can go to ``target``."""
    if not isinstance(target, Output):
        raise DeclarationError(
            f"late_to= takes an output, not {type(target).__name__} {target!s:.80}",
            hint='write late_to="too-late"',
        )
    if window.axis == "processing" or isinstance(window.shape, CountWindow | GlobalWindow):
        raise DeclarationError("no message is too late for such a window", hint="leave late_to= out")


def _own_columns(window: Window) -> dict[str, pl.DataType]:
    result: dict[str, pl.DataType] = {}
    if not isinstance(window.shape, CountWindow | GlobalWindow):
        time = window.event_time
        bound = pl.Int64() if time is None else bound_dtype(window.input.columns[time.column])
        result |= {START: bound, END: bound}
    if window.marked:
        result |= {PANE: pl.String(), PANE_INDEX: pl.Int64()}
    return result


def _triggers(timing: Timing) -> tuple[Trigger | None, Trigger | None, int]:
    early = None if timing.early is None else as_trigger(timing.early)
    lateness_ms = to_ms(timing.allowed_lateness, "allowed_lateness")
    if timing.late is not None and not lateness_ms:
        raise DeclarationError(
            "late= needs allowed_lateness=: a window closes at its end",
            hint='set how long it stays open for late messages: allowed_lateness="1m"',
        )
    late = as_trigger(timing.late) if timing.late is not None else every(1) if lateness_ms else None
    return early, late, lateness_ms


def _check_shape(
    shape: WindowShape, axis: TimeAxis, early: Trigger | None, late: Trigger | None, lateness_ms: int
) -> None:
    triggered = early is not None or late is not None
    if isinstance(shape, CountWindow) and (triggered or axis == "processing"):
        raise DeclarationError(
            "a count window closes on its count alone: triggers, lateness and time don't apply",
            hint="leave early=, late=, allowed_lateness= and time= out; or use hr.windows.global_() with early=",
        )
    if isinstance(shape, GlobalWindow) and lateness_ms:
        raise DeclarationError("nothing is late for a window that never ends", hint="leave allowed_lateness= out")
    if isinstance(shape, Sliding) and triggered:
        raise DeclarationError(
            "a sliding window closes with its message: it has no earlier or later results",
            hint="give the input more lateness=, or use hopping() for triggers and allowed lateness",
        )
    if axis == "processing" and lateness_ms:
        raise DeclarationError(
            "no message is late in processing time", hint='leave allowed_lateness= or time="processing" out'
        )


def _event_time(shape: WindowShape, axis: TimeAxis, schema: Schema, time: Time, named: str | None) -> EventTime | None:
    if axis == "processing":
        return None
    if isinstance(shape, CountWindow | GlobalWindow) and named is None:
        # first, last and triggers use the event time if there is one.
        return time if isinstance(time, EventTime) else None
    return needed_time(time, schema, "window", named)


def check_columns(names: Iterable[str], where: str) -> None:
    """Raise if a column can't enter ``where``, because it has columns of its own."""
    for column in names:
        if column.startswith("__"):
            raise DeclarationError(
                f"the column {column!r} can't enter {where}: names that begin with '__' are reserved",
                hint="rename it before",
            )


def _check_aggregate(name: str, aggregate: Aggregate, window: Window, own: Mapping[str, pl.DataType]) -> None:
    if not name:
        raise DeclarationError("an aggregate's name is a column name, not ''")
    if name in window.keys or name in own:
        what = "key" if name in window.keys else "window's own column"
        raise DeclarationError(f"the aggregate {name!r} has the name of a {what}", hint="give it another name")
    if aggregate.kind == "fold" and aggregate.merge is None and isinstance(window.shape, Session):
        raise DeclarationError(
            f"{name!r}: a late message may join two sessions, and the fold can't merge their values",
            hint="give it merge=: hr.aggregates.fold(initial, step, merge=lambda a, b: ..., dtype=...)",
        )


def _check_deadlines(window: Window) -> None:
    if window.event_time is not None or window.axis == "processing":
        return
    for trigger in (window.early, window.late):
        for alternative in trigger.alternatives if trigger is not None else ():
            if alternative.deadlines and not alternative.processing:
                raise DeclarationError(
                    f"the trigger '{trigger}' waits for event time, and no input before it declares one",
                    hint='write time="processing" in the trigger, or give the input an event_time=',
                )


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorSpec):
    """Drops a message whose time is less than ``within_ms`` away from one of its key that was let through."""

    keys: tuple[str, ...]
    within_ms: int
    event_time: EventTime
    kind = "deduplicate"
    passes_rows = True
    hidden_state = "a deduplicate"
    gathers_keys = True
    needs_event_time = True

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys,)

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)} within {format_ms(self.within_ms)}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        return {id_: StateForm(what="what deduplicate has seen", key=with_types(self.keys, inputs[0].columns))}

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return frozenset({*self.keys, self.event_time.column})

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        fixed = {
            "kind": self.kind,
            "key": typed(self.keys, inputs[0]),
            "within": format_ms(self.within_ms),
            "time": f"{self.event_time.column}{offset(self.event_time.offset_ms)}",
        }
        return {id_: StateMeaning(fixed=fixed, key=self.keys)}


@dataclass(frozen=True, slots=True)
class DropLate(OperatorSpec):
    """Drops messages that are older than the watermark."""

    event_time: EventTime
    kind = "drop_late"
    passes_rows = True
    needs_event_time = True

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return frozenset({self.event_time.column})


def deduplicate_step(schema: Schema, time: Time, key: str | Sequence[str] | None, within: Duration) -> Deduplicate:
    """The checked spec of ``deduplicate``."""
    keys = key_columns(() if key is None else key, schema, "deduplicate")
    own = next((name for name in keys if name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} can't be a key here: names that begin with '__' are reserved", hint="rename it first"
        )
    within_ms = to_ms(within, "within", minimum=None)
    if within_ms <= 0:
        raise DeclarationError(
            f"within={within!r} is not a positive duration, so nothing would count as a duplicate",
            hint='give the longest time between duplicates: within="1h"',
        )
    return Deduplicate(keys, within_ms, needed_time(time, schema, "deduplicate"))


def drop_late_step(schema: Schema, time: Time, late_to: object) -> DropLate:
    """The checked spec of ``drop_late``."""
    if late_to is not None:
        check_target(late_to)
        if not isinstance(late_to, Output):
            raise DeclarationError("late messages go to an output", hint='write late_to="late"')
    return DropLate(needed_time(time, schema, "drop_late"))
