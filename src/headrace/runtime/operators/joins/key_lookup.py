"""Shared code of joins: look up a batch of keys in a table, and build the columns of the results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import polars as pl

from headrace.api.operators.table import TableJoin
from headrace.runtime.operators.provenance import Numbers
from headrace.serdes.schema import Schema

FOUND = "__found"


class LookupTable(Protocol):
    """A table that returns rows by key."""

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """The other columns of the row of each key, in the order of ``keys``; null if there is no row."""
        ...


def look_up(table: LookupTable, keys: pl.DataFrame) -> pl.DataFrame:
    """``keys`` with the columns of their rows and ``FOUND``. Each distinct key is read once: messages share keys."""
    distinct = keys.unique()
    found = pl.concat([distinct, table.get_rows(distinct, found=FOUND)], how="horizontal")
    return keys.join(found, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)


def result_names(right: Iterable[str], left: Schema, suffix: str) -> dict[str, str]:
    """What the right side's columns are called in the results."""
    return {name: f"{name}{suffix}" if name in left.columns else name for name in right}


class LookupColumns:
    """The columns of a join with a table."""

    def __init__(self, spec: TableJoin, left: Schema, key: Iterable[str], values: Iterable[str]) -> None:
        """``key`` and ``values`` are the columns of the table."""
        self.keys = [pl.col(ours).alias(theirs) for ours, theirs in zip(spec.keys, key, strict=True)]
        """The messages' key columns, named like the table's."""
        self._values = [pl.col(old).alias(new) for old, new in result_names(values, left, spec.suffix).items()]
        self._inner = spec.how == "inner"

    def joined(self, rows: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.DataFrame, Numbers]:
        """Messages with the values of their rows, and their numbers among ``rows``.

        ``found`` has a row for each message, and the column ``FOUND``.
        """
        joined = pl.concat([rows, found.select(self._values)], how="horizontal") if self._values else rows
        there = found.get_column(FOUND)
        return (
            (joined.filter(there), there.arg_true())
            if self._inner and not there.all()
            else (joined, range(joined.height))
        )
