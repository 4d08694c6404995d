"""The user's own aggregates, ``fold`` and ``reduce``: a function that is called for each message.

The result so far is kept as a list of one value (empty: no result yet), and the messages that the function hasn't seen
as a list in the order of arrival. ``settle`` calls the function on those. So partial results are merged without Python,
and the function is called when everything that came before is known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import polars as pl

from headrace.api.operators.aggregate import Aggregate
from headrace.runtime.operators.user_code.results import WrongResult
from headrace.serdes.schema import Schema
from headrace.serdes.values import column

Calling = Callable[[str], AbstractContextManager[None]]
"""Returns a context manager for calls of the user's function, whose errors then name the function."""


class UserAggregate:
    """One aggregate by a user's function."""

    def __init__(self, name: str, aggregate: Aggregate, dtype: pl.DataType, rows: Schema, calling: Calling) -> None:
        """``rows`` are the columns that the function is called with, or an expression's values."""
        self.made = f"__{aggregate.kind}.0.{name}"
        self._prefix = f"__{aggregate.kind}.1.{name!r}."
        self.waiting = [self._prefix + column for column in (rows.columns if aggregate.expr is None else ("",))]
        self._what = f"the {aggregate.kind} {name!r}"
        self._aggregate = aggregate
        self._dtype = dtype
        self._schema = rows
        self._calling = calling

    def of(self, value: pl.Expr) -> pl.Expr:
        """The values of a group, which wait for the function."""
        return (value.drop_nulls() if self._aggregate.kind == "reduce" else value).implode()

    def settle(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Call the function on the waiting messages."""
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
        """Let messages that wait in ``kept``, from before a column was added, have a null in it."""
        there = [name for name in kept.columns if name.startswith(self._prefix)]
        added = [name for name in self.waiting if name not in kept.columns]
        if not there or not added:
            return rows
        number = kept.get_column(there[0]).list.len()
        nulls = [_null_lists(name, number, rows.schema[name]) for name in added]
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
        if function is None:
            raise ValueError("an aggregate by a function has one")
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


def _null_lists(name: str, lengths: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Lists of so many nulls."""
    places = pl.DataFrame({"place": pl.int_range(len(lengths), eager=True), "number": lengths})
    one = pl.Series(name, [[None]], dtype).explode()
    return places.select(pl.lit(one).repeat_by("number").alias(name)).get_column(name).cast(dtype)
