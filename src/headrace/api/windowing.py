"""What a window step takes and yields, worked out when it is declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from headrace.api.aggregates import aggregate_dtype
from headrace.api.event_time import Time, bound_dtype, needed_time
from headrace.api.expressions import value_dtype
from headrace.api.keys import key_columns
from headrace.api.specs import Aggregate, EventTime, Tumbling, Window
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema

START, END = "window_start", "window_end"

RESULT_TIME = EventTime(END, -1)
"""A window's result belongs to the last millisecond that the window holds."""


def window_step(
    shape: Tumbling,
    *,
    key: str | Sequence[str],
    agg: Mapping[str, Aggregate],
    schema: Schema,
    time: Time,
    time_column: str | None,
) -> Window:
    """The window's spec, or the error that says what is wrong with it."""
    if not isinstance(shape, Tumbling):
        raise DeclarationError(
            f"the shape of a window can't be {type(shape).__name__} {shape!r:.80}",
            hint='write hr.tumbling("10s")',
        )
    keys = key_columns(key, schema, "window")
    if not isinstance(agg, Mapping) or not agg:
        raise DeclarationError(
            "agg= names no aggregate, so the window would yield nothing",
            hint='write agg={"views": hr.count(), "bytes": hr.sum("bytes")}',
        )
    for name, aggregate in agg.items():
        _check_aggregate(name, aggregate, keys)
    for column in (*schema.columns, *agg):
        if column.startswith("__"):
            raise DeclarationError(
                f"the column {column!r} may not enter a window: names that begin with '__' are Headrace's own",
                hint="rename it before the window",
            )
    for bound in (START, END):
        if bound in keys:
            raise DeclarationError(f"the key {bound!r} would collide with the window's own column", hint="rename it")
    return Window(
        shape=shape,
        keys=keys,
        aggregates=tuple(agg.items()),
        event_time=needed_time(time, schema, "window", time_column),
        input=schema,
    )


def window_columns(window: Window) -> dict[str, pl.DataType]:
    """The columns of the results: keys, the window's bounds, aggregates."""
    columns = window.input.columns
    bound = bound_dtype(columns[window.event_time.column])
    result = {key: columns[key] for key in window.keys} | {START: bound, END: bound}
    for name, aggregate in window.aggregates:
        try:
            value = None if aggregate.expr is None else value_dtype(window.input, aggregate.expr)
            result[name] = aggregate_dtype(aggregate, value)
        except DeclarationError as error:
            raise DeclarationError(f"agg {name!r}: {error.message}", hint=error.hint) from None
    return result


def _check_aggregate(name: str, aggregate: object, keys: tuple[str, ...]) -> None:
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"an aggregate's name is a column name, not {name!r}")
    if name in keys or name in (START, END):
        what = "key" if name in keys else "window's own column"
        raise DeclarationError(f"the aggregate {name!r} has the name of a {what}", hint="give it another name")
    if not isinstance(aggregate, Aggregate):
        raise DeclarationError(
            f"agg {name!r} must be an aggregate, and is {type(aggregate).__name__} {aggregate!s:.80}",
            hint="write hr.count(), hr.sum(...), hr.min(...), hr.max(...), hr.mean(...) or hr.collect(...)",
        )
