"""Aggregates as expressions: partial results, merging, sketches, and the user's own.

**Hyperloglog.** The durable hash of a value selects one of 4096 registers and gives a *rank*: the number of leading
zeros of the other bits, plus one. A register keeps the highest rank, as one UInt32, ``register * 64 + rank``; registers
of zero aren't kept. The codes 5*64+1, 5*64+3 and 9*64+2 become the sketch [9*64+2, 5*64+3]. The estimate is Ertl's
("New cardinality estimation algorithms for HyperLogLog sketches", 2017), with a standard error of 1.6 %. Codes are in
changelogs: how they are computed must not change.

**User aggregates.** The result so far is a list of one value (empty: no result yet), and the messages that the function
hasn't seen are a list in the order of arrival; ``settle`` calls the function on those. So partial results are merged
without Python, and the function is called when everything that came before is known.

**Aggregation.** Merging is associative, so partial results can be made anywhere and in any grouping, if they are merged
in the order of arrival. An aggregate's *parts* are one or two columns, named by its kind and name, so the state of a
window outlives other aggregates that come, go, or move. The mean of 3 and 5, and then of 10, has the parts (8.0, 2) and
(10.0, 1), merged (18.0, 3), and the final value 6.0. Polars' sums silently wrap around: so partial sums are wider than
any sum of messages, and only the final value says whether its type can hold it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.api.aggregates import Aggregate
from headrace.rows.hashing import hash_rows
from headrace.rows.schema import Schema
from headrace.rows.values import column
from headrace.stores.base import conformed
from headrace.task.operators.functions import WrongResult

# -- hyperloglog -------------------------------------------------------------------------------------
_PRECISION = 12
_REGISTERS = 1 << _PRECISION
_RANK_BITS = 6
_RANKS = 1 << _RANK_BITS
_HASH_BITS = 52  # the bits of the hash that give the rank: as many as a float can hold exactly
_ALPHA = 1 / (2 * np.log(2))
Floats = npt.NDArray[np.float64]


def register_codes(values: pl.Series) -> pl.Series:
    hashes = hash_rows(values.to_frame("value"), ["value"])
    register = (hashes >> np.uint64(_HASH_BITS)).astype(np.uint32)
    rest = (hashes & np.uint64((1 << _HASH_BITS) - 1)).astype(np.float64)
    rank = (_HASH_BITS + 1 - np.frexp(rest)[1]).astype(np.uint32)  # frexp of 0 has the exponent 0
    found = pl.Series(values.name, (register << np.uint32(_RANK_BITS)) | rank)
    if values.null_count():
        return found.zip_with(values.is_not_null(), pl.Series(values.name, [None], pl.UInt32))
    return found


def highest_codes(found: pl.Expr) -> pl.Expr:
    ordered = found.drop_nulls().sort(descending=True)
    register = ordered // _RANKS
    return ordered.filter(register.ne_missing(register.shift(1)))


def estimated_count(sketches: pl.Series) -> pl.Series:
    if not len(sketches):
        return pl.Series(sketches.name, [], pl.Int64)
    lengths = sketches.list.len().fill_null(0).to_numpy()
    ranks = sketches.list.explode(keep_nulls=False, empty_as_null=False).to_numpy() % _RANKS
    owner = np.repeat(np.arange(len(sketches)), lengths)
    counts = np.bincount(owner * _RANKS + ranks, minlength=len(sketches) * _RANKS)
    counts = counts.reshape(len(sketches), _RANKS).astype(np.float64)
    counts[:, 0] = _REGISTERS - lengths
    z = _REGISTERS * _tau(1 - counts[:, _HASH_BITS + 1] / _REGISTERS)
    for rank in range(_HASH_BITS, 0, -1):
        z = 0.5 * (z + counts[:, rank])
    z = z + _REGISTERS * _sigma(counts[:, 0] / _REGISTERS)
    with np.errstate(divide="ignore"):
        result = np.where(np.isinf(z), 0.0, _ALPHA * _REGISTERS * _REGISTERS / z)
    found = pl.Series(sketches.name, np.rint(result).astype(np.int64))
    return found.set(sketches.is_null(), None) if sketches.null_count() else found


def _sigma(share: Floats) -> Floats:
    """Ertl's; infinite if all registers are empty."""
    all_empty = share >= 1.0
    x = np.where(all_empty, 0.0, share)
    y, z = np.ones_like(x), x.copy()
    while True:
        x = x * x
        before = z
        z = z + x * y
        y = y + y
        if np.array_equal(before, z):
            return np.where(all_empty, np.inf, z)


