"""Recognise Polars' own aggregations and turn them into Headrace's.

An expression is recognised by its tree: ``meta.pop`` takes it apart, and ``meta.eq`` compares it with what Polars
builds from the parts, so no serialised form is involved. An aggregation is accepted only if Headrace's result has the
same value as Polars'; its dtype may be wider, because counts and sums have 64 bits. All other expressions are refused.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from polars.exceptions import PolarsError

from headrace.api.expressions import short
from headrace.api.operators.aggregate import Aggregate, AggregateKind
from headrace.core.errors import DeclarationError

_PASSING_OVER_NULLS: dict[AggregateKind, Callable[[pl.Expr], pl.Expr]] = {
    "sum": pl.Expr.sum,
    "min": pl.Expr.min,
    "max": pl.Expr.max,
    "mean": pl.Expr.mean,
    "count": pl.Expr.count,
}
_COUNTING_NULL_ONCE: dict[AggregateKind, Callable[[pl.Expr], pl.Expr]] = {
    "n_unique": pl.Expr.n_unique,
    "approx_n_unique": pl.Expr.approx_n_unique,
}
_BY_ROW_ORDER: dict[AggregateKind, Callable[[pl.Expr], pl.Expr]] = {"first": pl.Expr.first, "last": pl.Expr.last}

SUPPORTED = (
    "Headrace accepts these aggregations of Polars: pl.len(), and sum, min, max, mean, count, len, null_count, "
    "implode, drop_nulls().n_unique(), drop_nulls().approx_n_unique() and drop_nulls().top_k(k) of an expression; "
    "hr.aggregates has first, last, top_k, n_unique, fold and reduce; "
    "compute with results afterwards: .agg(...).with_columns(...)"
)
"""Return the hint for an expression that isn't an aggregate here."""


def aggregate_of(expr: pl.Expr) -> Aggregate:
    """Return the aggregate of a Polars expression; raises if it isn't one, or if Headrace's result would differ."""
    bare = _unaliased(expr)
    if _equal(bare, pl.len()):
        return Aggregate("count")
    parts = bare.meta.pop()
    if not parts:
        raise _unknown(bare)
    value = parts[-1]  # Polars pops the last argument first
    if len(parts) == 2 and _equal(bare, value.top_k(parts[0])):
        return _top_k(value, parts[0])
    if len(parts) != 1:
        raise _unknown(bare)
    for kind, polars in _PASSING_OVER_NULLS.items():
        if _equal(bare, polars(value)):
            return Aggregate(kind, _where_true(_without_drop_nulls(value)))
    for kind, polars in _COUNTING_NULL_ONCE.items():
        if _equal(bare, polars(value)):
            return Aggregate(kind, _where_true(_after_drop_nulls(value, bare, kind)))
    for kind, polars in _BY_ROW_ORDER.items():
        if _equal(bare, polars(value)):
            raise DeclarationError(
                f"{short(bare)} depends on the order of rows, but a window's rows are only in order of arrival",
                hint=f"write hr.aggregates.{kind}({short(value)}), which uses event time",
            )
    if _equal(bare, value.implode()) or _equal(bare, value.implode(maintain_order=False)):
        return Aggregate("implode", value)
    if _equal(bare, value.len()):
        return Aggregate("count", value.is_null())  # a Boolean per row, never null
    if _equal(bare, value.null_count()):
        return Aggregate("sum", value.is_null())
    raise _unknown(bare)


def name_of(expr: pl.Expr) -> str:
    """Return the name that Polars would give the result."""
    name = expr.meta.output_name(raise_if_undetermined=False)
    if not name or expr.meta.has_multiple_outputs():
        raise DeclarationError(
            f"{short(expr)} doesn't give exactly one named column",
            hint="write one aggregate for each column: total=...",
        )
    return name


def _top_k(value: pl.Expr, k: pl.Expr) -> Aggregate:
    if not k.meta.is_literal():
        raise DeclarationError(f"top_k takes a number, not {short(k)}", hint="write top_k(3)")
    most = pl.select(k).item()
    kept = _where_true(_after_drop_nulls(value, value.top_k(k), "top_k"))
    return Aggregate("top_k", kept, by=kept, k=int(most))


def _unaliased(expr: pl.Expr) -> pl.Expr:
    """Return the expression without its own aliases; names inside it (of struct fields) stay."""
    while True:
        parts = expr.meta.pop()
        name = expr.meta.output_name(raise_if_undetermined=False)
        if len(parts) != 1 or not name or not _equal(expr, parts[0].alias(name)):
            return expr
        expr = parts[0]


def _without_drop_nulls(value: pl.Expr) -> pl.Expr:
    parts = value.meta.pop()
    return parts[0] if len(parts) == 1 and _equal(value, parts[0].drop_nulls()) else value


def _after_drop_nulls(value: pl.Expr, whole: pl.Expr, kind: str) -> pl.Expr:
    """Return ``value`` without its ``drop_nulls``, which is required because only Headrace ignores nulls anyway."""
    kept = _without_drop_nulls(value)
    if kept is value:
        raise DeclarationError(
            f"{short(whole)} counts null as a value, but Headrace leaves nulls out",
            hint=f"write {short(value)}.drop_nulls() before .{kind}, or hr.aggregates.{kind}(...)",
        )
    return kept


def _where_true(value: pl.Expr) -> pl.Expr:
    """Return ``x.filter(p)`` as one value per row: null where ``p`` isn't true, so that the aggregate ignores it."""
    parts = value.meta.pop()
    if len(parts) == 2 and _equal(value, parts[1].filter(parts[0])):
        return pl.when(parts[0]).then(_without_drop_nulls(parts[1]))
    return value


def _equal(one: pl.Expr, other: pl.Expr) -> bool:
    try:
        return one.meta.eq(other)
    except PolarsError:
        return False


def _unknown(expr: pl.Expr) -> DeclarationError:
    return DeclarationError(f"{short(expr)} is not an aggregation that windows support", hint=SUPPORTED)
