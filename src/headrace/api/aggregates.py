"""The aggregates of windows: built-in ones, the dtypes of their results, and Polars' own where they mean the same.

An expression of Polars is recognised by its tree: ``meta.pop`` takes it apart, and ``meta.eq`` compares it with what
Polars builds from the parts. It is accepted only if Headrace's result has the same value as Polars'; its dtype may be
wider: counts and sums of integers have 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from polars.exceptions import PolarsError

from headrace.api.checks import Declaring, check_function, short
from headrace.core.errors import DeclarationError

AggregateKind = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "top_k",
    "n_unique",
    "approx_n_unique",
    "implode",
    "fold",
    "reduce",
]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """An aggregate over a column or expression; ``count`` and ``fold`` need none.

    ``by`` and ``k`` belong to ``top_k``; ``function``, ``merge``, ``initial``, ``dtype`` to ``fold`` and ``reduce``.
    A new ``version`` of these says that values of the earlier one are of no use to the function.
    """

    kind: AggregateKind
    expr: pl.Expr | None = None
    by: pl.Expr | None = None
    k: int = 0
    function: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    initial: Any = None
    dtype: pl.DataType | None = None
    version: str = ""

    @property
    def definition(self) -> str:
        """What its partial results mean. Of a user's function only what is declared can be compared."""
        words: list[str] = [self.kind]
        words += [str(self.k)] if self.k else []
        words += [f"of {_text(self.expr)}"] if self.expr is not None else []
        words += [f"by {_text(self.by)}"] if self.by is not None else []
        words += [f"as {self.dtype}"] if self.dtype is not None else []
        words += [f"version {self.version}"] if self.version else []
        return " ".join(words)


def _text(expr: pl.Expr) -> str:
    return " ".join(str(expr).split())


# -- polars aggregates -------------------------------------------------------------------------------
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


def _aggregate_of(expr: pl.Expr) -> Aggregate:
    """It raises if Headrace's result would differ."""
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
    """The name that Polars would give the result."""
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
    """``value`` without its ``drop_nulls``, which is required because only Headrace ignores nulls anyway."""
    kept = _without_drop_nulls(value)
    if kept is value:
        raise DeclarationError(
            f"{short(whole)} counts null as a value, but Headrace leaves nulls out",
            hint=f"write {short(value)}.drop_nulls() before .{kind}, or hr.aggregates.{kind}(...)",
        )
    return kept


def _where_true(value: pl.Expr) -> pl.Expr:
    """``x.filter(p)`` as one value per row: null where ``p`` isn't true, so that the aggregate ignores it."""
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


# -- aggregates --------------------------------------------------------------------------------------
def count(column: str | pl.Expr | None = None) -> Aggregate:
    """Count messages, or values of ``column`` that aren't null, as Int64; as ``pl.len()`` and ``pl.col("x").count()``.

    Examples
    --------
    >>> hr.count().kind, hr.count("referrer").kind
    ('count', 'count')
    """
    return Aggregate("count", None if column is None else _expression("count", column))


def sum(column: str | pl.Expr) -> Aggregate:
    """Sum ``column``: the name of a column, or a Polars expression of one value for each message. Nulls are ignored.

    Integers and Booleans sum to Int64 (UInt64 and 128-bit integers keep their type), floats to Float64, decimals to
    the widest decimal of their scale, durations to durations. ``pl.col("x").sum()`` is the same.

    Examples
    --------
    >>> hr.sum("bytes").kind, hr.sum(pl.col("bytes") / 1024).kind
    ('sum', 'sum')
    """
    return Aggregate("sum", _expression("sum", column))


def min(column: str | pl.Expr) -> Aggregate:
    """The smallest value of ``column``, of its own dtype; nulls are ignored, as in ``pl.col("x").min()``.

    Examples
    --------
    >>> hr.min("price").kind
    'min'
    """
    return Aggregate("min", _expression("min", column))


def max(column: str | pl.Expr) -> Aggregate:
    """The largest value of ``column``, of its own dtype; nulls are ignored, as in ``pl.col("x").max()``.

    Examples
    --------
    >>> hr.max("price").kind
    'max'
    """
    return Aggregate("max", _expression("max", column))


