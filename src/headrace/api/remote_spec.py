"""A table that was declared to be remote: what it can't be besides, and where it lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from headrace.api.descriptors import Sql
from headrace.api.remote import Remote
from headrace.api.specs import TableSpec
from headrace.core.errors import DeclarationError
from headrace.systems.registry import SystemSpec


def nulls_to_delete(table: TableSpec) -> list[pl.Expr]:
    """What a row is besides its key when it stands for a deletion in a remote table."""
    if table.remote is None or table.remote.delete is None:
        raise DeclarationError(
            f"nothing says how to delete rows of the remote table {table.id!r} (at {table.location})",
            hint="give it a function: hr.tables.remote(write=store, delete=remove); a SQL table can't be deleted from",
        )
    columns = {} if table.schema is None else table.schema.columns
    return [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in table.key]


def remote_table(table: TableSpec, remote: object, system: Callable[[Sql, str], SystemSpec]) -> TableSpec:
    """``table`` as a remote one; ``system`` says which system a descriptor means for a stream."""
    if not isinstance(remote, Remote):
        raise DeclarationError(
            f"remote= takes a remote table, not {type(remote).__name__} {remote!s:.80}",
            hint="write remote=hr.tables.remote(read=fetch) or "
            'remote=hr.tables.sql_table("sqlite:///members.db", "members")',
        )
    if table.side_inputs:
        raise DeclarationError(
            f"the table {table.id!r} can't be remote and kept by side inputs", hint="leave out side_inputs= or remote="
        )
    if table.kind != "local":
        raise DeclarationError(f'kind="{table.kind}" has no meaning for a remote table', hint="leave it out")
    if table.ttl_ms is not None:
        raise DeclarationError(
            "ttl= has no meaning for a remote table",
            hint='what is cached of it has one: hr.tables.cached(..., ttl="1m")',
        )
    given = {"versions": table.versions_ms, "deleted": table.deleted, "storage": {"disk": None}.get(table.storage, 1)}
    for name, value in given.items():
        if value is not None:
            raise DeclarationError(f"{name}= has no meaning for a remote table", hint="leave it out")
    if table.schema is None:
        raise DeclarationError(f"the remote table {table.id!r} needs a schema=", hint="name the columns that it has")
    if remote.delete is not None and not set(table.schema.columns) - set(table.key):
        raise DeclarationError(
            f"the remote table {table.id!r} has no columns but its key, so no row of it can stand for a deletion",
            hint="give it a column beside the key, or leave out delete=",
        )
    place = None if remote.sql is None else system(replace(remote.sql, key=table.key), table.id)
    return replace(table, kind="remote", remote=remote, system=place)
