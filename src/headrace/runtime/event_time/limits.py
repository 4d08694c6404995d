"""The range of valid event times: the years 1000 to 8999. Pure.

The range is far from the ends of 64 bits, so time plus a window's size is still a time, and far from those of Python's
``datetime``, so the bounds of windows are, too. Marks such as 0001-01-01 (never), 9999-12-31 (forever) and -2^63 (not
a time) are outside it: as event times they would close every window, or be late for all of them. A ``Datetime`` of
nanoseconds holds only 1677 to 2262, of which 1679 to 2260 are times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from headrace.api.operators.spec import EventTime
from headrace.core.errors import DataError
from headrace.runtime.event_time.columns import PER_MS, is_time_ms, time_ms

_UNITS = {"seconds": 1 / 1000, "microseconds": 1_000, "nanoseconds": 1_000_000}


def _year_ms(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS = {"ms": (1000, 8999), "us": (1000, 8999), "ns": (1679, 2260)}
_BOUNDS = {
    unit: (_year_ms(first) * PER_MS[unit], _year_ms(last + 1) * PER_MS[unit]) for unit, (first, last) in _YEARS.items()
}
_RECENT_MS = _year_ms(2001), _year_ms(2101)
"""The range of most event times. If a number falls into it in another unit, that is probably its unit."""


def not_times(column: pl.Series) -> pl.Series | None:
    """Which values of an event-time column are null or outside the range; None if all of them are times."""
    numbers, (earliest, end) = _numbers(column), _BOUNDS[_unit(column.dtype)]
    lowest, highest = numbers.min(), numbers.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return column.is_null() if column.len() else None
    if earliest <= lowest and highest < end:
        return column.is_null() if column.null_count() else None
    early = numbers < (max(earliest, 0) if numbers.dtype.is_unsigned_integer() else earliest)
    return (early | (numbers >= end)).fill_null(value=True)


def why_no_times(column: pl.Series, wrong: pl.Series) -> str:
    """Say why the first of these values of the column can't be an event time."""
    value = column.filter(wrong).head(1)
    if value.null_count():
        return f"{column.name!r} is null"
    dtype, number = column.dtype, _numbers(value).item()
    first, last = _YEARS[_unit(dtype)]
    shown = _moment(number, dtype) if isinstance(dtype, pl.Datetime) else f"{number}{_perhaps(number)}"
    return f"{column.name!r} is {shown}, but event times must be in the years {first} to {last}"


def looks_like_seconds(column: pl.Series) -> str | None:
    """Return a warning if these integers, read as milliseconds, would all be recent moments in seconds.

    In milliseconds they would all be of January or February 1970.
    """
    lowest, highest = column.min(), column.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return None
    if _unit_of(lowest) != "seconds" or _unit_of(highest) != "seconds":
        return None
    as_ms = datetime.fromtimestamp(lowest / 1000, UTC)
    return (
        f"column {column.name!r} seems to hold seconds, and event time is in milliseconds: "
        f"{lowest} means {as_ms:%Y-%m-%d}{_perhaps(lowest)}; multiply it by 1000 where the rows are written"
    )


class StepTime:
    """The event time of the messages that a step takes."""

    def __init__(self, step: str, time: EventTime, dtype: pl.DataType) -> None:
        """``step`` is how errors name the step."""
        self._step = step
        self._column = time.column
        self._of_windows = time.offset_ms != 0
        self._is_time = is_time_ms(time, dtype)
        self._expr = time_ms(time, dtype)

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """Return the times in ms. Raises ``DataError`` as ``check`` does."""
        self.check(rows)
        if self._is_time:  # an expression on a small batch takes ten times as long
            return rows.get_column(self._column)
        return rows.select(self._expr).to_series()

    def added(self, rows: pl.DataFrame, name: str) -> pl.DataFrame:
        """The rows with their times in ms in a further column, ``name``. Raises ``DataError`` as ``check`` does."""
        return rows.hstack([self.of(rows).alias(name)])

    def check(self, rows: pl.DataFrame) -> None:
        """Raise ``DataError`` if an event time is null or outside the range."""
        column = rows.get_column(self._column)
        # A window's end follows from times that have been checked, and may be a little after the range.
        wrong = column.is_null() if self._of_windows else not_times(column)
        if wrong is None or not wrong.any():
            return
        raise DataError(
            f"{self._step} got messages without an event time ({wrong.sum()} of {rows.height}): "
            f"{why_no_times(column, wrong)}",
            hint="filter them out before it, or give them a time",
        )


def _numbers(column: pl.Series) -> pl.Series:
    return column.cast(pl.Int64) if isinstance(column.dtype, pl.Datetime) else column


def _unit(dtype: pl.DataType) -> str:
    return dtype.time_unit if isinstance(dtype, pl.Datetime) else "ms"


def _unit_of(number: int) -> str | None:
    """The unit, other than milliseconds, in which a number is a recent moment."""
    for unit, per_ms in _UNITS.items():
        if _RECENT_MS[0] <= number / per_ms < _RECENT_MS[1]:
            return unit
    return None


def _perhaps(number: int) -> str:
    unit = _unit_of(number)
    if unit is None:
        return ""
    return f" (in {unit} it is {datetime.fromtimestamp(number / _UNITS[unit] / 1000, UTC):%Y-%m-%d})"


def _moment(number: int, dtype: pl.Datetime) -> str:
    """A ``Datetime`` as text. Polars writes no date beyond its calendar, and Python none beyond the year 9999."""
    try:
        moment = _EPOCH + timedelta(seconds=number // (PER_MS[dtype.time_unit] * 1000))
    except OverflowError:
        return f"{number} {dtype.time_unit} since 1970"
    return moment.replace(tzinfo=None).isoformat(sep=" ")
