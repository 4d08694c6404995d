"""Adapts rows that an earlier version of the app stored to the columns that this one declares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import columns_to_json
from headrace.stores.form import TAKE_BACK

SINCE = "__since"
"""The column with the event time (ms) from which a version of a row holds."""
GONE = "__gone"
"""The column that says whether a version is a deletion."""


def conformed(
    id_: str,
    rows: pl.DataFrame,
    columns: Mapping[str, pl.DataType],
    needed: Collection[str],
    added: Mapping[str, pl.Series] | None = None,
) -> pl.DataFrame:
    """Return the rows of a store with ``columns``. Removed ones are left out.

    Added ones are null, or have the one value that ``added`` gives them.

    Raises ``DeclarationError`` if a type has changed, or if one of ``needed`` was added.
    """
    check_versions(id_, rows.columns, columns)
    if rows.columns == list(columns) and dict(rows.schema) == dict(columns):
        return rows
    for name, dtype in columns.items():
        kept = rows.schema.get(name)
        if (kept is None and name in needed) or (kept is not None and kept != dtype):
            raise DeclarationError(
                f"store {id_!r}: column {name!r} was stored as {kept or 'nothing'}, but is now declared as {dtype}",
                hint="add a column with another name, or give the step another id (then its state starts empty)",
            )
    found = []
    for name, dtype in columns.items():
        if name in rows.columns:
            found.append(rows.get_column(name))
        else:
            value = pl.Series(name, [None], dtype) if added is None or name not in added else added[name]
            found.append(value.alias(name).new_from_index(0, rows.height))
    return pl.DataFrame(found)


def check_versions(id_: str, kept: Collection[str], declared: Collection[str]) -> None:
    """Raise ``DeclarationError`` if versions are no longer declared, because stored deletions would become rows."""
    if GONE in kept and GONE not in declared:
        raise DeclarationError(
            f"store {id_!r} was stored with versions, but is now declared without them", hint=TAKE_BACK
        )


def check_key(id_: str, kept: Mapping[str, pl.DataType], declared: Mapping[str, pl.DataType]) -> None:
    """Raise ``DeclarationError`` if the stored key has other columns, or has them in another order."""
    if list(kept.items()) != list(declared.items()):
        raise DeclarationError(
            f"store {id_!r} has the key {_shown(kept)}, but is now declared with {_shown(declared)}",
            hint=TAKE_BACK,
        )


def ordered_columns(columns: Mapping[str, pl.DataType]) -> list[tuple[str, Any]]:
    """Return columns in a durable form that keeps their order."""
    return list(columns_to_json(columns).items())


def _shown(columns: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in columns.items())
