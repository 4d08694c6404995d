"""Check key columns: which columns can be keys, and how users name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from headrace.api.expressions import check_columns
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


def key_parts(key: object) -> tuple[Any, ...]:
    """Return the parts of a key as users write it: one or several, or None for none."""
    if key is None:
        return ()
    return tuple(key) if isinstance(key, Iterable) and not isinstance(key, str) else (key,)


def key_names(key: object) -> tuple[str, ...]:
    """Return the names in ``key``; raise if a part isn't the name of a column."""
    parts = key_parts(key)
    for part in parts:
        if isinstance(part, pl.Expr) and part.meta.is_column():
            raise DeclarationError(f"a key is a column name, not {part}", hint=f'write "{part.meta.output_name()}"')
        if not isinstance(part, str):
            raise DeclarationError(
                f"a key is a column name, not {type(part).__name__} {part!s:.80}",
                hint='compute it first, with_columns(domain=...), and name it: "domain"',
            )
    return parts


def key_columns(key: str | Iterable[str], schema: Schema, what: str) -> tuple[str, ...]:
    """Return the columns of ``key``; raise unless there is at least one, all exist, and their types have equality."""
    names = key_names(key)
    if not names:
        raise DeclarationError(
            f"{what} needs a key",
            hint="name one or more columns; for one group of everything add a constant: "
            'with_columns(all=pl.lit(0)).partition_by("all", id=...)',
        )
    for name in check_columns(names, schema, "the key"):
        dtype = schema.columns[name]
        if dtype.is_nested() or dtype.is_object() or dtype == pl.Null:
            raise DeclarationError(
                f"the column {name!r} is {dtype}, which can't be a key",
                hint="compute a column of a plain type from it and use that",
            )
    return names


def key_name(key: str | pl.Expr) -> str:
    """Return the name of the column that holds a key."""
    if isinstance(key, str):
        return key
    if not isinstance(key, pl.Expr):
        raise DeclarationError(
            f"a key is a column name or an expression, not {type(key).__name__}",
            hint='write "member" or pl.col("url").str.to_lowercase().alias("page")',
        )
    name = key.meta.output_name(raise_if_undetermined=False)
    if not name:
        raise DeclarationError(f"the key expression {key} has no name", hint='give it one: .alias("key")')
    return name
