"""The built-in aggregates of windows, and the dtypes that they yield.

The dtypes are chosen so that a long-lived window can't overflow a narrow column: counts and sums of
integers are 64 bits wide whatever came in.
"""

from __future__ import annotations

import polars as pl

from headrace.api.location import Declaring
from headrace.api.specs import Aggregate
from headrace.core.errors import DeclarationError


def count(column: str | pl.Expr | None = None) -> Aggregate:
    """The number of messages, or of the values of ``column`` that aren't null, as Int64.

    >>> hr.count().kind, hr.count("referrer").kind
    ('count', 'count')
    """
    return Aggregate("count", None if column is None else _expression("count", column))


def sum(column: str | pl.Expr) -> Aggregate:
    """The sum of a column or expression; nulls count as nothing.

    Integers and Booleans sum to Int64 (UInt64 and 128-bit integers stay what they are), floats to
    Float64, decimals to the widest decimal of their scale, durations to durations.

    >>> hr.sum("bytes").kind, hr.sum(pl.col("bytes") / 1024).kind
    ('sum', 'sum')
    """
    return Aggregate("sum", _expression("sum", column))


def min(column: str | pl.Expr) -> Aggregate:
    """The smallest value, of the column's own dtype; nulls are passed over.

    >>> hr.min("price").kind
    'min'
    """
    return Aggregate("min", _expression("min", column))


def max(column: str | pl.Expr) -> Aggregate:
    """The largest value, of the column's own dtype; nulls are passed over.

    >>> hr.max("price").kind
    'max'
    """
    return Aggregate("max", _expression("max", column))


def mean(column: str | pl.Expr) -> Aggregate:
    """The mean of the values that aren't null, as Float64.

    >>> hr.mean("latency").kind
    'mean'
    """
    return Aggregate("mean", _expression("mean", column))


def collect(column: str | pl.Expr) -> Aggregate:
    """All values in a list, nulls included. It keeps every value until the window is over.

    >>> hr.collect("url").kind
    'collect'
    """
    return Aggregate("collect", _expression("collect", column))


def aggregate_dtype(aggregate: Aggregate, value: pl.DataType | None) -> pl.DataType:
    """What ``aggregate`` yields over values of dtype ``value`` (None: it takes no value)."""
    if value is None:
        return pl.Int64()
    result: pl.DataType | None
    match aggregate.kind:
        case "count":
            result = pl.Int64()
        case "sum":
            result = _sum_dtype(value)
        case "mean":
            result = pl.Float64() if value.is_numeric() or value == pl.Boolean else None
        case "min" | "max":
            result = None if value.is_nested() or value.is_object() or value == pl.Null else value
        case "collect":
            result = pl.List(value)
    if result is None:
        raise DeclarationError(
            f"there is no {aggregate.kind} of {value}",
            hint="cast the column to a type that has one, or collect() it",
        )
    return result


def _sum_dtype(value: pl.DataType) -> pl.DataType | None:
    if value == pl.UInt64 or value in (pl.Int128, pl.UInt128) or isinstance(value, pl.Duration):
        return value
    if value.is_integer() or value == pl.Boolean:
        return pl.Int64()
    if value.is_float():
        return pl.Float64()
    if isinstance(value, pl.Decimal):
        return pl.Decimal(38, value.scale)
    return None


def _expression(name: str, column: object) -> pl.Expr:
    if isinstance(column, pl.Expr):
        return column
    if isinstance(column, str):
        return pl.col(column)
    with Declaring(name):
        raise DeclarationError(
            f"its argument must be a column name or an expression, and is {type(column).__name__} {column!r:.80}",
            hint=f'write {name}("price") or {name}(pl.col("price") * 2)',
        )
