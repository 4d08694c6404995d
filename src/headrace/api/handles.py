"""What flows end in: ``Output`` and ``Table``. Handles into the draft; their rules live with ``Stream``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from headrace.api.draft import Draft
from headrace.api.keys import key_columns
from headrace.api.specs import StreamSpec, TableSpec
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


@final
class Output:
    """A stream that the app writes; made by ``app.output``. Several flows may write to it.

    >>> out = app.output("slow-views")
    >>> views.filter(pl.col("ms") > 100).send_to(out)
    >>> out.schema.columns["ms"]
    Int64
    """

    def __init__(self, draft: Draft, id_: str) -> None:
        self.draft = draft
        self._id = id_

    @property
    def id(self) -> str:
        """Its id."""
        return self._id

    @property
    def spec(self) -> StreamSpec:
        """The stream as declared so far."""
        return self.draft.streams[self._id]

    @property
    def schema(self) -> Schema | None:
        """Its columns; None until they are declared or a flow is sent here."""
        return self.spec.schema

    def __repr__(self) -> str:
        return f"Output({self._id!r}, {describe(self.schema)})"


@final
class Table:
    """Rows by key: filled by ``send_to(table)`` or side inputs, looked up by ``join(table)``.

    >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "country": pl.String})
    >>> profiles
    Table('profiles', key=member, member String, country String)
    """

    def __init__(self, draft: Draft, id_: str) -> None:
        self.draft = draft
        self._id = id_

    @property
    def id(self) -> str:
        """Its id."""
        return self._id

    @property
    def spec(self) -> TableSpec:
        """The table as declared so far."""
        return self.draft.tables[self._id]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that a row is found by."""
        return self.spec.key

    @property
    def schema(self) -> Schema | None:
        """Its columns; None until they are declared or a flow is sent here."""
        return self.spec.schema

    def __repr__(self) -> str:
        return f"Table({self._id!r}, key={', '.join(self.key)}, {describe(self.schema)})"


def check_target(target: object) -> None:
    """Raise unless ``target`` is something that a flow can end in."""
    if isinstance(target, Output | Table):
        return
    hint = 'results go to app.output("...") or app.table("...", key=...)'
    if isinstance(target, str):
        hint = f"write send_to(app.output({target!r}))"
    raise DeclarationError(f"a flow can't be sent to {type(target).__name__} {target!s:.80}", hint=hint)


def target_keys(target: Output | Table, key: str | Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """The columns that choose the partition of an output, or the row of a table."""
    if isinstance(target, Output):
        return () if key is None else key_columns(key, schema, "send_to")
    if key is not None:
        raise DeclarationError(
            "key= is for outputs; a table has its own", hint=f"this one's is {', '.join(target.key)}"
        )
    if target.spec.side_inputs:
        raise DeclarationError(
            f"the table {target.id!r} (at {target.spec.location}) is kept by side inputs: no flow writes it",
            hint="drop its side_inputs=, or write to another table",
        )
    return key_columns(target.key, schema, "a table")


def adopt_schema(target: Output | Table, schema: Schema) -> tuple[str, ...]:
    """Give ``target`` the schema of a flow sent to it, or check that it fits; the target's column order."""
    if target.schema is None:
        if isinstance(target, Table):
            target.draft.tables[target.id] = replace(target.spec, schema=schema)
        else:
            target.draft.streams[target.id] = replace(target.spec, schema=schema)
        return tuple(schema.columns)
    difference = schema_difference(schema, target.schema)
    if difference:
        raise DeclarationError(
            f"this flow doesn't fit {target.id!r} (at {target.spec.location}): {difference}",
            hint=f"it takes: {describe(target.schema)}; select or cast before send_to",
        )
    return tuple(target.schema.columns)


def schema_difference(found: Schema, wanted: Schema) -> str:
    """How two schemas differ, apart from the order of columns; empty when they don't."""
    parts = [f"{name!r} is missing" for name in wanted.columns if name not in found.columns]
    parts += [f"{name!r} is not expected" for name in found.columns if name not in wanted.columns]
    parts += [
        f"{name!r} is {dtype}, not {wanted.columns[name]}"
        for name, dtype in found.columns.items()
        if name in wanted.columns and wanted.columns[name] != dtype
    ]
    return "; ".join(parts)


def describe(schema: Schema | None) -> str:
    """A schema in one line."""
    if schema is None:
        return "schema not known yet"
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.columns.items())
