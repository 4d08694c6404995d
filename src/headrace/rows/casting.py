"""Casts that change no value, and the values that columns may hold. Pure.

**Casting.** Some casts never lose anything: widening of integers and floats, any cast from type Null, category to
string, and the same inside lists and structs. Others depend on the value: text to a number, bool, date or datetime;
narrowing of integers; between integers and floats; decimals. All other casts are refused.

**Bounds.** Rows may hold only dates, times, durations and decimals that Python and all readers can represent. Polars
computes with any, but it panics, or raises what no step expects, when one beyond its own calendar is printed, written
as text or handed to a function; and it doesn't check the digits of sums. So such values are found where rows come in,
where an expression or a function makes them, and before they are written.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.core.errors import DataError
from headrace.rows.dtypes import instantiate


class CastSafety(Enum):
    """What a cast from one type to another can do to values."""

    SAME = "same"
    LOSSLESS = "lossless"
    BY_VALUE = "by value"
    NEVER = "never"


_BITS: dict[type[pl.DataType], int] = {
    pl.Int8: 7, pl.Int16: 15, pl.Int32: 31, pl.Int64: 63, pl.UInt8: 8, pl.UInt16: 16, pl.UInt32: 32, pl.UInt64: 64
}  # fmt: skip
_MANTISSA: dict[type[pl.DataType], int] = {pl.Float32: 24, pl.Float64: 53}
_UNIT_ORDER = {"ms": 0, "us": 1, "ns": 2}


def cast_column(series: pl.Series, expected: pl.DataType) -> tuple[pl.Series, list[int]]:
    """The column as ``expected``, and the indexes of the rows whose value doesn't survive: they hold arbitrary values.
    Raises ``DataError`` when no cast between the two types keeps values."""
    found = series.dtype
    safety = cast_safety(found, expected)
    if safety is CastSafety.SAME:
        return series, []
    if safety is CastSafety.LOSSLESS:
        return series.cast(expected), []
    if safety is CastSafety.NEVER:
        raise DataError(
            f"column {series.name!r}: expected {expected}, found {found}",
            hint=f"declare the column as {found}, or convert it in the program that writes it",
        )
    cast = _parse(series, expected) if found == pl.String else series.cast(expected, strict=False)
    if found == pl.String:
        misfit = cast.is_null() & series.is_not_null()
    else:
        # A value that survives the round trip has lost nothing. ne_missing also finds a null in place of a value.
        # Int64 to Int8: [1, 300, None] becomes [1, None, None], which as Int64 differs from the original in row 1.
        misfit = cast.cast(found, strict=False).ne_missing(series)
    return cast, misfit.arg_true().to_list()


def cast_safety(found: pl.DataType, expected: pl.DataType) -> CastSafety:
    if found == expected:
        return CastSafety.SAME
    if found == pl.Null:
        return CastSafety.LOSSLESS
    if isinstance(found, pl.List) and isinstance(expected, pl.List):
        return _nested([(found.inner, expected.inner)])
    if isinstance(found, pl.Struct) and isinstance(expected, pl.Struct):
        names = [field.name for field in found.fields]
        if names != [field.name for field in expected.fields]:
            return CastSafety.NEVER
        return _nested([(f.dtype, e.dtype) for f, e in zip(found.fields, expected.fields, strict=True)])
    if found == pl.String:
        if isinstance(expected, pl.Categorical):
            return CastSafety.LOSSLESS
        readable = expected.is_numeric() or isinstance(expected, pl.Boolean | pl.Date | pl.Datetime | pl.Enum)
        return CastSafety.BY_VALUE if readable else CastSafety.NEVER
    if isinstance(found, pl.Categorical | pl.Enum):
        return CastSafety.LOSSLESS if expected == pl.String else CastSafety.NEVER
    if isinstance(found, pl.Date):
        return CastSafety.LOSSLESS if expected in (pl.Datetime("ms"), pl.Datetime("us")) else CastSafety.NEVER
    if isinstance(found, pl.Datetime) and isinstance(expected, pl.Datetime):
        return _between_units(found, expected)
    return _between_numbers(found, expected)


def _nested(pairs: list[tuple[object, object]]) -> CastSafety:
    """Allow only lossless casts inside lists and structs: a misfit there couldn't be reported by row."""
    # The inner types of a declared type may be classes, as in pl.List(pl.Int64).
    inner = [cast_safety(instantiate(found), instantiate(expected)) for found, expected in pairs]
    lossless = all(safety in (CastSafety.SAME, CastSafety.LOSSLESS) for safety in inner)
    return CastSafety.LOSSLESS if lossless else CastSafety.NEVER


def _between_units(found: pl.Datetime, expected: pl.Datetime) -> CastSafety:
    if found.time_zone != expected.time_zone:
        return CastSafety.NEVER
    # In nanoseconds only the years 1677 to 2262 fit, so even a finer unit depends on the value.
    if _UNIT_ORDER[found.time_unit] < _UNIT_ORDER[expected.time_unit] and expected.time_unit != "ns":
        return CastSafety.LOSSLESS
    return CastSafety.BY_VALUE


