"""What a table is declared with, and what flows fill it: checked, and worked out what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from headrace.api.event_time import Time, needed_time
from headrace.api.expressions import as_expression, check_predicate, unknown_column
from headrace.api.keys import key_columns
from headrace.api.schemas import describe, schema_difference
from headrace.api.specs import StreamSpec, TableSpec
from headrace.api.steps import EventTime
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


def declared_table(spec: TableSpec, sides: Sequence[StreamSpec]) -> TableSpec:
    """The table that is kept by these side inputs, if any. ``spec.schema`` is what was declared."""
    if not spec.key:
        raise DeclarationError("a table needs a key", hint='name its column: key="member"')
    if spec.ttl_ms is not None and spec.versions_ms is not None:
        raise DeclarationError(
            "a table has a ttl= or versions=, not both",
            hint="versions= says how long what was is kept; what is stays until it is deleted: deleted=",
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
                f"the table has versions, and the side input {side.id!r} (at {side.location}) no event time",
                hint=f'say since when a row counts: app.input("{side.id}", ..., event_time="ts")',
            )
    spec = replace(spec, side_inputs=tuple(side.id for side in sides))
    return spec if fed is None else fed_table(spec, fed)


def fed_table(spec: TableSpec, fed: Schema) -> TableSpec:
    """The table that is filled with rows of these columns."""
    columns = dict(fed.columns)
    if isinstance(spec.deleted, str):
        if spec.deleted not in columns:
            raise unknown_column(spec.deleted, columns, f", which tells what is deleted from the table {spec.id!r}")
        if spec.deleted in spec.key:
            raise DeclarationError(f"the key {spec.deleted!r} can't tell what is deleted as well")
    if spec.deleted is not None:
        check_predicate(fed, as_expression(spec.deleted, "deleted"))
    if isinstance(spec.deleted, str):
        del columns[spec.deleted]
    own = next((name for name in columns if spec.versions_ms is not None and name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} may not be in a table of versions: names that begin with '__' are Headrace's own",
            hint="rename it before",
        )
    schema = fed if len(columns) == len(fed.columns) else Schema.of(columns)
    key_columns(spec.key, schema, "a table")
    return replace(spec, schema=schema)


def version_time(spec: TableSpec, schema: Schema, time: Time) -> EventTime | None:
    """When the rows of a flow began to count, if the table has versions."""
    if spec.versions_ms is None:
        return None
    return needed_time(time, schema, f"the table {spec.id!r}, which has versions,")


def check_filled_by_flows(spec: TableSpec) -> None:
    """Raise for a table that side inputs keep."""
    if spec.side_inputs:
        raise DeclarationError(
            f"the table {spec.id!r} (at {spec.location}) is kept by side inputs: no flow writes it",
            hint="drop its side_inputs=, or write to another table",
        )


def deleting_columns(spec: TableSpec, schema: Schema, time: EventTime | None) -> tuple[str, ...]:
    """What is needed of a flow that deletes rows: the table's key, and the time of its versions."""
    check_filled_by_flows(spec)
    if spec.schema is None:
        raise DeclarationError(
            f"the columns of the table {spec.id!r} aren't known yet",
            hint="give it a schema=, or declare the flow that fills it before",
        )
    key_columns(spec.key, schema, "delete_from")
    for name in spec.key:
        ours, theirs = schema.columns[name], spec.schema.columns[name]
        if ours != theirs:
            raise DeclarationError(
                f"the key {name!r} is {ours}, and {theirs} in the table {spec.id!r}",
                hint="cast it by with_columns(...) before delete_from",
            )
    return tuple(dict.fromkeys([*spec.key, *([] if time is None else [time.column])]))
