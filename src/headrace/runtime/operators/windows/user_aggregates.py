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
from headrace.serdes.schema import Schema

Calling = Callable[[str], AbstractContextManager[None]]
"""Makes a context manager for calls of the user's function: what it raises becomes an error that names the function."""


class UserAggregate:
    """One aggregate by a user's function."""

    def __init__(
        self, column: str, name: str, aggregate: Aggregate, dtype: pl.DataType, rows: Schema, calling: Calling
    ) -> None:
        """``column`` is the prefix of its parts' names; ``rows`` are the columns that the function is called with."""
        number = len(rows.columns) if aggregate.expr is None else 1
        self.made = f"{column}_0"
        self.waiting = [f"{column}_{part + 1}" for part in range(number)]
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
                column = pl.Series(self.made, results, pl.List(self._dtype), strict=True)
            except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                raise TypeError(f"what it returned doesn't fit dtype={self._dtype}: {error}") from error
        return partials.with_columns(column, *(pl.lit([], partials.schema[c]).alias(c) for c in self.waiting))

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
        if so_far:
            return function(so_far[0], value)
        if self._aggregate.kind == "reduce":
            return value
        initial = self._aggregate.initial
        return function(initial() if callable(initial) else copy.deepcopy(initial), value)

    def _joined(self, made: list[Any]) -> Any:
        merge = self._aggregate.merge
        if merge is None:
            raise ValueError("partial values can't be merged without merge=")
        result = made[0]
        for other in made[1:]:
            result = merge(result, other)
        return result
