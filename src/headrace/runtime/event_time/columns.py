"""Reads event time from rows, vectorised: integers are milliseconds, Datetimes are converted."""

from __future__ import annotations

import polars as pl

from headrace.api.operators.spec import EventTime


def time_ms(event_time: EventTime, dtype: pl.DataType) -> pl.Expr:
    """The event time in ms as an expression, for a column of this type."""
    column = pl.col(event_time.column)
    if isinstance(dtype, pl.Datetime):
        column = column.dt.timestamp("ms")
    elif dtype != pl.Int64:
        column = column.cast(pl.Int64)
    return column + event_time.offset_ms if event_time.offset_ms else column


def is_time_ms(event_time: EventTime, dtype: pl.DataType) -> bool:
    """Return whether values of this type are already the event time in ms."""
    return dtype == pl.Int64 and not event_time.offset_ms


def from_ms(column: str, dtype: pl.DataType) -> pl.Expr:
    """A column of ms as the given integer or Datetime type."""
    if isinstance(dtype, pl.Datetime):
        moment = pl.col(column).cast(pl.Datetime("ms"))
        if dtype.time_zone is not None:
            moment = moment.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        return moment.dt.cast_time_unit(dtype.time_unit)
    return pl.col(column).cast(dtype)
