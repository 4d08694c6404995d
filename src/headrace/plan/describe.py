"""Operators in words: what kind each is, in the user's vocabulary, and what it does in one line."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from headrace.api.remote import Remote
from headrace.api.shapes import CountWindow, GlobalWindow, Hopping, Session, Sliding, Tumbling, WindowShape
from headrace.api.steps import (
    TASK_OUTPUT,
    BatchFunction,
    Broadcast,
    Deduplicate,
    DropLate,
    EventTime,
    Filter,
    Input,
    Join,
    LatestJoin,
    MapAsync,
    Merge,
    OnError,
    Operator,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SendToTable,
    SideOutput,
    Sink,
    TableJoin,
    TaskStep,
    Window,
)
from headrace.core.duration import format_ms

_EXPRESSION_CHARS_MAX = 200

_KINDS: dict[type[Operator], str] = {
    Input: "input",
    Filter: "filter",
    BatchFunction: "map_batches",
    MapAsync: "map_async",
    Merge: "merge",
    PartitionBy: "partition_by",
    Broadcast: "broadcast",
    Window: "window",
    Deduplicate: "deduplicate",
    DropLate: "drop_late",
    Join: "join",
    LatestJoin: "join_latest",
    TableJoin: "join",
    TaskStep: "task",
    SendTo: "send_to",
    SendToTable: "send_to",
    Sink: "sink",
}

_FAILING: dict[OnError, str] = {
    "fail": "",
    "skip": ", failed messages are skipped and counted",
    "dead_letter": ", failed messages go to dead letters",
}


def kind_of(operator: Operator) -> str:
    """The name of the method that declares such an operator."""
    match operator:
        case Project(keep=keep):
            return "with_columns" if keep else "select"
        case RowFunction(mode=mode):
            return mode
        case SideOutput(name=name):
            return "output" if name.startswith(TASK_OUTPUT) else name
        case SendToTable(deletes=True):
            return "delete_from"
        case _:
            return _KINDS[type(operator)]


def detail_of(operator: Operator) -> str:
    """What it does, without what its kind, its stream and its table say; empty when that is all."""
    match operator:
        case RowFunction(function=function, on_error=policy) | BatchFunction(function=function, on_error=policy):
            return f"{_call(function)}{_FAILING[policy]}"
        case MapAsync(function=function, calling=calling, ordered=ordered, on_error=policy):
            return f"{_call(function)}, {calling}" + ("" if ordered else ", as they come") + _FAILING[policy]
        case Sink(function=function, on_error=policy):
            # Whatever the app guarantees: nobody can take back what the function did.
            return f"{_call(function)}, at-least-once{_FAILING[policy]}"
        case PartitionBy(keys=keys):
            return f"by {_names(keys)}"
        case Window() as window:
            return _window(window)
        case Deduplicate(keys=keys, within_ms=within):
            return f"by {_names(keys)} within {format_ms(within)}"
        case Join(keys=keys, how=how, before_ms=before, after_ms=after):
            return f"{how} on {_names(keys)}, {_signed(-before)} to {_signed(after)}"
        case LatestJoin(keys=keys, how=how, ttl_ms=ttl):
            return f"{how} on {_names(keys)}, the last one for {format_ms(ttl)}"
        case TableJoin(keys=keys, how=how, time=time):
            as_of = "" if time is None else f" as of {time.column}{_offset(time.offset_ms)}"
            return f"{how} on {_names(keys)}{as_of}"
        case SideOutput(name=name):
            return name.removeprefix(TASK_OUTPUT) if name.startswith(TASK_OUTPUT) else ""
        case TaskStep() as task:
            return _task(task)
        case SendTo(keys=keys):
            return f"by {_names(keys)}" if keys else ""
        case _:
            return ""


def remote_options(remote: Remote) -> dict[str, str]:
    """Where a remote table lives and how it is asked, by names."""
    named = {"read": remote.read, "write": remote.write, "delete": remote.delete}
    options = {name: _call(function) for name, function in named.items() if function is not None}
    if remote.sql is not None:
        options["sql"] = f"{remote.sql.table} of {remote.sql.url}"
    if remote.readable:
        options["reads"] = f"{remote.batch} keys, {remote.calling}"
    if remote.cache is not None:
        options["cache"] = str(remote.cache)
    rates = {"reads_per_s": remote.reads_per_s, "writes_per_s": remote.writes_per_s}
    return options | {name: f"{rate:g}" for name, rate in rates.items() if rate is not None}


def expressions_of(operator: Operator) -> tuple[str, ...]:
    """Its Polars expressions as Polars prints them, each on one line."""
    match operator:
        case Filter(predicate=predicate):
            return (_expression(predicate),)
        case Project(exprs=exprs):
            return tuple(_expression(expr) for expr in exprs)
        case Window(aggregates=aggregates):
            return tuple(
                f"{name} = {aggregate.kind} of {_expression(aggregate.expr)}"
                for name, aggregate in aggregates
                if aggregate.expr is not None
            )
        case _:
            return ()


def event_time_of(time: EventTime | None, lateness_ms: int = 0, idle_timeout_ms: int | None = None) -> str:
    """How event time is read; empty when it isn't."""
    if time is None:
        return ""
    words = [f"event time {time.column}" + (f" {_signed(time.offset_ms)}" if time.offset_ms else "")]
    if lateness_ms:
        words.append(f"late by up to {format_ms(lateness_ms)}")
    if idle_timeout_ms is not None:
        words.append(f"idle after {format_ms(idle_timeout_ms)}")
    return ", ".join(words)