def mean(column: str | pl.Expr) -> Aggregate:
    """The mean of the values of ``column`` that aren't null, as Float64, as in ``pl.col("x").mean()``.

    Examples
    --------
    >>> hr.mean("latency").kind
    'mean'
    """
    return Aggregate("mean", _expression("mean", column))


def first(column: str | pl.Expr) -> Aggregate:
    """The value of ``column`` with the earliest event time; of several such messages, the one that arrived first.

    A null is a value like any other. Where messages have no event time, or the window follows the clock, the order is
    that of arrival. ``pl.col("x").first()`` depends on the order of rows instead, and is refused.

    Examples
    --------
    >>> hr.aggregates.first("url").kind
    'first'
    """
    return Aggregate("first", _expression("first", column))


def last(column: str | pl.Expr) -> Aggregate:
    """The value of ``column`` with the latest event time; of several such messages, the one that arrived last counts.

    It treats nulls and messages without event time as ``first`` does, and ``pl.col("x").last()`` is refused, too.

    Examples
    --------
    >>> hr.aggregates.last("url").kind
    'last'
    """
    return Aggregate("last", _expression("last", column))


def top_k(column: str | pl.Expr, k: int, by: str | pl.Expr | None = None) -> Aggregate:
    """The ``k`` largest values of ``column`` in a list, largest first; of equal values the first ones come first.

    They are compared by the column or expression ``by`` instead, if it is given. Messages where that is null are left
    out, whereas Polars would fill the list with nulls; ``pl.col("x").drop_nulls().top_k(k)`` is the same.

    Examples
    --------
    >>> hr.aggregates.top_k("url", 3, by="ms").kind
    'top_k'
    """
    with Declaring("top_k"):
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise DeclarationError(
                f"{k!r} is not a number of values", hint='write hr.aggregates.top_k("url", 3, by="ms")'
            )
    value = _expression("top_k", column)
    return Aggregate("top_k", value, by=value if by is None else _expression("top_k", by), k=k)


def n_unique(column: str | pl.Expr) -> Aggregate:
    """Count the distinct values of ``column``, as Int64; nulls are left out.

    The count is exact, so every value is kept until the window closes. ``pl.col("x").drop_nulls().n_unique()`` is the
    same.

    Examples
    --------
    >>> hr.aggregates.n_unique("member").kind
    'n_unique'
    """
    return Aggregate("n_unique", _expression("n_unique", column))


def approx_n_unique(column: str | pl.Expr) -> Aggregate:
    """Estimate the number of distinct values of ``column``, as Int64; nulls are left out.

    A window keeps at most 16 KB (a HyperLogLog of 4096 registers). The standard error is 1.6 %, and small counts are
    nearly exact. ``pl.col("x").drop_nulls().approx_n_unique()`` is the same.

    Examples
    --------
    >>> hr.aggregates.approx_n_unique("member").kind
    'approx_n_unique'
    """
    return Aggregate("approx_n_unique", _expression("approx_n_unique", column))


def implode(column: str | pl.Expr) -> Aggregate:
    """All values of ``column`` in a list in order of arrival, nulls included; as ``pl.col("x").implode()``.

    Every value is kept until the window closes. Sliding windows, and hopping ones without triggers, are assembled from
    pieces of time, and a session may be merged from two; values of earlier pieces then come first.

    Examples
    --------
    >>> hr.aggregates.implode("url").kind
    'implode'
    """
    return Aggregate("implode", _expression("implode", column))


def fold(
    initial: Any,
    step: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None = None,
    *,
    dtype: pl.DataType | type[pl.DataType],
    column: str | pl.Expr | None = None,
    version: str = "",
) -> Aggregate:
    """Aggregate with your own function, called with one message after the other in order of arrival.

    ``initial`` is the first result: a value, which is copied, or a function that returns it. ``step(so_far, row)``
    returns the new result, which may be None only if ``initial`` is. ``row`` is as in ``map``, or a value of ``column``
    if that is given. With ``merge``, ``merge(a, b)`` merges two results; sessions need it. ``dtype`` is the Polars type
    in which results are kept. Change ``version`` when a changed ``step`` can't continue with stored results. The app
    then starts only if you allow it to drop them.

    Examples
    --------
    >>> hr.aggregates.fold(0, lambda so_far, row: max(so_far, len(row["url"])), dtype=pl.Int64).kind
    'fold'
    """
    with Declaring("fold"):
        check_function(step, "step", ("the result so far", "a row" if column is None else "a value"))
        if merge is not None:
            check_function(merge, "merge", ("a result", "another one"))
        kept = _dtype(dtype)
    expr = None if column is None else _expression("fold", column)
    return Aggregate("fold", expr, function=step, merge=merge, initial=initial, dtype=kept, version=version)


