"""Casts of one column that change no value, and the rows whose value would not survive.

Always without loss: widening of integers and floats, anything of type Null, category to string, lists
and structs of such. Dependent on the value: text to a number, bool, date or datetime; narrowing and
crossing of integers and floats; decimals. Anything else is refused.
"""

from __future__ import annotations

from enum import Enum

import polars as pl

from headrace.core.errors import DataError
from headrace.serdes.dtypes import instantiate


class Fit(Enum):
    """What a cast from one type to another can do to values."""

    SAME = "same"
    LOSSLESS = "lossless"
    BY_VALUE = "by value"
    NEVER = "never"


_BITS: dict[type[pl.DataType], int] = {
    pl.Int8: 7,
    pl.Int16: 15,
    pl.Int32: 31,
    pl.Int64: 63,
    pl.UInt8: 8,
    pl.UInt16: 16,
    pl.UInt32: 32,
    pl.UInt64: 64,
}
_MANTISSA: dict[type[pl.DataType], int] = {pl.Float32: 24, pl.Float64: 53}
_UNIT_ORDER = {"ms": 0, "us": 1, "ns": 2}


def cast_column(series: pl.Series, expected: pl.DataType) -> tuple[pl.Series, list[int]]:
    """The column as ``expected``, and the rows (indexes) whose value can't be; these hold anything.

    Raises ``DataError`` when no cast between the two types keeps values.
    """
    found = series.dtype
    fit = fit_of(found, expected)
    if fit is Fit.SAME:
        return series, []
    if fit is Fit.LOSSLESS:
        return series.cast(expected), []
    if fit is Fit.NEVER:
        raise DataError(
            f"column {series.name!r}: expected {expected}, found {found}",
            hint=f"declare the column as {found}, or convert it where it is written",
        )
    cast = _parse(series, expected) if found == pl.String else series.cast(expected, strict=False)
    if found == pl.String:
        misfit = cast.is_null() & series.is_not_null()
    else:
        # What survives the way there and back has lost nothing; a null where a value was is a loss too.
        misfit = cast.cast(found, strict=False).ne_missing(series)
    return cast, misfit.arg_true().to_list()


def fit_of(found: pl.DataType, expected: pl.DataType) -> Fit:
    """How values of ``found`` fare when cast to ``expected``."""
    if found == expected:
        return Fit.SAME
    if found == pl.Null:
        return Fit.LOSSLESS
    if isinstance(found, pl.List) and isinstance(expected, pl.List):
        return _nested([(found.inner, expected.inner)])
    if isinstance(found, pl.Struct) and isinstance(expected, pl.Struct):
        there = {field.name: field.dtype for field in found.fields}
        if {field.name for field in expected.fields} != set(there):
            return Fit.NEVER
        if [field.name for field in found.fields] != [field.name for field in expected.fields]:
            return Fit.NEVER
        return _nested([(there[field.name], field.dtype) for field in expected.fields])
    if found == pl.String:
        return _from_text(expected)
    if isinstance(found, pl.Categorical | pl.Enum):
        return Fit.LOSSLESS if expected == pl.String else Fit.NEVER
    if isinstance(found, pl.Date):
        return Fit.LOSSLESS if expected in (pl.Datetime("ms"), pl.Datetime("us")) else Fit.NEVER
    if isinstance(found, pl.Datetime) and isinstance(expected, pl.Datetime):
        return _between_units(found, expected)
    return _between_numbers(found, expected)


def _nested(pairs: list[tuple[object, object]]) -> Fit:
    """Inside lists and structs only what never loses: a misfit there has no row of its own."""
    # The parts of a declared type may be classes, as in pl.List(pl.Int64).
    fits = [fit_of(instantiate(found), instantiate(expected)) for found, expected in pairs]
    whole = all(fit in (Fit.SAME, Fit.LOSSLESS) for fit in fits)
    return Fit.LOSSLESS if whole else Fit.NEVER


def _from_text(expected: pl.DataType) -> Fit:
    if isinstance(expected, pl.Categorical):
        return Fit.LOSSLESS
    readable = expected.is_numeric() or isinstance(expected, pl.Boolean | pl.Date | pl.Datetime | pl.Enum)
    return Fit.BY_VALUE if readable else Fit.NEVER


def _between_units(found: pl.Datetime, expected: pl.Datetime) -> Fit:
    if found.time_zone != expected.time_zone:
        return Fit.NEVER
    # Nanoseconds reach only from 1677 to 2262: a year beyond has to be looked for.
    if _UNIT_ORDER[found.time_unit] < _UNIT_ORDER[expected.time_unit] and expected.time_unit != "ns":
        return Fit.LOSSLESS
    return Fit.BY_VALUE


def _between_numbers(found: pl.DataType, expected: pl.DataType) -> Fit:
    if not (found.is_numeric() and expected.is_numeric()):
        return Fit.NEVER
    old, new = type(found), type(expected)
    if old in _BITS and new in _BITS:
        to_unsigned = old.is_signed_integer() and not new.is_signed_integer()
        return Fit.LOSSLESS if _BITS[old] <= _BITS[new] and not to_unsigned else Fit.BY_VALUE
    if old in _BITS and new in _MANTISSA:
        return Fit.LOSSLESS if _BITS[old] <= _MANTISSA[new] else Fit.BY_VALUE
    if old in _MANTISSA and new in _MANTISSA:
        # A float64 from JSON or CSV is nearly never a float32; all rows would be misfits.
        return Fit.LOSSLESS if _MANTISSA[old] <= _MANTISSA[new] else Fit.NEVER
    if old in _MANTISSA and isinstance(expected, pl.Decimal):
        return Fit.NEVER
    return Fit.BY_VALUE


def _parse(series: pl.Series, expected: pl.DataType) -> pl.Series:
    """Read text; what can't be read becomes null."""
    if isinstance(expected, pl.Boolean):
        words = {"true": True, "false": False}
        return series.str.to_lowercase().replace_strict(words, default=None, return_dtype=pl.Boolean)
    if isinstance(expected, pl.Date):
        return series.str.to_date("%Y-%m-%d", strict=False)
    if isinstance(expected, pl.Datetime):
        return _parse_datetimes(series, expected)
    return series.cast(expected, strict=False)


def _parse_datetimes(series: pl.Series, expected: pl.Datetime) -> pl.Series:
    """Read ISO 8601, with ``T`` or a blank, with or without an offset; without one it is UTC."""
    text = series.str.strip_chars().str.replace(" ", "T", literal=True).str.replace("[zZ]$", "+00:00")
    moments: list[pl.Series] = []
    for pattern in ("%Y-%m-%dT%H:%M:%S%.f%:z", "%Y-%m-%dT%H:%M:%S%.f"):
        read = text.str.to_datetime(pattern, time_unit=expected.time_unit, strict=False)
        moments.append(read.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if "z" in pattern else read)
    days = text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime(expected.time_unit))
    found = moments[0].zip_with(moments[0].is_not_null(), moments[1])
    found = found.zip_with(found.is_not_null(), days)
    zone = expected.time_zone
    return found if zone is None else found.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
