"""The ends of flows, ``Output`` and ``Table``. They are handles into the draft; ``Stream`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, final

from typing_extensions import override

from headrace.api.draft import Draft
from headrace.api.keys import key_columns
from headrace.api.other_names import OUTPUT, TABLE, missing
from headrace.api.schemas import describe, schema_difference
from headrace.api.specs import StreamSpec, TableSpec
from headrace.api.table_checks import check_filled_by_flows, fed_table
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


@final
class Output:
    """A stream that the app writes, from ``app.output``. Several flows may write to it.

    Examples
    --------
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

    @override
    def __repr__(self) -> str:
        return f"Output({self._id!r}, {describe(self.schema)})"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("an output", name, OUTPUT, dir(type(self)))


@final
class Table:
    """Rows by key, from ``app.table``. ``send_to(table)`` or side inputs fill it, ``join(table)`` looks rows up.

    Examples
    --------
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
        """The columns by which a row is found."""
        return self.spec.key

    @property
    def schema(self) -> Schema | None:
        """Its columns; None until they are declared or a flow is sent here."""
        return self.spec.schema

    @override
    def __repr__(self) -> str:
        return f"Table({self._id!r}, key={', '.join(self.key)}, {describe(self.schema)})"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("a table", name, TABLE, dir(type(self)))


def check_target(target: object) -> None:
    """Raise unless a flow can end in ``target``."""
    if isinstance(target, Output | Table):
        return
    hint = 'results go to app.output("...") or app.table("...", key=...)'
    if isinstance(target, str):
        hint = f"write send_to(app.output({target!r}))"
    raise DeclarationError(f"a flow can't be sent to {type(target).__name__} {target!s:.80}", hint=hint)


def target_keys(target: Output | Table, key: str | Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """Return the columns that choose the partition of an output, or the row of a table."""
    if isinstance(target, Output):
        if target.spec.system.kind in _KEYED:
            _check_record_key(target.spec, key, schema)
        return () if key is None else key_columns(key, schema, "send_to")
    if key is not None:
        raise DeclarationError(
            "key= is for outputs; a table has its own", hint=f"this one's is {', '.join(target.key)}"
        )
    check_filled_by_flows(target.spec)
    if target.spec.remote is not None and not target.spec.remote.writable:
        raise DeclarationError(
            f"the remote table {target.id!r} (at {target.spec.location}) can only be read",
            hint="give it a function that writes: hr.tables.remote(read=fetch, write=store)",
        )
    return key_columns(target.key, schema, "a table")


_KEYED = {"kinesis": "Kinesis stream", "kafka": "topic"}
"""Brokers whose records have keys, with their word for a stream."""


def _check_record_key(spec: StreamSpec, key: str | Sequence[str] | None, schema: Schema) -> None:
    """Raise ``DeclarationError`` unless the descriptor of the stream names the records' key and the flow has it."""
    kind, options = spec.system.kind, spec.system.options
    stream = options.get("stream") or options.get("topic")
    named = options.get("key") or options.get("output", {}).get("key")
    if key is not None:
        raise DeclarationError(
            f"key= of send_to has no effect on the {_KEYED[kind]} {stream!r}: the app doesn't partition it",
            hint=f"set the key of its records in the descriptor: hr.io.{kind}({stream!r}, key={key!r})",
        )
    if named is not None and named not in schema.columns:
        raise DeclarationError(
            f"the key {named!r} of the {_KEYED[kind]} {stream!r} isn't a column of this flow",
            hint=f"it has: {describe(schema)}",
        )


def adopt_schema(target: Output | Table, schema: Schema) -> tuple[str, ...]:
    """Give ``target`` the schema of a flow sent to it, or check that it fits. Returns the target's column order."""
    if target.schema is None:
        if isinstance(target, Table):
            target.draft.tables[target.id] = fed_table(target.spec, schema)
        else:
            target.draft.streams[target.id] = replace(target.spec, schema=schema)
        return tuple(schema.columns)
    wanted = (target.spec.feed if isinstance(target, Table) else None) or target.schema
    difference = schema_difference(schema, wanted)
    if difference:
        raise DeclarationError(
            f"this flow doesn't match {target.id!r} (at {target.spec.location}): {difference}",
            hint=f"its columns are {describe(wanted)}; select or cast before send_to",
        )
    return tuple(wanted.columns)