def _tau(share: Floats) -> Floats:
    trivial = (share <= 0.0) | (share >= 1.0)
    x = np.where(trivial, 0.5, share)
    y, z = np.ones_like(x), 1 - x
    while True:
        x = np.sqrt(x)
        before = z
        y = 0.5 * y
        z = z - (1 - x) ** 2 * y
        if np.array_equal(before, z):
            return np.where(trivial, 0.0, z / 3)


Calling = Callable[[str], AbstractContextManager[None]]  # around calls of the user's function: errors then name it


class _UserAggregate:
    def __init__(self, name: str, aggregate: Aggregate, dtype: pl.DataType, rows: Schema, calling: Calling) -> None:
        self.made = f"__{aggregate.kind}.0.{name}"
        self._prefix = f"__{aggregate.kind}.1.{name!r}."
        self.waiting = [self._prefix + column for column in (rows.columns if aggregate.expr is None else ("",))]
        self._what = f"the {aggregate.kind} {name!r}"
        self._aggregate = aggregate
        self._dtype = dtype
        self._schema = rows
        self._calling = calling

    def of(self, value: pl.Expr) -> pl.Expr:
        return (value.drop_nulls() if self._aggregate.kind == "reduce" else value).implode()

    def settle(self, partials: pl.DataFrame) -> pl.DataFrame:
        open_ = partials.select(
            (pl.col(self.waiting[0]).list.len() > 0) | (pl.col(self.made).list.len() > 1)
        ).to_series()
        if not open_.any():
            return partials
        with self._calling(self._what):
            results = list(self._results(partials))
            try:
                made = column(self.made, results, pl.List(self._dtype))
            except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                raise TypeError(f"what it returned doesn't fit dtype={self._dtype}: {error}") from error
        return partials.with_columns(made, *(pl.lit([], partials.schema[c]).alias(c) for c in self.waiting))

    def begun(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Give a fold that no message has reached its initial value: it was declared when the last one had come."""
        empty = partials.get_column(self.made).list.len() == 0
        if self._aggregate.kind == "reduce" or not empty.any():
            return partials
        with self._calling(self._what):
            initial = column(self.made, [[self._initial()]], pl.List(self._dtype))
        return partials.with_columns(pl.when(empty).then(pl.lit(initial)).otherwise(self.made).alias(self.made))

    def evened(self, kept: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
        there = [name for name in kept.columns if name.startswith(self._prefix)]
        added = [name for name in self.waiting if name not in kept.columns]
        if not there or not added:
            return rows
        number = kept.get_column(there[0]).list.len()
        places = pl.DataFrame({"place": pl.int_range(len(number), eager=True), "number": number})
        nulls = []
        for name in added:
            one = pl.Series(name, [[None]], rows.schema[name]).explode()
            lists = places.select(pl.lit(one).repeat_by("number").alias(name)).get_column(name)
            nulls.append(lists.cast(rows.schema[name]))
        return rows.with_columns(nulls)

    def _results(self, partials: pl.DataFrame) -> Iterator[list[Any]]:
        made = partials[self.made].to_list()
        numbers = partials[self.waiting[0]].list.len().to_list()
        values = iter(self._records(partials))
        for before, number in zip(made, numbers, strict=True):
            result = before if len(before) < 2 else [self._joined(before)]
            for _ in range(number):
                result = [self._next(result, next(values))]
            yield result

    def _records(self, partials: pl.DataFrame) -> list[Any]:
        columns = [partials[c].list.explode(keep_nulls=True, empty_as_null=False) for c in self.waiting]
        if self._aggregate.expr is not None:
            return columns[0].to_list()
        named = [column.alias(name) for name, column in zip(self._schema.columns, columns, strict=True)]
        return self._schema.to_records(pl.DataFrame(named))

    def _next(self, so_far: list[Any], value: Any) -> Any:
        function = self._aggregate.function
        assert function is not None, "an aggregate by a function has one"
        if not so_far and self._aggregate.kind == "reduce":
            return value
        return self._checked(function, function(so_far[0] if so_far else self._initial(), value))

    def _checked(self, function: Callable[..., Any], result: Any) -> Any:
        # Only a fold that begins with None has declared that None can be a result.
        if result is None and (self._aggregate.kind == "reduce" or self._initial() is not None):
            error = WrongResult(function, None, "a result", "")
            error.hint += "; only a fold that begins with None may return it"
            raise error
        return result

    def _initial(self) -> Any:
        initial = self._aggregate.initial
        return initial() if callable(initial) else copy.deepcopy(initial)

    def _joined(self, made: list[Any]) -> Any:
        merge = self._aggregate.merge
        if merge is None:
            raise ValueError("partial values can't be merged without merge=")
        result = made[0]
        for other in made[1:]:
            result = self._checked(merge, merge(result, other))
        return result


TIME = "__t"  # the column that says when a message happened (ms), where that is known
_GROUP = "__group"


@dataclass(frozen=True, slots=True)
class _Parts:
    """``of`` computes the parts from a group of values, ``merge`` from several partial results."""

    of: tuple[pl.Expr, ...]
    merge: tuple[pl.Expr, ...]
    final: pl.Expr


_NamedParts = tuple[_Parts, list[str]]
_WIDE = pl.Decimal(38, 0)
_HALF = 10**19  # half of the digits of a decimal


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


def _averaged(value: pl.Expr, names: Sequence[str]) -> _Parts:
    total, number = map(pl.col, names)
    return _Parts(
        (value.cast(pl.Float64).sum(), value.count().cast(pl.Int64)),
        (total.sum(), number.sum()),
        pl.when(number > 0).then(total / number),
    )


_EXTREMES = {"min": pl.Expr.min, "max": pl.Expr.max}
# Not arg_min and arg_max: which of equal values they find depends on whether Polars takes the column for sorted.
_ENDS = {"first": (pl.Expr.first, pl.Expr.min), "last": (pl.Expr.last, pl.Expr.max)}


def _at_an_end(kind: str, value: pl.Expr, names: Sequence[str], at: pl.Expr | None) -> _Parts:
    found, time = map(pl.col, names)
    pick, extreme = _ENDS[kind]
    if at is None:
        return _Parts((pick(value), pl.len() > 0), (pick(found.filter(time)), time.any()), found)
    merged = pick(found.filter(time == extreme(time)))
    return _Parts((pick(value.filter(at == extreme(at))), extreme(at)), (merged, extreme(time)), found)


def _values(column: str) -> pl.Expr:
    return pl.col(column).list.explode(keep_nulls=False, empty_as_null=False)


def _collected(value: pl.Expr, names: Sequence[str]) -> _Parts:
    return _Parts((value.implode(),), (_values(names[0]).implode(),), pl.col(names[0]))


def _different(value: pl.Expr, names: Sequence[str]) -> _Parts:
    of, merge = value.drop_nulls().unique().implode(), _values(names[0]).unique().implode()
    return _Parts((of,), (merge,), pl.col(names[0]).list.len().cast(pl.Int64))


def _different_about(value: pl.Expr, names: Sequence[str]) -> _Parts:
    of, merge = highest_codes(value).implode(), highest_codes(_values(names[0])).implode()
    return _Parts((of,), (merge,), pl.col(names[0]).map_batches(estimated_count, return_dtype=pl.Int64))


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
    merge = best(_values(names[0]), _values(names[1]))
    return _Parts(best(value.filter(known), by.filter(known)), merge, pl.col(names[0]))


_RULES: dict[str, tuple[int, Callable[[pl.Expr, Sequence[str]], _Parts]]] = {
    "count": (1, _counted),
    "mean": (2, _averaged),
    "implode": (1, _collected),
    "n_unique": (1, _different),
    "approx_n_unique": (1, _different_about),
}
_ORDERED = {"first", "last", "top_k", "implode", "fold", "reduce"}


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
        """``wide``: the type of each result, which partial sums have, too. ``at``: the time of the first and the last,
        None: as they arrive. ``calling`` is put around calls of the user's functions."""
        self._wide = wide
        self._at = at
        self._prepared: list[pl.Expr] = []
        self._partial: list[pl.Expr] = []
        self._merge: list[pl.Expr] = []
        self._final: list[pl.Expr] = []
        self.parts: list[str] = []  # the columns of partial results
        self._folds: list[_UserAggregate] = []
        self._sums = [name for name, aggregate in aggregates if aggregate.kind == "sum"]
        self.ordered = any(aggregate.kind in _ORDERED for _, aggregate in aggregates)  # of partial results, when merged
        for number, (name, aggregate) in enumerate(aggregates):
            parts, columns = self._parts(f"__{number}", name, aggregate, rows, calling)
            self.parts += columns
            self._partial += [of.alias(column) for column, of in zip(columns, parts.of, strict=True)]
            self._merge += [merge.alias(column) for column, merge in zip(columns, parts.merge, strict=True)]
            self._final.append(parts.final.cast(wide[name]).alias(name))
        self._rows = rows

    @cached_property
    def types(self) -> dict[str, pl.DataType]:
        empty = self._rows.empty().with_columns(pl.lit(0, pl.Int64).alias(name) for name in (TIME, _GROUP))
        return dict(self.partial(empty, [_GROUP]).drop(_GROUP).schema)

    @cached_property
    def nothing(self) -> dict[str, pl.Series]:
        """The parts of an empty set of messages, one value each. Merging them with others changes nothing."""
        empty = self._rows.empty().with_columns(pl.lit(0, pl.Int64).alias(TIME))
        values = empty.with_columns(self._prepared).select(self._partial)
        return {name: values.get_column(name).cast(dtype) for name, dtype in self.types.items()}

    def conformed(
        self, id_: str, rows: pl.DataFrame, columns: Mapping[str, pl.DataType], *, empty: bool = True
    ) -> pl.DataFrame:
        """New aggregates are empty, or, but for folds, null. Raises ``DeclarationError`` if the rows don't fit."""
        folded = {part for fold in self._folds for part in (fold.made, *fold.waiting)}
        added = {part: value for part, value in self.nothing.items() if empty or part in folded}
        found = conformed(id_, rows, columns, columns.keys() - self.nothing.keys(), added)
        for fold in self._folds:
            found = fold.evened(rows, found)
        return found

    def partial(self, rows: pl.DataFrame, keys: Sequence[str], *more: pl.Expr) -> pl.DataFrame:
        if not rows.height:  # without rows, Polars 2.1 infers lists of nulls for gathered values
            nothing = pl.DataFrame([pl.Series(name, [None], dtype) for name, dtype in rows.schema.items()])
            return self.partial(nothing, keys, *more).clear()
        prepared = rows.with_columns(self._prepared) if self._prepared else rows
        return prepared.group_by(keys).agg(*self._partial, *more)

    def merge(self, partials: pl.DataFrame, keys: Sequence[str], *more: pl.Expr) -> pl.DataFrame:
        return partials.group_by(keys).agg(*self._merge, *more)

    def rolling(self, partials: pl.DataFrame, keys: Sequence[str], index: str, period: int) -> pl.DataFrame:
        """For each row, sorted, the merge of the rows of its key whose ``index`` is in (own - period, own]."""
        return partials.rolling(index_column=index, period=f"{period}i", group_by=list(keys) or None).agg(self._merge)

    def settle(self, partials: pl.DataFrame) -> pl.DataFrame:
        for fold in self._folds:
            partials = fold.settle(partials)
        return partials

    def overflown(self, results: pl.DataFrame) -> str | None:
        return next((name for name in self._sums if results.get_column(name).null_count()), None)

    def final(self, partials: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        """``keys`` and final values, from merged partial results. A sum that its type can't hold is null."""
        partials = self.settle(partials)
        for fold in self._folds:
            partials = fold.begun(partials)
        return partials.select(*keys, *self._final)

    def _parts(self, column: str, name: str, aggregate: Aggregate, rows: Schema, calling: Calling) -> _NamedParts:
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
        if kind in _ENDS:
            return _at_an_end(kind, value, both, self._at), both
        if kind in _EXTREMES:
            part = pl.col(both[0])
            return _Parts((_EXTREMES[kind](value),), (_EXTREMES[kind](part),), part), both[:1]
        if kind == "sum":
            wide = self._wide[name]
            columns = both if isinstance(wide, pl.Decimal) else both[:1]
            return _summed(value, wide, columns), columns
        if kind == "approx_n_unique":
            self._prepared.append(aggregate.expr.map_batches(register_codes, return_dtype=pl.UInt32).alias(column))
            value = pl.col(column)
        number, rule = _RULES[kind]
        return rule(value, both), both[:number]

    def _fold(self, column: str, name: str, aggregate: Aggregate, rows: Schema, calling: Calling) -> _NamedParts:
        fold = _UserAggregate(name, aggregate, self._wide[name], rows, calling)
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
        """An expression becomes a column first: within a group a literal would be one value, not one a row."""
        if expr.meta.is_column():
            return expr
        self._prepared.append(expr.alias(column))
        return pl.col(column)
