"""Sets of column names, used to find out which columns are still needed. None means all columns."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

ColumnSet = frozenset[str] | None


def union(*parts: ColumnSet) -> ColumnSet:
    """The columns that are in any of ``parts``."""
    result: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        result |= part
    return result


def columns_read(exprs: Iterable[pl.Expr]) -> ColumnSet:
    """The columns that expressions read; None if one of them chooses its columns only when it runs."""
    names: set[str] = set()
    for expr in exprs:
        if expr.meta.has_multiple_outputs():
            return None
        names.update(expr.meta.root_names())
    return frozenset(names)
