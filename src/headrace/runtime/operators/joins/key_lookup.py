"""Asking a table for the rows of a batch of keys."""

from __future__ import annotations

from typing import Protocol

import polars as pl

FOUND = "__found"


class LookupTable(Protocol):
    """What can be asked for rows by key."""

    def get_rows(self, keys: pl.DataFrame, *, found: str | None = None) -> pl.DataFrame:
        """The other columns for each row of ``keys``, in its order; null where there is no such row."""
        ...


def look_up(table: LookupTable, keys: pl.DataFrame) -> pl.DataFrame:
    """``keys`` beside the columns of their rows and ``FOUND``. The table is asked once a key: messages of a batch
    often share theirs.
    """
    distinct = keys.unique()
    found = pl.concat([distinct, table.get_rows(distinct, found=FOUND)], how="horizontal")
    return keys.join(found, on=keys.columns, how="left", maintain_order="left", nulls_equal=True)
