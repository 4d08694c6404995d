"""From a draft to a graph: what is unused is left out, what is unfinished is refused.

An input, output or table that no flow touches does no harm and is dropped. A step whose result goes
nowhere would lose messages in silence, so that is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.api.draft import Draft
from headrace.api.location import at
from headrace.api.specs import (
    DEAD_LETTER_COLUMNS,
    Graph,
    Input,
    Node,
    Role,
    SendTo,
    SendToTable,
    StreamSpec,
    TableJoin,
    TableSpec,
)
from headrace.core.errors import DeclarationError
from headrace.core.ids import StreamId
from headrace.serdes.schema import Schema


def freeze(draft: Draft) -> Graph:
    """The finished graph of an app; later declarations don't touch it."""
    followed = draft.followed()
    nodes = {id_: node for id_, node in draft.nodes.items() if id_ in followed or not draft.source_of(id_)}
    if not nodes:
        raise DeclarationError(
            f"the app {draft.app!r} has no flow\n  {at(draft.location)}",
            hint='begin with app.input("...") and end with send_to(app.output("...")) or sink(function)',
        )
    for node in nodes.values():
        if node.schema is not None and node.id not in followed:
            raise _unfinished(node)
    tables = _used_tables(draft, nodes)
    return Graph(
        app=draft.app,
        nodes=nodes,
        streams=_used_streams(draft, nodes, tables),
        tables=tables,
        settings=draft.settings,
        location=draft.location,
    )


def _unfinished(node: Node) -> DeclarationError:
    return DeclarationError(
        f"nothing takes what the step {node.id!r} yields\n  {at(node.location)}",
        hint="end the flow with send_to(output), send_to(table) or sink(function), or remove the step",
    )


def _used_tables(draft: Draft, nodes: Mapping[str, Node]) -> dict[str, TableSpec]:
    written = {n.operator.table for n in nodes.values() if isinstance(n.operator, SendToTable)}
    joins = {n.operator.table: n for n in nodes.values() if isinstance(n.operator, TableJoin)}
    for id_, node in joins.items():
        if id_ not in written and not draft.tables[id_].side_inputs:
            raise DeclarationError(
                f"the table {id_!r} is joined, but nothing fills it\n  {at(node.location)}",
                hint="end a flow with send_to(table), or give the table side_inputs=",
            )
    return {id_: spec for id_, spec in draft.tables.items() if id_ in written or id_ in joins}


def _used_streams(draft: Draft, nodes: Mapping[str, Node], tables: Mapping[str, TableSpec]) -> dict[str, StreamSpec]:
    written = {n.operator.stream: n for n in nodes.values() if isinstance(n.operator, SendTo)}
    used = {n.operator.stream for n in nodes.values() if isinstance(n.operator, Input)} | written.keys()
    used |= {side for table in tables.values() for side in table.side_inputs}
    streams = {id_: spec for id_, spec in draft.streams.items() if id_ in used}
    for reader in list(streams.values()):
        if reader.dead_letter is not None:
            streams[reader.dead_letter] = _dead_letters(draft, reader, reader.dead_letter, written)
    return streams


def _dead_letters(draft: Draft, reader: StreamSpec, id_: str, written: Mapping[str, Node]) -> StreamSpec:
    """The stream that the unreadable messages of ``reader`` go to: a declared output, or one made here."""
    schema = Schema.of(dict(DEAD_LETTER_COLUMNS))
    spec = draft.streams.get(id_)
    problem = None
    if spec is None and id_ in draft.ids():
        problem = "is the id of something else"
    elif spec is not None and spec.role is not Role.SINK:
        problem = f"is not an output (at {spec.location})"
    elif id_ in written:
        problem = f"is also written by the flow at {written[id_].location}"
    elif spec is not None and spec.schema is not None and spec.schema != schema:
        problem = f"has a schema of its own (at {spec.location})"
    if problem is not None:
        raise DeclarationError(
            f"input {reader.id!r}: its dead_letter {id_!r} {problem}\n  {at(reader.location)}",
            hint=f"dead letters need an output of their own; its columns: {', '.join(DEAD_LETTER_COLUMNS)}",
        )
    if spec is not None:
        return replace(spec, schema=schema)
    return StreamSpec(
        id=id_,
        role=Role.SINK,
        stream=StreamId(draft.default_system.name, id_),
        system=draft.default_system,
        location=reader.location,
        schema=schema,
    )