def _call(function: Callable[..., object]) -> str:
    return f"{getattr(function, '__qualname__', type(function).__name__)}()"


def _window(window: Window) -> str:
    named = ", ".join(f"{name} = {aggregate.kind}" for name, aggregate in window.aggregates)
    by = f" by {_names(window.keys)}" if window.keys else ""
    words = [f"{_shape(window.shape)}{by}"]
    words += ["processing time"] if window.axis == "processing" else []
    words += [f"early {window.early}"] if window.early else []
    words += [f"late {window.late} for {format_ms(window.lateness_ms)}"] if window.late else []
    words += [window.panes] if window.marked else []
    return f"{', '.join(words)}: {named}"


def _task(step: TaskStep) -> str:
    words = [type(step.task).__name__]
    words += [f"to {_names(tuple(name for name, _ in step.outputs))}"] if step.outputs else []
    stores = tuple(f"{s.attribute} by {_names(tuple(s.key.columns))}{_ttl(s.ttl_ms)}" for s in step.stores)
    words += [f"keeps {' and '.join(stores)}"] if stores else []
    return ", ".join(words)


def _ttl(ttl_ms: int | None) -> str:
    return "" if ttl_ms is None else f" for {format_ms(ttl_ms)}"


def _shape(shape: WindowShape) -> str:
    match shape:
        case Tumbling(size_ms=size, offset_ms=offset):
            return f"tumbling {format_ms(size)}{_offset(offset)}"
        case Hopping(size_ms=size, every_ms=every, offset_ms=offset):
            return f"hopping {format_ms(size)} every {format_ms(every)}{_offset(offset)}"
        case Sliding(size_ms=size):
            return f"sliding {format_ms(size)}"
        case Session(gap_ms=gap):
            return f"session with a gap of {format_ms(gap)}"
        case CountWindow(size=size, every=every):
            return f"{size} messages" + (f" every {every}" if every != size else "")
        case GlobalWindow():
            return "all of time"


def _offset(ms: int) -> str:
    return f" {_signed(ms)}" if ms else ""


def _signed(ms: int) -> str:
    if ms == 0:
        return "0"
    return f"{'-' if ms < 0 else '+'}{format_ms(abs(ms))}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _expression(expr: pl.Expr) -> str:
    text = " ".join(str(expr).split())
    return text if len(text) <= _EXPRESSION_CHARS_MAX else text[: _EXPRESSION_CHARS_MAX - 1] + "…"
