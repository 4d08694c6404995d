"""Filter and projection by Polars expressions: vectorised, no Python per message."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.columns import Filter, Project
from headrace.api.specs import Node
from headrace.runtime.operators.base import UNCOMPUTABLE, Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.serdes.bounds import is_bounded
from headrace.serdes.rows import rows_where


class FilterOperator(Operator):
    """Keeps the rows for which the predicate is true (null is not true)."""

    def __init__(self, node: Node, spec: Filter, context: BuildContext) -> None:
        super().__init__(node)
        self._predicate = spec.predicate
        # A constant is one value, not one for each row: leave it to Polars to broadcast it.
        constant = not spec.predicate.meta.root_names()
        self._columns = None if context.needed is None or constant else list(context.needed)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        try:
            if self._columns is None:
                kept = rows.filter(self._predicate)
            else:
                kept = _where(_taken(rows, self._columns), rows.select(self._predicate).to_series())
        except UNCOMPUTABLE as error:
            raise self.failed(error, "the predicate") from error
        self.provenance.became(lambda: self._places(rows))
        self.emit(kept)

    def _places(self, rows: pl.DataFrame) -> Sequence[int] | pl.Series:
        """Return the kept rows, by number. A constant keeps all rows or none."""
        mask = rows.select(self._predicate).to_series()
        return mask.arg_true() if mask.len() == rows.height else range(rows.height)


class ProjectOperator(Operator):
    """Computes columns, which are added to the others or replace them."""

    def __init__(self, node: Node, spec: Project, context: BuildContext) -> None:
        super().__init__(node)
        self._exprs = spec.exprs
        self._keep = spec.keep
        self._taken = None if spec.keep else _plain_names(spec.exprs)
        self._bounded: list[str] | None = None
        """The columns that it computes and that hold dates, times, durations or decimals."""

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        if self._taken is not None:  # a query of Polars takes ten times as long, which is felt with a few rows
            self.provenance.became(lambda: range(rows.height))
            self.emit(_taken(rows, self._taken))
            return
        try:
            result = rows.with_columns(self._exprs) if self._keep else rows.select(self._exprs)
        except UNCOMPUTABLE as error:
            raise self.failed(error, "an expression") from error
        if self._bounded is None:
            computed = rows.clear().select(self._exprs).columns
            self._bounded = [name for name in computed if is_bounded(result.schema[name])]
        self.check_bounds(result, self._bounded, "an expression")
        self.provenance.became(lambda: range(rows.height))
        self.emit(result)


def _taken(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """The rows with these columns, in this order."""
    return rows if rows.columns == columns else rows[columns]


def _where(rows: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The rows for which the mask is true. With few rows that is often all or none."""
    if mask.all(ignore_nulls=False):
        return rows
    return rows_where(rows, mask) if mask.any() else rows.clear()


def _plain_names(expressions: Sequence[pl.Expr]) -> list[str] | None:
    """The names of the columns that are taken as they are; None if anything is computed."""
    if not all(expression.meta.is_column() for expression in expressions):
        return None
    return [expression.meta.output_name() for expression in expressions]
