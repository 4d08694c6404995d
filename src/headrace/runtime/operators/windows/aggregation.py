"""Aggregates as expressions: the partial results of a batch, how to merge them, and the final value. All vectorised.

Merging is associative, so partial results can be made anywhere and in any grouping, if they are merged in the order of
arrival: some aggregates depend on it. An aggregate keeps its partial result in one or two columns, its *parts*.
They are named by its kind and name, so the state of a window outlives other aggregates that come, go, or move.
``user_aggregates`` has those that call functions of the user's.

Polars' sums silently wrap around. So partial sums are wider than any sum of messages, and only the final value says
whether its type can hold it: that doesn't depend on which messages were summed together.

For example, the mean of 3 and 5 in one batch and of 10 in the next: the parts, sum and number, are (8.0, 2) and
(10.0, 1), their merge is (18.0, 3), and the final value is 6.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from headrace.api.operators.aggregate import Aggregate
from headrace.runtime.operators.windows.hyperloglog import estimated_count, highest_codes, register_codes
from headrace.runtime.operators.windows.user_aggregates import Calling, UserAggregate
from headrace.serdes.schema import Schema
from headrace.stores.conform import conformed

TIME = "__t"
"""The column that says when a message happened (ms), where that is known."""
_GROUP = "__group"


@dataclass(frozen=True, slots=True)
class _Parts:
    """``of`` computes the parts from a group of values, ``merge`` from several partial results."""

    of: tuple[pl.Expr, ...]
    merge: tuple[pl.Expr, ...]
    final: pl.Expr


_WIDE = pl.Decimal(38, 0)
_HALF = 10**19
"""Half of the digits of a decimal."""


def _summed(value: pl.Expr, wide: pl.DataType, names: Sequence[str]) -> _Parts:
    """An integer is summed as a decimal of 38 digits, and a decimal in two halves. The final value may be null."""
    sums = tuple(pl.col(name).sum() for name in names)
    if isinstance(wide, pl.Decimal):
        digits, half = value.cast(wide).to_physical(), pl.lit(_HALF, pl.Int128)
        upper, lower = (pl.col(name).to_physical() for name in names)
        carried = upper + lower // half
        # 38 digits: the upper half is below 10^19, and above -10^19 unless it is followed by the lower half of -1.
        fits = carried.is_between(-_HALF, _HALF - 1) & ((carried > -_HALF) | (lower % half > 0))
        total = pl.when(fits).then(carried * half + lower % half)
        halves = ((digits // half).sum(), (digits % half).sum())
        return _Parts(tuple(each.reinterpret(dtype=_WIDE) for each in halves), sums, total.reinterpret(dtype=wide))
    if wide.is_float():
        return _Parts((value.cast(wide).sum(),), sums, pl.col(names[0]))
    number = value.cast(wide).to_physical().cast(pl.Int128)
    narrow = pl.UInt64() if wide == pl.UInt64 else pl.Int64()
    final = pl.col(names[0]).to_physical().cast(narrow, strict=False)
    return _Parts((number.sum().reinterpret(dtype=_WIDE),), sums, final)


def _counted(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts((value.count().cast(pl.Int64),), (pl.col(names[0]).sum(),), pl.col(names[0]))


def _smallest(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts((value.min(),), (pl.col(names[0]).min(),), pl.col(names[0]))


def _largest(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts((value.max(),), (pl.col(names[0]).max(),), pl.col(names[0]))


def _averaged(value: pl.Expr, names: Sequence[str]) -> _Parts:
    total, number = map(pl.col, names)
    return _Parts(
        (value.cast(pl.Float64).sum(), value.count().cast(pl.Int64)),
        (total.sum(), number.sum()),
        pl.when(number > 0).then(total / number),
    )


# Not by arg_min and arg_max: which of several equal values they find depends on whether Polars takes the column for
# sorted.
def _earliest(value: pl.Expr, names: Sequence[str], at: pl.Expr) -> _Parts:
    first, time = map(pl.col, names)
    return _Parts(
        (value.filter(at == at.min()).first(), at.min()), (first.filter(time == time.min()).first(), time.min()), first
    )


def _latest(value: pl.Expr, names: Sequence[str], at: pl.Expr) -> _Parts:
    last, time = map(pl.col, names)
    return _Parts(
        (value.filter(at == at.max()).last(), at.max()), (last.filter(time == time.max()).last(), time.max()), last
    )


def _first_arrived(value: pl.Expr, names: Sequence[str]) -> _Parts:
    first, there = map(pl.col, names)
    return _Parts((value.first(), pl.len() > 0), (first.filter(there).first(), there.any()), first)


def _last_arrived(value: pl.Expr, names: Sequence[str]) -> _Parts:
    last, there = map(pl.col, names)
    return _Parts((value.last(), pl.len() > 0), (last.filter(there).last(), there.any()), last)


def _values(column: str) -> pl.Expr:
    return pl.col(column).list.explode(keep_nulls=False, empty_as_null=False)


def _collected(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts((value.implode(),), (_values(names[0]).implode(),), pl.col(names[0]))


def _different(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts(
        (value.drop_nulls().unique().implode(),),
        (_values(names[0]).unique().implode(),),
        pl.col(names[0]).list.len().cast(pl.Int64),
    )


def _different_about(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts(
        (highest_codes(value).implode(),),
        (highest_codes(_values(names[0])).implode(),),
        pl.col(names[0]).map_batches(estimated_count, return_dtype=pl.Int64),
    )


def _top(value: pl.Expr, by: pl.Expr, names: Sequence[str], most: int, *, alone: bool) -> _Parts:
    """``alone``: one value is asked for, and ``max``, which ignores NaN, finds the largest."""

    # The parts are two lists of equal length, values and ranks. Equal ranks are ordered by position. Sorting structs
    # inside a group isn't safe in Polars 2.1.
    def best(values: pl.Expr, ranks: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        if alone:  # two to five times faster
            largest = ranks == ranks.max()
            return values.filter(largest).head(1).implode(), ranks.filter(largest).head(1).implode()
        order = ranks.rank("ordinal", descending=True).arg_sort().head(most)
        return values.gather(order).implode(), ranks.gather(order).implode()

    known = by.is_not_null()
    return _Parts(
        best(value.filter(known), by.filter(known)),
        best(_values(names[0]), _values(names[1])),
        pl.col(names[0]),
    )


_Rule = Callable[[pl.Expr, Sequence[str]], _Parts]

_RULES: dict[str, tuple[int, _Rule]] = {
    "count": (1, _counted),
    "min": (1, _smallest),
    "max": (1, _largest),
    "mean": (2, _averaged),
    "implode": (1, _collected),
    "n_unique": (1, _different),
    "approx_n_unique": (1, _different_about),
}
_ORDERED = {"first", "last", "top_k", "implode", "fold", "reduce"}
_BY_TIME: dict[str, Callable[[pl.Expr, Sequence[str], pl.Expr], _Parts]] = {"first": _earliest, "last": _latest}
_BY_ARRIVAL: dict[str, _Rule] = {"first": _first_arrived, "last": _last_arrived}


class Aggregation:
    """The aggregates of one window step."""

    def __init__(
        self,
        aggregates: Sequence[tuple[str, Aggregate]],
        wide: dict[str, pl.DataType],
        rows: Schema,
        *,
        at: pl.Expr | None,
        calling: Calling,
    ) -> None:
        """``wide`` gives for each aggregate the type of its result, which partial sums have, too.

        ``rows`` are what is aggregated; ``at`` is by which time the first and the last one are found, None: as they
        arrive. ``calling`` is put around calls of the user's functions.
        """
        self._wide = wide
        self._at = at
        self._prepared: list[pl.Expr] = []
        self._partial: list[pl.Expr] = []
        self._merge: list[pl.Expr] = []
        self._final: list[pl.Expr] = []
        self.parts: list[str] = []
        """The columns of partial results."""
        self._folds: list[UserAggregate] = []
        self._sums = [name for name, aggregate in aggregates if aggregate.kind == "sum"]
        self.ordered = any(aggregate.kind in _ORDERED for _, aggregate in aggregates)
        """Some result depends on the order in which partial results are merged."""
        for number, (name, aggregate) in enumerate(aggregates):
            parts, columns = self._parts(f"__{number}", name, aggregate, rows, calling)
            self.parts += columns
            self._partial += [of.alias(column) for column, of in zip(columns, parts.of, strict=True)]
            self._merge += [merge.alias(column) for column, merge in zip(columns, parts.merge, strict=True)]
            self._final.append(parts.final.cast(wide[name]).alias(name))
        self._rows = rows

    @cached_property
    def types(self) -> dict[str, pl.DataType]:
        """The types of the parts."""
        empty = self._rows.empty().with_columns(pl.lit(0, pl.Int64).alias(name) for name in (TIME, _GROUP))
        return dict(self.partial(empty, [_GROUP]).drop(_GROUP).schema)

    @cached_property
    def nothing(self) -> dict[str, pl.Series]:
        """Return the parts of an empty set of messages, one value each. Merging them with others changes nothing."""
        empty = self._rows.empty().with_columns(pl.lit(0, pl.Int64).alias(TIME))
        values = empty.with_columns(self._prepared).select(self._partial)
        return {name: values.get_column(name).cast(dtype) for name, dtype in self.types.items()}

    def conformed(self, id_: str, rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Partial results, with other ``columns``, of a version of the app that had other aggregates.

        The new ones begin with nothing. Raises ``DeclarationError`` if the rows don't fit.
        """
        found = conformed(id_, rows, columns, columns.keys() - self.nothing.keys(), self.nothing)
        for fold in self._folds:
            found = fold.evened(rows, found)
        return found

    def partial(self, rows: pl.DataFrame, keys: Sequence[str], *more: pl.Expr) -> pl.DataFrame:
        """Partial results of a batch per ``keys``; ``more`` is computed with them."""
        if not rows.height:  # without rows, Polars 2.1 infers lists of nulls for gathered values
            nothing = pl.DataFrame([pl.Series(name, [None], dtype) for name, dtype in rows.schema.items()])
            return self.partial(nothing, keys, *more).clear()
        prepared = rows.with_columns(self._prepared) if self._prepared else rows
        return prepared.group_by(keys).agg(*self._partial, *more)

    def merge(self, partials: pl.DataFrame, keys: Sequence[str], *more: pl.Expr) -> pl.DataFrame:
        """Merge partial results so that each key appears once."""
        return partials.group_by(keys).agg(*self._merge, *more)

    def rolling(self, partials: pl.DataFrame, keys: Sequence[str], index: str, period: int) -> pl.DataFrame:
        """For each row the merge of the rows of its key whose ``index`` is in (own - period, own].

        Rows have to be sorted by ``keys`` and ``index``.
        """
        groups = partials.rolling(index_column=index, period=f"{period}i", group_by=list(keys) or None)
        return groups.agg(self._merge)

    def settle(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Call the user's functions on the messages, and turn them into results."""
        for fold in self._folds:
            partials = fold.settle(partials)
        return partials

    def overflown(self, results: pl.DataFrame) -> str | None:
        """Return the first sum that isn't there in some of the final results, because its type can't hold it."""
        return next((name for name in self._sums if results.get_column(name).null_count()), None)

    def final(self, partials: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        """``keys`` and final values, from merged partial results. A sum that its type can't hold is null."""
        partials = self.settle(partials)
        for fold in self._folds:
            partials = fold.begun(partials)
        return partials.select(*keys, *self._final)

    def _parts(
        self, column: str, name: str, aggregate: Aggregate, rows: Schema, calling: Calling
    ) -> tuple[_Parts, list[str]]:
        kind = aggregate.kind
        both = [f"__{kind}.0.{name}", f"__{kind}.1.{name}"]
        if kind in ("fold", "reduce"):
            return self._fold(column, name, aggregate, rows, calling)
        if aggregate.expr is None:
            parts = _counted(pl.lit(None), both)
            return _Parts((pl.len().cast(pl.Int64),), parts.merge, parts.final), both[:1]
        if aggregate.by is not None:
            by = self._value(f"{column}_by", aggregate.by)
            alone = aggregate.k == 1 and not rows.empty().select(aggregate.by).dtypes[0].is_float()
            return _top(self._value(column, aggregate.expr), by, both, aggregate.k, alone=alone), both
        value = self._value(column, aggregate.expr)
        if kind in _BY_TIME:
            parts = _BY_ARRIVAL[kind](value, both) if self._at is None else _BY_TIME[kind](value, both, self._at)
            return parts, both
        if kind == "sum":
            wide = self._wide[name]
            columns = both if isinstance(wide, pl.Decimal) else both[:1]
            return _summed(value, wide, columns), columns
        if kind == "approx_n_unique":
            self._prepared.append(aggregate.expr.map_batches(register_codes, return_dtype=pl.UInt32).alias(column))
            value = pl.col(column)
        number, rule = _RULES[kind]
        return rule(value, both), both[:number]

    def _fold(
        self, column: str, name: str, aggregate: Aggregate, rows: Schema, calling: Calling
    ) -> tuple[_Parts, list[str]]:
        fold = UserAggregate(name, aggregate, self._wide[name], rows, calling)
        self._folds.append(fold)
        values = [pl.col(c) for c in rows.columns] if aggregate.expr is None else [self._value(column, aggregate.expr)]
        made = pl.col(fold.made)
        parts = _Parts(
            (pl.lit([], pl.List(self._wide[name])).first(), *(fold.of(value) for value in values)),
            (_values(fold.made).implode(), *(_values(waiting).implode() for waiting in fold.waiting)),
            made.list.first(),
        )
        return parts, [fold.made, *fold.waiting]

    def _value(self, column: str, expr: pl.Expr) -> pl.Expr:
        """What to aggregate: a column as it is, an expression as a column computed for each row first.

        Within a group a literal would be one value, however many rows the group has.
        """
        if expr.meta.is_column():
            return expr
        self._prepared.append(expr.alias(column))
        return pl.col(column)