def reduce(
    function: Callable[[Any, Any], Any],
    column: str | pl.Expr,
    *,
    dtype: pl.DataType | type[pl.DataType] | None = None,
    version: str = "",
) -> Aggregate:
    """Aggregate the values of ``column`` with a ``function`` that combines two of them; nulls are ignored.

    ``function(a, b)`` returns one value that isn't None, of the Polars type ``dtype``, by default that of the column.
    It must be associative: ``f(f(a, b), c)`` equals ``f(a, f(b, c))``. ``version`` is as for ``fold``.

    Examples
    --------
    >>> hr.aggregates.reduce(lambda a, b: a | b, "ms").kind
    'reduce'
    """
    with Declaring("reduce"):
        check_function(function, "its function", ("a value", "another one"))
        kept = None if dtype is None else _dtype(dtype)
    by = _expression("reduce", column)
    return Aggregate("reduce", by, function=function, merge=function, dtype=kept, version=version)


def named_aggregates(
    aggregates: tuple[Aggregate | pl.Expr, ...], named: Mapping[str, Aggregate | pl.Expr]
) -> tuple[tuple[str, Aggregate], ...]:
    """The aggregates of a window by the names of their columns, from the arguments of ``agg``."""
    found: dict[str, Aggregate] = {}
    for given in aggregates:
        if isinstance(given, Aggregate):
            raise DeclarationError(f"the {given.kind} has no name", hint="pass it as a keyword: .agg(total=...)")
        aggregate = _aggregate("an argument", given)
        name = name_of(given)
        if name in found:
            raise DeclarationError(f"two aggregates are named {name!r}", hint='name them: .alias("total")')
        found[name] = aggregate
    for name, given in named.items():
        if name in found:
            raise DeclarationError(f"two aggregates are named {name!r}", hint="give one of them another name")
        found[name] = _aggregate(repr(name), given)
    return tuple(found.items())


def _aggregate(name: str, given: object) -> Aggregate:
    if isinstance(given, Aggregate):
        return given
    if not isinstance(given, pl.Expr):
        raise DeclarationError(
            f"{name} must be an aggregate, not {type(given).__name__} {given!s:.80}",
            hint=f'write .agg(views=pl.len(), bytes=pl.col("bytes").sum()); {SUPPORTED}',
        )
    try:
        return _aggregate_of(given)
    except DeclarationError as error:
        raise DeclarationError(f"{name}: {error.message}", hint=error.hint) from None


def aggregate_dtype(
    aggregate: Aggregate, value: pl.DataType | None = None, by: pl.DataType | None = None
) -> pl.DataType:
    """The dtype of ``aggregate`` over values of dtype ``value`` (None: it takes no value)."""
    if aggregate.dtype is not None:
        return aggregate.dtype
    if value is None:
        return pl.Int64()
    if by is not None and not _has_order(by):
        raise DeclarationError(
            f"{by} can't be ordered, so top_k can't use it", hint="cast it to a type that can be ordered"
        )
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
        case "n_unique" | "approx_n_unique":
            result = pl.Int64() if _has_order(value) else None
        case "implode" | "top_k":
            result = pl.List(value)
        case _:
            result = value
    if result is None:
        raise DeclarationError(
            f"{aggregate.kind.removeprefix('approx_')} doesn't work for {value}",
            hint="cast the column to another type, or implode() it",
        )
    return result


def _has_order(dtype: pl.DataType) -> bool:
    return not (dtype.is_nested() or dtype.is_object() or dtype == pl.Null)


def _dtype(dtype: object) -> pl.DataType:
    kept = dtype() if isinstance(dtype, type) and issubclass(dtype, pl.DataType) else dtype
    if not isinstance(kept, pl.DataType) or kept.is_object() or kept == pl.Null:
        raise DeclarationError(
            f"dtype={dtype!r} doesn't say how to store results",
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
            f"its argument must be a column name or an expression, not {type(column).__name__} {column!r:.80}",
            hint=f'write {name}("price") or {name}(pl.col("price") * 2)',
        )
