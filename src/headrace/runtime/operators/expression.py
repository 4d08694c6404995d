"""Filter and projection by Polars expressions: vectorised, no Python per message."""

from __future__ import annotations

import polars as pl

from headrace.api.specs import Filter, Node, Project
from headrace.runtime.operators.base import Operator


class FilterOperator(Operator):
    """Keeps the rows for which the predicate is true (null is not true)."""

    def __init__(self, node: Node, spec: Filter) -> None:
        super().__init__(node)
        self._predicate = spec.predicate

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            kept = rows.filter(self._predicate)
        except pl.exceptions.PolarsError as error:
            raise self.failed(error, "the predicate") from error
        self.emit(kept)


class ProjectOperator(Operator):
    """Computes columns, beside the others or instead of them."""

    def __init__(self, node: Node, spec: Project) -> None:
        super().__init__(node)
        self._exprs = spec.exprs
        self._keep = spec.keep

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            result = rows.with_columns(self._exprs) if self._keep else rows.select(self._exprs)
        except pl.exceptions.PolarsError as error:
            raise self.failed(error, "an expression") from error
        self.emit(result)
