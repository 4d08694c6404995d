"""Follow the event time through a flow, and record where it gets lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.api.expressions import unknown_column
from headrace.api.location import Location
from headrace.api.operators.spec import EventTime
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


@dataclass(frozen=True, slots=True)
class LostTime:
    """The step after which a flow has no event time: ``'ts' was dropped ... by select(...)``."""

    column: str
    how: str
    operator: str
    location: Location

    @override
    def __str__(self) -> str:
        return f"{self.column!r} {self.how} at {self.location} by {self.operator}(...)"


Time = EventTime | LostTime | None
"""A flow's event time: known, lost on the way, or never declared."""


def is_time(dtype: pl.DataType) -> bool:
    """Return whether a column of this dtype can be an event time."""
    return dtype in (pl.Int64, pl.UInt64) or isinstance(dtype, pl.Datetime)


def check_time_column(column: str, schema: Schema) -> EventTime:
    """Return the event time in ``column``; raises if the column doesn't exist or isn't a time."""
    if column not in schema.columns:
        raise unknown_column(column, schema.columns)
    dtype = schema.columns[column]
    if not is_time(dtype):
        raise DeclarationError(
            f"the event time column {column!r} is {dtype}",
            hint="event time is pl.Datetime or Int64 (milliseconds since the epoch): declare the column as "
            'pl.Datetime("ms"), to which dates are cast'
            if dtype == pl.Date
            else "event time is Int64 (milliseconds since the epoch) or Datetime; cast it",
        )
    return EventTime(column)


def after_projection(time: Time, unchanged: Iterable[str], schema: Schema, operator: str, where: Location) -> Time:
    """Return the event time after a projection, which keeps it if its column is unchanged."""
    if not isinstance(time, EventTime) or time.column in unchanged:
        return time
    how = "was recomputed" if time.column in schema.columns else "was dropped"
    return LostTime(time.column, how, operator, where)


def after_function(time: Time, schema: Schema, operator: str, where: Location) -> Time:
    """Return the event time after a user's function, which keeps it if the result has a time column of that name."""
    if not isinstance(time, EventTime):
        return time
    dtype = schema.columns.get(time.column)
    if dtype is None:
        return LostTime(time.column, "was dropped", operator, where)
    return time if is_time(dtype) else LostTime(time.column, f"was turned into {dtype}", operator, where)


def after_merge(times: Iterable[Time], where: Location) -> Time:
    """Return the event time of merged flows: the one that they all have."""
    times = tuple(times)
    first = times[0]
    if all(time == first for time in times) and not isinstance(first, LostTime):
        return first
    lost = next((time for time in times if isinstance(time, LostTime)), None)
    if lost is not None:
        return lost
    known = next(time for time in times if isinstance(time, EventTime))
    return LostTime(known.column, "was mixed with other event times", "merge", where)


def needed_time(time: Time, schema: Schema, who: str, named: str | None = None) -> EventTime:
    """Return the event time that ``who`` uses; raises an error that says where it was lost."""
    if time is None:
        raise DeclarationError(
            f"{who} needs an event time, and no input before it declares one",
            hint='name the column that holds it: app.input("views", schema, event_time="ts", lateness="5s")',
        )
    if named is not None:
        return check_time_column(named, schema)
    if isinstance(time, EventTime):
        return time
    remedy = ", or name it: window(..., time='col')" if who == "window" else ""
    raise DeclarationError(f"{who} needs an event time; {time}", hint=f"keep it{remedy}")


def bound_dtype(dtype: pl.DataType) -> pl.DataType:
    """Return the dtype of a window's bounds: the event time's if that is Datetime, otherwise Int64 milliseconds."""
    return dtype if isinstance(dtype, pl.Datetime) else pl.Int64()
