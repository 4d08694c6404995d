"""The built-in aggregates of windows, and the dtypes that they yield.

The dtypes are chosen so that a long-lived window can't overflow a narrow column: counts and sums of
integers are 64 bits wide whatever came in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from headrace.api.location import Declaring
from headrace.api.rows import check_function
from headrace.api.steps import Aggregate
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


def first(column: str | pl.Expr) -> Aggregate:
    """The value of the message with the earliest event time; of several at that time, the one that came first.

    A null is a value like any other. Where messages have no event time, or the clock's, the order is that of arrival.

    >>> hr.first("url").kind
    'first'
    """
    return Aggregate("first", _expression("first", column))


def last(column: str | pl.Expr) -> Aggregate:
    """The value of the message with the latest event time; of several at that time, the one that came last.

    A null is a value like any other. Where messages have no event time, or the clock's, the order is that of arrival.

    >>> hr.last("url").kind
    'last'
    """
    return Aggregate("last", _expression("last", column))


def top(most: int, column: str | pl.Expr, by: str | pl.Expr | None = None) -> Aggregate:
    """The values of ``column`` where ``by`` (or itself) is largest, in a list, largest first.

    Messages with a null ``by`` are passed over; of equal ones those come first that came first.

    >>> hr.top(3, "url", by="ms").kind
    'top'
    """
    with Declaring("top"):
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise DeclarationError(f"{most!r} is no number of values", hint='write one, like hr.top(3, "url", by="ms")')
    value = _expression("top", column)
    return Aggregate("top", value, by=value if by is None else _expression("top", by), most=most)


def distinct(column: str | pl.Expr, *, approximate: bool = False) -> Aggregate:
    """How many different values there are, nulls left out, as Int64.

    The exact count keeps every value until the window is over. ``approximate`` keeps 16 KB at most (a HyperLogLog of
    4096 registers): its standard error is 1.6 %, and small counts are nearly exact.

    >>> hr.distinct("member").kind, hr.distinct("member", approximate=True).kind
    ('distinct', 'approx_distinct')
    """
    return Aggregate("approx_distinct" if approximate else "distinct", _expression("distinct", column))


def collect(column: str | pl.Expr) -> Aggregate:
    """All values in a list in order of arrival, nulls included. It keeps every value until the window is over.

    A sliding window, or a hopping one without triggers, is put together of pieces of time, and a session may be of two:
    then earlier pieces come first.

    >>> hr.collect("url").kind
    'collect'
    """
    return Aggregate("collect", _expression("collect", column))


def fold(
    initial: Any,
    step: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    *,
    dtype: pl.DataType | type[pl.DataType],
    column: str | pl.Expr | None = None,
) -> Aggregate:
    """What a function makes of one message after the other: ``step(so_far, row)``, in order of arrival.

    It begins with a copy of ``initial``, or with what ``initial()`` returns. ``step`` gets rows as ``map`` does, or the
    values of ``column``. What it returns is kept as ``dtype``. ``merge(a, b)`` joins two results; sessions need it.

    >>> longest = hr.fold(0, lambda so_far, row: max(so_far, len(row["url"])), dtype=pl.Int64)
    >>> longest.kind
    'fold'
    """
    with Declaring("fold"):
        check_function(step, "step", ("the result so far", "a row" if column is None else "a value"))
        if merge is not None:
            check_function(merge, "merge", ("a result", "another one"))
        kept = _dtype(dtype)
    expr = None if column is None else _expression("fold", column)
    return Aggregate("fold", expr, function=step, merge=merge, initial=initial, dtype=kept)


def reduce(
    function: Callable[[Any, Any], Any],
    column: str | pl.Expr,
    *,
    dtype: pl.DataType | type[pl.DataType] | None = None,
) -> Aggregate:
    """What ``function(a, b)`` makes of all values of a column, two at a time; nulls are passed over.

    The function has to be associative: ``f(f(a, b), c)`` is ``f(a, f(b, c))``. It yields the column's dtype unless
    ``dtype`` says another.

    >>> hr.reduce(lambda a, b: a | b, "ms").kind
    'reduce'
    """
    with Declaring("reduce"):
        check_function(function, "its function", ("a value", "another one"))
        kept = None if dtype is None else _dtype(dtype)
    return Aggregate("reduce", _expression("reduce", column), function=function, merge=function, dtype=kept)


def aggregate_dtype(
    aggregate: Aggregate, value: pl.DataType | None = None, by: pl.DataType | None = None
) -> pl.DataType:
    """What ``aggregate`` yields over values of dtype ``value`` (None: it takes no value)."""
    if aggregate.dtype is not None:
        return aggregate.dtype
    if value is None:
        return pl.Int64()
    if by is not None and not _has_order(by):
        raise DeclarationError(f"there is no order of {by} to find the top by", hint="cast it to a type that has one")
    result: pl.DataType | None
    match aggregate.kind:
        case "count":
            result = pl.Int64()
        case "sum":
            result = _sum_dtype(value)
        case "mean":
            result = pl.Float64() if value.is_numeric() or value == pl.Boolean else None
        case "min" | "max":
            result = value if _has_order(value) else None
        case "distinct" | "approx_distinct":
            result = pl.Int64() if _has_order(value) else None
        case "collect" | "top":
            result = pl.List(value)
        case _:
            result = value
    if result is None:
        raise DeclarationError(
            f"there is no {aggregate.kind.removeprefix('approx_')} of {value}",
            hint="cast the column to a type that has one, or collect() it",
        )
    return result


def _has_order(dtype: pl.DataType) -> bool:
    return not (dtype.is_nested() or dtype.is_object() or dtype == pl.Null)


def _dtype(dtype: object) -> pl.DataType:
    kept = dtype() if isinstance(dtype, type) and issubclass(dtype, pl.DataType) else dtype
    if not isinstance(kept, pl.DataType) or kept.is_object() or kept == pl.Null:
        raise DeclarationError(
            f"dtype={dtype!r} says nothing of how to keep results",
            hint="name a Polars type: dtype=pl.Int64, dtype=pl.List(pl.String)",
        )
    return kept


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
