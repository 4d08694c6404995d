"""Operators made of Polars expressions: vectorised, one row at a time, without state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from typing_extensions import override

from headrace.api.operators.column_set import ColumnSet, columns_read
from headrace.api.operators.spec import OperatorSpec
from headrace.api.operators.wording import on_one_line
from headrace.serdes.schema import Schema


@dataclass(frozen=True, slots=True, eq=False)
class Filter(OperatorSpec):
    """Keeps the rows for which a Polars expression is true."""

    predicate: pl.Expr
    kind = "filter"
    passes_rows = True
    row_by_row = True

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return (on_one_line(self.predicate),)

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return columns_read([self.predicate])


@dataclass(frozen=True, slots=True, eq=False)
class Project(OperatorSpec):
    """Computes columns by expressions; ``keep`` says whether the other columns stay."""

    exprs: tuple[pl.Expr, ...]
    keep: bool
    code = "MAP"
    row_by_row = True

    @property
    @override
    def kind(self) -> str:
        return "with_columns" if self.keep else "select"

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return tuple(on_one_line(expr) for expr in self.exprs)

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        # select(pl.col("a").alias("b"), "a", c=pl.col("a") + 1) carries a -> ("b", "a").
        lazy = pl.LazyFrame(schema=dict(before.columns))
        carried = {name: [name] for name in before.columns} if self.keep else {}
        for expr in self.exprs:
            results = lazy.select(expr).collect_schema().names()
            for others in carried.values():
                others[:] = [name for name in others if name not in results]
            if expr.meta.is_column_selection(allow_aliasing=False):
                for name in results:
                    carried.setdefault(name, []).append(name)
            elif len(roots := expr.meta.root_names()) == 1 and expr.meta.is_column_selection(allow_aliasing=True):
                carried.setdefault(roots[0], []).append(results[0])
        return {old: tuple(new) for old, new in carried.items()}

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        read = columns_read(self.exprs)
        if not self.keep:
            return read
        if downstream is None or read is None:
            return None
        return (downstream - {expr.meta.output_name() for expr in self.exprs}) | read
