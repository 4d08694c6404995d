"""Which dates, times, durations and decimals rows may hold: those that Python and all readers can represent. Pure.

Polars counts days or fractions of a second in 32 or 64 bits, and computes with any number of them. But it panics, or
raises what no step expects, when one beyond its own calendar is printed, written as text or handed to a function. A
decimal has 128 bits, which hold more than the 38 digits that readers take, and Polars doesn't check the sums of groups.
So such values are found where rows come in, where an expression or a function makes them, and before they are written.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import polars as pl

_PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_A_DAY = 86_400
_SECOND = timedelta(seconds=1)
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_DURATION_DAYS = timedelta.max.days


def is_bounded(dtype: object) -> bool:
    """Whether values of this type are or contain dates, times, durations or decimals: its bits can hold too much."""
    return holds(dtype, (pl.Date, pl.Datetime, pl.Duration, pl.Decimal))


def holds(dtype: object, kinds: tuple[type[pl.DataType], ...]) -> bool:
    """Whether values of this type are or contain values of one of these kinds."""
    if isinstance(dtype, pl.Struct):
        return any(holds(field.dtype, kinds) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return holds(dtype.inner, kinds)
    return isinstance(dtype, kinds)


def beyond(column: pl.Series) -> npt.NDArray[np.int64]:
    """The rows, by number, in which the column holds a date, time, duration or decimal that can't be represented.

    >>> beyond(pl.Series("at", [0, 2**62]).cast(pl.Datetime("us"))).tolist()
    [1]
    """
    dtype = column.dtype
    if isinstance(dtype, pl.Struct):
        found = [beyond(column.struct.field(field.name)) for field in dtype.fields if is_bounded(field.dtype)]
        return np.unique(np.concatenate(found)) if found else _NONE
    if isinstance(dtype, pl.List | pl.Array):
        return _beyond_in_lists(column, dtype)
    bounds = _bounds(dtype)
    if bounds is None or (isinstance(dtype, pl.Decimal) and not _digits_beyond(column, dtype)):
        return _NONE
    numbers = column.to_physical()
    lowest, highest = numbers.min(), numbers.max()
    if not isinstance(lowest, int) or not isinstance(highest, int) or (bounds[0] <= lowest and highest <= bounds[1]):
        return _NONE
    return ((numbers < bounds[0]) | (numbers > bounds[1])).arg_true().to_numpy().astype(np.int64)


def why_beyond(column: pl.Series, row: int) -> str:
    """Say why what a row holds can't be represented, without showing the value: Polars can't.

    >>> why_beyond(pl.Series("at", [2**62]).cast(pl.Datetime("us")), 0)
    "column 'at' holds 4611686018427387904 us since 1970, but times must be in the years 1 to 9999"
    """
    value, dtype = column.slice(row, 1), column.dtype
    match dtype:
        case pl.Datetime():
            number = value.to_physical().item()
            found = f"{number} {dtype.time_unit} since 1970, but times must be in the years 1 to 9999"
        case pl.Date():
            found = f"{value.to_physical().item()} days since 1970, but dates must be in the years 1 to 9999"
        case pl.Duration():
            number = value.to_physical().item()
            found = f"a duration of {number} {dtype.time_unit}, but durations must be shorter than a billion days"
        case pl.Decimal():
            found = f"{_with_point(value.to_physical().item(), dtype.scale)}, which has more digits than {dtype}"
        case _:
            found = f"in a {dtype} a date, time, duration or decimal that is out of range"
    return f"column {column.name!r} holds {found}"


_NONE: npt.NDArray[np.int64] = np.empty(0, np.int64)


def _beyond_in_lists(column: pl.Series, dtype: pl.List | pl.Array) -> npt.NDArray[np.int64]:
    if not is_bounded(dtype.inner):
        return _NONE
    lists = column.arr.to_list() if isinstance(dtype, pl.Array) else column
    there = (lists.list.len() > 0).fill_null(value=False)
    filled = lists.filter(there)
    wrong = beyond(filled.explode())
    if not wrong.size:
        return _NONE
    owners = np.repeat(there.arg_true().to_numpy(), filled.list.len().to_numpy())
    return np.unique(owners[wrong]).astype(np.int64)


def _bounds(dtype: object) -> tuple[int, int] | None:
    """The smallest and the largest number that a value of this type may be; None for types that have no such bounds."""
    if isinstance(dtype, pl.Date):
        return _FIRST_DAY, _LAST_DAY
    if isinstance(dtype, pl.Duration):
        a_day = _SECONDS_A_DAY * _PER_SECOND[dtype.time_unit]
        return -_DURATION_DAYS * a_day, _DURATION_DAYS * a_day
    if isinstance(dtype, pl.Datetime):
        return _moments(dtype.time_unit, dtype.time_zone)
    if isinstance(dtype, pl.Decimal):
        most = 10 ** (dtype.precision or 38) - 1
        return -most, most
    return None


def _digits_beyond(column: pl.Series, dtype: pl.Decimal) -> bool:
    """Whether a decimal has more digits than its type. A fraction of the time of a look at the column's numbers."""
    beyond = Decimal(10) ** ((dtype.precision or 38) - dtype.scale)
    low, high = column.min(), column.max()  # rounded to 38 digits, if they have more
    return isinstance(low, Decimal) and isinstance(high, Decimal) and (low <= -beyond or beyond <= high)


def _with_point(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    point = len(digits) - scale
    return f"{'-' * (number < 0)}{digits[:point]}{'.' * (scale > 0)}{digits[point:]}"


@lru_cache
def _moments(unit: str, zone: str | None) -> tuple[int, int]:
    """The first and the last moment that are in the calendar, in UTC and in local time."""
    first, after = _FIRST_DAY * _SECONDS_A_DAY, (_LAST_DAY + 1) * _SECONDS_A_DAY
    if zone is not None:
        first += max(-_offset_s(zone, datetime.min), 0)
        after -= max(_offset_s(zone, datetime.max), 0)
    return first * _PER_SECOND[unit], after * _PER_SECOND[unit] - 1


def _offset_s(zone: str, moment: datetime) -> int:
    """By how much the zone's local time is ahead of UTC."""
    offset = ZoneInfo(zone).utcoffset(moment)
    return 0 if offset is None else offset // _SECOND
