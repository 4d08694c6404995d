"""Turn a draft into a graph: leave out unused parts, and refuse unfinished ones.

An input, output or table that no flow uses does no harm and is left out. A step whose results go nowhere is an error,
because it would lose messages silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from headrace.api.draft import Draft
from headrace.api.location import Location, at
from headrace.api.operators.functions import FAILED_COLUMNS
from headrace.api.operators.streams import FAILED, SendTo, SideOutput
from headrace.api.specs import DEAD_LETTER_COLUMNS, Graph, Node, StreamSpec, TableSpec
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


def freeze(draft: Draft) -> Graph:
    """Return the graph of an app; later declarations don't change it."""
    for id_, location in draft.windows_without_aggregates.items():
        raise DeclarationError(
            f"the window {id_!r} has no aggregates\n  {at(location)}", hint="call agg on it: .agg(views=pl.len())"
        )
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
        f"nothing uses the results of the step {node.id!r}\n  {at(node.location)}",
        hint="end the flow with send_to(output), send_to(table) or sink(function), or remove the step",
    )


def _used_tables(draft: Draft, nodes: Mapping[str, Node]) -> dict[str, TableSpec]:
    operators = [node.operator for node in nodes.values()]
    filled = {spec.table_filled for spec in operators}
    joins = {table: node for node in nodes.values() if (table := node.operator.table_joined) is not None}
    for id_, node in joins.items():
        if id_ not in filled and not draft.tables[id_].side_inputs and draft.tables[id_].remote is None:
            raise DeclarationError(
                f"the table {id_!r} is joined, but nothing fills it\n  {at(node.location)}",
                hint="end a flow with send_to(table), or give the table side_inputs=",
            )
    # Messages to a remote table are written to an output that has the table's id.
    used = {id_ for spec in operators for id_ in (spec.table_used, spec.stream_written)}
    return {id_: spec for id_, spec in draft.tables.items() if id_ in used}


def _used_streams(draft: Draft, nodes: Mapping[str, Node], tables: Mapping[str, TableSpec]) -> dict[str, StreamSpec]:
    written, letters = _sent_to(nodes)
    used = {node.operator.stream_read for node in nodes.values()} | written.keys()
    used |= {side for table in tables.values() for side in table.side_inputs}
    streams = {id_: spec for id_, spec in draft.streams.items() if id_ in used}
    for reader in list(streams.values()):
        if reader.dead_letter is not None:
            who = f"input {reader.id!r}"
            others = written | letters
            target = _dead_letters(draft, who, reader.location, reader.dead_letter, others, DEAD_LETTER_COLUMNS)
            streams[reader.dead_letter] = target
    for id_, node in letters.items():
        who = f"step {nodes[node.inputs[0]].inputs[0]!r}"
        streams[id_] = _dead_letters(draft, who, node.location, id_, written, FAILED_COLUMNS)
    return streams


def _sent_to(nodes: Mapping[str, Node]) -> tuple[dict[str, Node], dict[str, Node]]:
    """Return the streams to which flows and dead letters of steps are written, each with the writing node."""
    written: dict[str, Node] = {}
    letters: dict[str, Node] = {}
    for node in nodes.values():
        if isinstance(node.operator, SendTo):
            before = nodes[node.inputs[0]].operator
            kind = letters if isinstance(before, SideOutput) and before.name == FAILED else written
            kind[node.operator.stream] = node
    return written, letters


def _dead_letters(
    draft: Draft,
    who: str,
    location: Location,
    id_: str,
    written: Mapping[str, Node],
    columns: Mapping[str, pl.DataType],
) -> StreamSpec:
    """Return the output for the dead letters of ``who``, with their columns."""
    spec = draft.streams[id_]
    schema = Schema.of(dict(columns))
    problem = None
    if id_ in written:
        problem = f"is also written by the flow at {written[id_].location}"
    elif spec.schema is not None and spec.schema != schema:
        problem = f"has a schema of its own (at {spec.location})"
    if problem is not None:
        raise DeclarationError(
            f"{who}: its dead_letter {id_!r} {problem}\n  {at(location)}",
            hint=f"dead letters need an output of their own; its columns: {', '.join(columns)}",
        )
    return replace(spec, schema=schema)
