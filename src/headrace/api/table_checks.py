"""Check declared tables: what fills them, their columns, and the limits of remote ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from headrace.api.descriptors import Sql
from headrace.api.expressions import as_expression, check_predicate, unknown_column
from headrace.api.keys import key_columns
from headrace.api.remote import Remote
from headrace.api.schemas import describe, schema_difference
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec


def declared_table(spec: TableSpec, sides: Sequence[StreamSpec]) -> TableSpec:
    """Return the table as these side inputs fill it, if there are any. ``spec.schema`` is the declared schema."""
    if not spec.key:
        raise DeclarationError("a table needs a key", hint='name its column: key="member"')
    if spec.ttl_ms is not None and spec.versions_ms is not None:
        raise DeclarationError(
            "a table takes ttl= or versions=, not both",
            hint="versions= limits how long old rows are kept; the newest one of a key stays until deleted= removes it",
        )
    if spec.deleted is not None:
        as_expression(spec.deleted, "deleted")
    fed = spec.schema
    if fed is not None and isinstance(spec.deleted, str) and spec.deleted not in fed.columns:
        fed = Schema.of({**fed.columns, spec.deleted: pl.Boolean()})
    for side in sides:
        if side.schema is None:
            continue
        fed = fed or side.schema
        difference = schema_difference(side.schema, fed)
        if difference:
            raise DeclarationError(
                f"the side input {side.id!r} (at {side.location}) doesn't fit the table: {difference}",
                hint=f"the table has: {describe(fed)}",
            )
        if spec.versions_ms is not None and side.event_time is None:
            raise DeclarationError(
                f"the table has versions, but the side input {side.id!r} (at {side.location}) has no event time",
                hint=f'say when a row becomes valid: app.input("{side.id}", ..., event_time="ts")',
            )
    spec = replace(spec, side_inputs=tuple(side.id for side in sides))
    return spec if fed is None else fed_table(spec, fed)


def fed_table(spec: TableSpec, fed: Schema) -> TableSpec:
    """Return the table, filled with rows of these columns."""
    columns = dict(fed.columns)
    if isinstance(spec.deleted, str):
        if spec.deleted not in columns:
            raise unknown_column(spec.deleted, columns, f" that marks deletions from the table {spec.id!r}")
        if spec.deleted in spec.key:
            raise DeclarationError(f"the key column {spec.deleted!r} can't also mark deletions")
    if spec.deleted is not None:
        check_predicate(fed, as_expression(spec.deleted, "deleted"))
    if isinstance(spec.deleted, str):
        del columns[spec.deleted]
    own = next((name for name in columns if spec.versions_ms is not None and name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} can't be in a table of versions: names that begin with '__' are reserved",
            hint="rename it first",
        )
    schema = fed if len(columns) == len(fed.columns) else Schema.of(columns)
    key_columns(spec.key, schema, "a table")
    return replace(spec, schema=schema)


def check_filled_by_flows(spec: TableSpec) -> None:
    """Raise for a table that side inputs fill."""
    if spec.side_inputs:
        raise DeclarationError(
            f"the table {spec.id!r} (at {spec.location}) is filled by side inputs, so no flow can write it",
            hint="drop its side_inputs=, or write to another table",
        )


def nulls_to_delete(table: TableSpec) -> list[pl.Expr]:
    """Return null values for all columns but the key: a row with them deletes from a remote table."""
    if table.remote is None or table.remote.delete is None:
        raise DeclarationError(
            f"there is no function to delete rows of the remote table {table.id!r} (at {table.location})",
            hint="give it a function: hr.tables.remote(write=store, delete=remove); a SQL table can't be deleted from",
        )
    columns = {} if table.schema is None else table.schema.columns
    return [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in table.key]


def remote_table(table: TableSpec, remote: object, system: Callable[[Sql, str], SystemSpec]) -> TableSpec:
    """Return ``table`` as a remote one; ``system`` finds the system that a descriptor means for a stream."""
    if not isinstance(remote, Remote):
        raise DeclarationError(
            f"remote= takes a remote table, not {type(remote).__name__} {remote!s:.80}",
            hint="write remote=hr.tables.remote(read=fetch) or "
            'remote=hr.tables.sql_table("sqlite:///members.db", "members")',
        )
    if table.side_inputs:
        raise DeclarationError(
            f"the table {table.id!r} can't be both remote and filled by side inputs",
            hint="leave out side_inputs= or remote=",
        )
    if table.kind != "local":
        raise DeclarationError(f'kind="{table.kind}" is not for a remote table', hint="leave it out")
    if table.ttl_ms is not None:
        raise DeclarationError(
            "ttl= doesn't apply to a remote table", hint='cached rows have one: hr.tables.cached(..., ttl="1m")'
        )
    given = {"versions": table.versions_ms, "deleted": table.deleted, "storage": {"disk": None}.get(table.storage, 1)}
    for name, value in given.items():
        if value is not None:
            raise DeclarationError(f"{name}= doesn't apply to a remote table", hint="leave it out")
    if table.schema is None:
        raise DeclarationError(f"the remote table {table.id!r} needs a schema=", hint="name its columns")
    if remote.delete is not None and not set(table.schema.columns) - set(table.key):
        raise DeclarationError(
            f"the remote table {table.id!r} has only key columns, so no row can mark a deletion",
            hint="give it a column beside the key, or leave out delete=",
        )
    place = None if remote.sql is None else system(replace(remote.sql, key=table.key), table.id)
    return replace(table, kind="remote", remote=remote, system=place)
