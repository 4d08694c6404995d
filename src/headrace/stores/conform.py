"""Rows as an earlier version of the app kept them, with the columns that this one declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import columns_to_json

SINCE = "__since"
"""The column of a version's time (ms): from then on it counts."""
GONE = "__gone"
"""The column that says that a version is a deletion."""
TAKE_BACK = "take the change back, or give the step another id (its state begins anew)"


def conformed(
    id_: str, rows: pl.DataFrame, columns: Mapping[str, pl.DataType], needed: Collection[str]
) -> pl.DataFrame:
    """The rows of a store with ``columns``: one that was added is null, one that was taken away is left out.

    Raises ``DeclarationError`` where a type has changed, or where one of ``needed`` is new.
    """
    check_versions(id_, rows.columns, columns)
    if rows.columns == list(columns) and dict(rows.schema) == dict(columns):
        return rows
    for name, dtype in columns.items():
        kept = rows.schema.get(name)
        if (kept is None and name in needed) or (kept is not None and kept != dtype):
            raise DeclarationError(
                f"store {id_!r}: column {name!r} was kept as {kept or 'nothing'}, and is now declared as {dtype}",
                hint="add a column of another name, or give the step another id (its state begins anew)",
            )
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in rows.columns]
    return rows.with_columns(missing).select(columns.keys())


def check_versions(id_: str, kept: Collection[str], declared: Collection[str]) -> None:
    """Raise ``DeclarationError`` where rows have been versions: deletions among them would come back as rows."""
    if GONE in kept and GONE not in declared:
        raise DeclarationError(f"store {id_!r} was kept with versions, and is now declared without", hint=TAKE_BACK)


def check_key(id_: str, kept: Mapping[str, pl.DataType], declared: Mapping[str, pl.DataType]) -> None:
    """Raise ``DeclarationError`` where rows were kept by other columns, or in another order of them."""
    if list(kept.items()) != list(declared.items()):
        raise DeclarationError(
            f"store {id_!r} is kept by the key {_shown(kept)}, and is now declared with {_shown(declared)}",
            hint=TAKE_BACK,
        )


def other_form(id_: str) -> DeclarationError:
    """The state of a store is that of another kind of store."""
    return DeclarationError(
        f"store {id_!r} was kept in another form: a table on disk that is now in memory, or the other way about?",
        hint=TAKE_BACK,
    )


def in_order(columns: Mapping[str, pl.DataType]) -> list[tuple[str, Any]]:
    """Columns in a durable form that keeps their order."""
    return list(columns_to_json(columns).items())


def _shown(columns: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in columns.items())
