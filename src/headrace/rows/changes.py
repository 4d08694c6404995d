"""Rows that change: what a flow of inserts, updates and deletes carries, and arithmetic on it. Pure.

A flow carries changes if its schema has the column ``_change`` of type ``KIND``. What it has told so far adds up to a
*multiset* of rows: ``insert`` and ``update_after`` add a row to it, ``delete`` and ``update_before`` take out one that
is equal to it in all other columns. Operators on changes promise the multiset and not the changes: how many changes say
it depends on where batches were cut.

A flow of changes may have a *key*: then, at any time, its multiset has at most one row of a key, the changes of a key
are in order, and each ``update_before`` is followed by the ``update_after`` of its key. Without one, an update may be
told in any order and from two tasks, and a row may be there several times.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.rows.given import concat_rows

CHANGE = "_change"
KIND = pl.Enum(["insert", "update_before", "update_after", "delete"])
"""The kinds of changes, in the order of their codes: the odd ones take a row away."""
INSERT, BEFORE, AFTER, DELETE = KIND.categories
WEIGHT = "__weight"
"""How many times a row is added (below 0: taken away), Int64."""

_TAKES = pl.col(CHANGE).to_physical() & 1 == 1


def carries(columns: Sequence[str] | dict[str, pl.DataType]) -> bool:
    return CHANGE in columns


def as_kind(kind: str) -> pl.Expr:
    return pl.lit(kind, KIND).alias(CHANGE)


def weighted(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with ``WEIGHT`` in the place of ``_change``; rows of a flow without changes are all added."""
    if CHANGE not in rows.columns:
        return rows.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
    return rows.with_columns(pl.when(_TAKES).then(-1).otherwise(1).cast(pl.Int64).alias(WEIGHT)).drop(CHANGE)


def halves_apart() -> pl.Expr:
    """``_change`` of rows some of whose updates may have lost their other half: only inserts and deletes."""
    return pl.when(_TAKES).then(pl.lit(DELETE, KIND)).otherwise(pl.lit(INSERT, KIND)).alias(CHANGE)


def summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Equal rows become one with the sum of their weights; those whose sum is 0 go. The order isn't kept."""
    names = [name for name in rows.columns if name != WEIGHT]
    if not names:
        total = int(rows.get_column(WEIGHT).sum())
        return pl.DataFrame({WEIGHT: [total] if total else []}, schema={WEIGHT: pl.Int64()})
    return rows.group_by(names).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0).select(rows.columns)


def told(rows: pl.DataFrame) -> pl.DataFrame:
    """The changes that rows with weights stand for: all deletes, then all inserts. A weight of 2 becomes two rows."""
    times = rows.get_column(WEIGHT).abs()
    if rows.height and times.max() != 1:
        rows = rows.select(pl.all().repeat_by(times).explode(empty_as_null=False)) if rows.width else rows
    kind = pl.when(pl.col(WEIGHT) < 0).then(pl.lit(DELETE, KIND)).otherwise(pl.lit(INSERT, KIND)).alias(CHANGE)
    return rows.sort(pl.col(WEIGHT) > 0, maintain_order=True).with_columns(kind).drop(WEIGHT)


def updates(before: pl.DataFrame, after: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The changes from ``before`` to ``after``, each of which has at most one row of a key; equal rows say nothing.

    All that is taken away comes before all that is added, so each key's changes are in order.
    """
    names = after.columns
    rows = summed(concat_rows([before.with_columns(_weight(-1)), after.with_columns(_weight(1))]))
    twice = pl.len().over(key) > 1 if key else pl.lit(rows.height > 1)
    taken = pl.when(twice).then(pl.lit(BEFORE, KIND)).otherwise(pl.lit(DELETE, KIND))
    added = pl.when(twice).then(pl.lit(AFTER, KIND)).otherwise(pl.lit(INSERT, KIND))
    kind = pl.when(pl.col(WEIGHT) < 0).then(taken).otherwise(added).alias(CHANGE)
    return rows.with_columns(kind).sort(WEIGHT, maintain_order=True).select(*names, CHANGE)


def _weight(number: int) -> pl.Expr:
    return pl.lit(number, pl.Int64).alias(WEIGHT)


def added_up(rows: pl.DataFrame) -> pl.DataFrame:
    """The multiset that changes add up to, sorted. Raises ``ValueError`` if they take away a row that isn't there."""
    total = summed(weighted(rows))
    if total.get_column(WEIGHT).lt(0).any():
        wrong = total.filter(pl.col(WEIGHT) < 0).head(1).drop(WEIGHT).rows(named=True)
        raise ValueError(f"the changes take away a row that isn't there: {wrong}")
    return told(total).drop(CHANGE).sort(pl.all())