def _between_numbers(found: pl.DataType, expected: pl.DataType) -> CastSafety:
    if not (found.is_numeric() and expected.is_numeric()):
        return CastSafety.NEVER
    old, new = type(found), type(expected)
    if old in _BITS and new in _BITS:
        to_unsigned = old.is_signed_integer() and not new.is_signed_integer()
        return CastSafety.LOSSLESS if _BITS[old] <= _BITS[new] and not to_unsigned else CastSafety.BY_VALUE
    if old in _BITS and new in _MANTISSA:
        return CastSafety.LOSSLESS if _BITS[old] <= _MANTISSA[new] else CastSafety.BY_VALUE
    if old in _MANTISSA and new in _MANTISSA:
        # Hardly any float64 from JSON or CSV is exactly a float32: nearly all rows would be misfits.
        return CastSafety.LOSSLESS if _MANTISSA[old] <= _MANTISSA[new] else CastSafety.NEVER
    if old in _MANTISSA and isinstance(expected, pl.Decimal):
        return CastSafety.NEVER
    return CastSafety.BY_VALUE


def _parse(series: pl.Series, expected: pl.DataType) -> pl.Series:
    """Values that can't be parsed become null."""
    if isinstance(expected, pl.Boolean):
        words = {"true": True, "false": False}
        return series.str.to_lowercase().replace_strict(words, default=None, return_dtype=pl.Boolean)
    if isinstance(expected, pl.Date):
        return series.str.to_date("%Y-%m-%d", strict=False)
    if isinstance(expected, pl.Datetime):
        return _parse_datetimes(series, expected)
    return with_exact_digits(series, expected).cast(expected, strict=False)


def with_exact_digits(text: pl.Series, expected: object) -> pl.Series:
    """Text as it is; but if it becomes decimals, unreadable where a cast would round digits away.

    >>> with_exact_digits(pl.Series(["1.23", "1.239", "1239e-3", "1.2300"]), pl.Decimal(5, 2)).to_list()
    ['1.23', '1.239 (too many digits after the point)', '1239e-3 (too many digits after the point)', '1.2300']
    """
    if not isinstance(expected, pl.Decimal) or not text.str.contains(rf"\.\d{{{expected.scale}}}\d|[eE]").any():
        return text
    # 12.30e-2 needs 2 digits after its point, 2 more by its exponent, and 1 less since the last of all digits is zero.
    number = pl.lit(text)
    mantissa = number.str.replace("[eE].*$", "")
    digits = mantissa.str.replace_all("[^0-9]", "")
    after_point = mantissa.str.extract(r"\.(\d*)$").fill_null("").str.len_bytes().cast(pl.Int64)
    exponent = number.str.extract(r"[eE]([+-]?\d+)$").cast(pl.Int64, strict=False).fill_null(0)
    zeros = (digits.str.len_bytes() - digits.str.strip_chars_end("0").str.len_bytes()).cast(pl.Int64)
    lost = (after_point - exponent - zeros > expected.scale) & digits.str.contains("[1-9]")
    marked = pl.when(lost).then(number + " (too many digits after the point)").otherwise(number)
    return pl.select(marked.alias(text.name)).to_series()


def _parse_datetimes(series: pl.Series, expected: pl.Datetime) -> pl.Series:
    """Parse ISO 8601: a date, or date and time with ``T`` or a blank between; without an offset it is UTC."""
    text = series.str.strip_chars().str.replace(" ", "T", literal=True).str.replace("[zZ]$", "+00:00")
    # Each of the three forms is tried on the whole column; a row takes the first one that parses.
    unit = expected.time_unit
    with_offset = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit=unit, strict=False)
    with_offset = with_offset.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    without_offset = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit=unit, strict=False)
    dates = text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime(unit))
    parsed = with_offset.zip_with(with_offset.is_not_null(), without_offset)
    parsed = parsed.zip_with(parsed.is_not_null(), dates)
    zone = expected.time_zone
    return parsed if zone is None else parsed.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)


# -- bounds ------------------------------------------------------------------------------------------
PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SECONDS_A_DAY = 86_400
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


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
    """Why what a row holds can't be represented, without showing the value: Polars can't.

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
    if isinstance(dtype, pl.Date):
        return _FIRST_DAY, _LAST_DAY
    if isinstance(dtype, pl.Duration):
        most = timedelta.max.days * _SECONDS_A_DAY * PER_SECOND[dtype.time_unit]
        return -most, most
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
    first, after = _FIRST_DAY * _SECONDS_A_DAY, (_LAST_DAY + 1) * _SECONDS_A_DAY
    if zone is not None:
        first += max(-_offset_s(zone, datetime.min), 0)
        after -= max(_offset_s(zone, datetime.max), 0)
    return first * PER_SECOND[unit], after * PER_SECOND[unit] - 1


def _offset_s(zone: str, moment: datetime) -> int:
    offset = ZoneInfo(zone).utcoffset(moment)
    return 0 if offset is None else offset // timedelta(seconds=1)


def filled(series: pl.Series, value: object) -> pl.Series:
    """The column with ``value`` in place of nulls. ``fill_null`` takes 80 µs even for ten rows without any."""
    return series.fill_null(value) if series.null_count() else series
