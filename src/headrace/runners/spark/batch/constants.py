"""Literals in Polars expressions, and the same values as Spark's literals.

A value is kept as Polars stores it: a date is its days since 1970, a datetime its microseconds, a decimal its digits
and scale. Python's own dates and times would take a detour over time zones and calendars on their way into Spark.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from pyspark.sql import Column
from pyspark.sql import functions as F

_INTEGERS: Mapping[pl.DataType, tuple[int, str]] = {
    pl.Int8(): (8, "tinyint"),
    pl.Int16(): (16, "smallint"),
    pl.Int32(): (32, "int"),
    pl.Int64(): (64, "bigint"),
}
_FLOATS: Mapping[pl.DataType, str] = {pl.Float32(): "float", pl.Float64(): "double"}
_SIMPLE = {str(dtype): dtype for dtype in (*_INTEGERS, *_FLOATS, pl.String(), pl.Boolean(), pl.Date())}
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_TIMES = range((dt.datetime.min - _EPOCH) // _MICROSECOND, (dt.datetime.max - _EPOCH) // _MICROSECOND)
"""The times that Python and the texts of Spark can express."""


Value: TypeAlias = int | float | str | bytes | Decimal


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that isn't null, as stored. ``dtype`` is None for a number that takes on the type of what it meets."""

    value: Value
    dtype: pl.DataType | None


def stored(values: pl.Series) -> list[Constant]:
    """The values of a series that aren't null."""
    dtype = values.dtype
    raw = values.to_physical() if isinstance(dtype, pl.Date | pl.Datetime) else values
    return [Constant(value, dtype) for value in raw.drop_nulls().to_list()]


def constant(form: Mapping[str, Any]) -> Constant | None:
    """The literal of a serialized expression; None if it is null, or of a type that Spark doesn't have."""
    match form:
        case {"Dyn": {"Int": int(value)}}:
            return Constant(value, None)
        case {"Dyn": {"Float": float(value)}}:
            return Constant(value, None)
        case {"Scalar": {"Float32": float(value)}}:
            return Constant(float(np.float32(value)), pl.Float32())
        case {"Scalar": {"Datetime": [int(value), "Microseconds", None]}}:
            return Constant(value, pl.Datetime("us"))
        case {"Scalar": {"Datetime": [int(value), "Microseconds", {"inner": str(zone)}]}}:
            return Constant(value, pl.Datetime("us", zone))
        case {"Scalar": {"Decimal": [int(digits), int(precision), int(scale)]}}:
            return Constant(_decimal(digits, scale), pl.Decimal(precision, scale))
        case {"Scalar": {"Binary": list(value)}}:
            return Constant(bytes(value), pl.Binary())
        case {"Scalar": dict(scalar)} if len(scalar) == 1:
            ((name, value),) = scalar.items()
            if name in _SIMPLE and isinstance(value, int | float | str):
                return Constant(value, _SIMPLE[name])
    return None


def fitting(part: Constant, dtype: pl.DataType) -> Value | None:
    """The value of ``part`` as one of ``dtype``; None if it isn't one exactly, so that a conversion would matter."""
    value, own = part.value, part.dtype
    if dtype in _INTEGERS and isinstance(value, int) and (own is None or own in _INTEGERS):
        bits, _ = _INTEGERS[dtype]
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    elif dtype in _FLOATS and isinstance(value, int | float) and (own is None or own in _FLOATS):
        if _is_exact(value, dtype):
            return float(value)
    elif isinstance(dtype, pl.Decimal) and isinstance(value, Decimal):
        if _has_digits(value, dtype):
            return value
    elif own == dtype and (not isinstance(dtype, pl.Datetime) or value in _TIMES):
        return value
    return None


def spark_literal(value: Value, dtype: pl.DataType) -> Column:
    """The value of a literal of ``dtype``, as ``fitting`` has returned it. Spark computes it once, when it plans."""
    if dtype in _INTEGERS:
        return F.lit(value).cast(_INTEGERS[dtype][1])
    if dtype in _FLOATS:
        return F.lit(value).cast(_FLOATS[dtype])
    if isinstance(dtype, pl.Decimal):
        return F.lit(str(value)).cast(f"decimal({dtype.precision},{dtype.scale})")
    if dtype == pl.Date():
        return F.date_from_unix_date(F.lit(value))
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return F.timestamp_micros(F.lit(value).cast("bigint"))
    if isinstance(dtype, pl.Datetime) and isinstance(value, int):
        time = _EPOCH + value * _MICROSECOND
        return F.lit(time.isoformat(" ", "microseconds")).cast("timestamp_ntz")
    return F.lit(bytearray(value) if isinstance(value, bytes) else value)


def _decimal(digits: int, scale: int) -> Decimal:
    sign, figures = int(digits < 0), tuple(map(int, str(abs(digits))))
    return Decimal((sign, figures, -scale))


def _has_digits(value: Decimal, dtype: pl.Decimal) -> bool:
    """The value fits into the precision and scale of ``dtype``, without rounding."""
    _, figures, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return False
    digits = int("".join(map(str, figures)) or "0")
    shift = exponent + dtype.scale
    if shift < 0 and digits % 10**-shift:
        return False
    scaled = digits * 10**shift if shift >= 0 else digits // 10**-shift
    return len(str(scaled)) <= dtype.precision


def _is_exact(value: int | float, dtype: pl.DataType) -> bool:
    try:
        close = float(value)
    except OverflowError:
        return False
    if dtype == pl.Float32():
        with np.errstate(over="ignore"):
            close = float(np.float32(close))
    return bool(close == value)
