"""Built-in aggregates as three expressions each: partial results of a batch, their merge, the final value.

Merging is associative, so partial results can be made anywhere and in any grouping. All vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from headrace.api.specs import Aggregate


@dataclass(frozen=True, slots=True)
class _Part:
    """One column of partial results. ``of`` computes it from a batch's group, ``merge`` from several of its kind."""

    of: Callable[[pl.Expr], pl.Expr]
    merge: Callable[[pl.Expr], pl.Expr]


@dataclass(frozen=True, slots=True)
class _Rule:
    parts: tuple[_Part, ...]
    final: Callable[[Sequence[pl.Expr]], pl.Expr]


def _sum(value: pl.Expr) -> pl.Expr:
    return value.sum()


_RULES: dict[str, _Rule] = {
    "count": _Rule((_Part(lambda v: v.count().cast(pl.Int64), _sum),), lambda p: p[0]),
    "sum": _Rule((_Part(_sum, _sum),), lambda p: p[0]),
    "min": _Rule((_Part(lambda v: v.min(), lambda v: v.min()),), lambda p: p[0]),
    "max": _Rule((_Part(lambda v: v.max(), lambda v: v.max()),), lambda p: p[0]),
    "mean": _Rule(
        (
            _Part(lambda v: v.cast(pl.Float64).sum(), _sum),
            _Part(lambda v: v.count().cast(pl.Int64), _sum),
        ),
        lambda p: pl.when(p[1] > 0).then(p[0] / p[1]),
    ),
    "collect": _Rule(
        (_Part(lambda v: v, lambda v: v.list.explode(keep_nulls=True, empty_as_null=False)),), lambda p: p[0]
    ),
}


class Aggregation:
    """The aggregates of one window step over key columns (the window's start is one of the keys)."""

    def __init__(
        self, keys: Sequence[str], aggregates: Sequence[tuple[str, Aggregate]], wide: dict[str, pl.DataType]
    ) -> None:
        """``wide`` gives for each aggregate the type of its result, in which partial sums are kept too."""
        self._keys = list(keys)
        self._values: list[pl.Expr] = []
        self._partial: list[pl.Expr] = []
        self._merge: list[pl.Expr] = []
        self._final: list[pl.Expr] = []
        for number, (name, aggregate) in enumerate(aggregates):
            rule = _RULES[aggregate.kind]
            value = self._value(f"__{number}", aggregate.expr)
            if aggregate.kind == "sum":
                value = value.cast(wide[name])
            columns = [f"__{number}_{part}" for part in range(len(rule.parts))]
            for column, part in zip(columns, rule.parts, strict=True):
                of = pl.len().cast(pl.Int64) if aggregate.expr is None else part.of(value)
                self._partial.append(of.alias(column))
                self._merge.append(part.merge(pl.col(column)).alias(column))
            self._final.append(rule.final([pl.col(c) for c in columns]).cast(wide[name]).alias(name))

    def partial(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Partial results of a batch."""
        return rows.with_columns(self._values).group_by(self._keys).agg(self._partial)

    def merge(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Partial results that may name a key more than once, as such that don't."""
        return partials.group_by(self._keys).agg(self._merge)

    def final(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Keys and final values, from merged partial results."""
        return partials.select(*self._keys, *self._final)

    def _value(self, column: str, expr: pl.Expr | None) -> pl.Expr:
        """What to aggregate: a column as it is, an expression as a column computed for each row first.

        Within a group a literal would be one value, however many rows the group has.
        """
        if expr is None or expr.meta.is_column():
            return pl.lit(None) if expr is None else expr
        self._values.append(expr.alias(column))
        return pl.col(column)
