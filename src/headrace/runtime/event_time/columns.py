"""Reads event time from rows, vectorised: integers are milliseconds, Datetimes are converted.

Operators reckon in whole milliseconds, and watermarks and the bounds of windows are such: a time is before one of them
if and only if its millisecond is. What compares times of messages with each other must look at the rest, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.api.operators.spec import EventTime
from headrace.serdes.nulls import filled

PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


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


def is_whole_ms(dtype: pl.DataType) -> bool:
    """Whether times of this type have nothing beyond their ms."""
    return not isinstance(dtype, pl.Datetime) or dtype.time_unit == "ms"


def rest_ns(times: pl.Series) -> npt.NDArray[np.int64]:
    """How far (ns) times are beyond their ms, which lies before them even if they are before 1970; 0 for a null."""
    numbers: npt.NDArray[np.int64] = filled(times.cast(pl.Int64), 0).to_numpy()
    per_ms = PER_MS[times.dtype.time_unit] if isinstance(times.dtype, pl.Datetime) else 1
    return numbers % per_ms * (PER_MS["ns"] // per_ms)


def from_ms(column: str, dtype: pl.DataType) -> pl.Expr:
    """A column of ms as the given integer or Datetime type."""
    if isinstance(dtype, pl.Datetime):
        moment = pl.col(column).cast(pl.Datetime("ms"))
        if dtype.time_zone is not None:
            moment = moment.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        return moment.dt.cast_time_unit(dtype.time_unit)
    return pl.col(column).cast(dtype)
