"""From a draft to a graph: what is unused is left out, what is unfinished is refused.

An input, output or table that no flow touches does no harm and is dropped. A step whose result goes
nowhere would lose messages in silence, so that is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from headrace.api.draft import Draft
from headrace.api.location import Location, at
from headrace.api.specs import DEAD_LETTER_COLUMNS, Graph, Node, StreamSpec, TableSpec
from headrace.api.steps import FAILED, FAILED_COLUMNS, Input, SendTo, SendToTable, SideOutput, TableJoin
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


def freeze(draft: Draft) -> Graph:
    """The finished graph of an app; later declarations don't touch it."""
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
        f"nothing takes what the step {node.id!r} yields\n  {at(node.location)}",
        hint="end the flow with send_to(output), send_to(table) or sink(function), or remove the step",
    )


def _used_tables(draft: Draft, nodes: Mapping[str, Node]) -> dict[str, TableSpec]:
    sends = [n.operator for n in nodes.values() if isinstance(n.operator, SendToTable)]
    written = {send.table for send in sends if not send.deletes}
    joins = {n.operator.table: n for n in nodes.values() if isinstance(n.operator, TableJoin)}
    for id_, node in joins.items():
        if id_ not in written and not draft.tables[id_].side_inputs and draft.tables[id_].remote is None:
            raise DeclarationError(
                f"the table {id_!r} is joined, but nothing fills it\n  {at(node.location)}",
                hint="end a flow with send_to(table), or give the table side_inputs=",
            )
    used = joins.keys() | {send.table for send in sends}
    used |= {n.operator.stream for n in nodes.values() if isinstance(n.operator, SendTo)}  # remote ones, too
    return {id_: spec for id_, spec in draft.tables.items() if id_ in used}


def _used_streams(draft: Draft, nodes: Mapping[str, Node], tables: Mapping[str, TableSpec]) -> dict[str, StreamSpec]:
    written, letters = _sent_to(nodes)
    used = {n.operator.stream for n in nodes.values() if isinstance(n.operator, Input)} | written.keys()
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
    """Which streams flows are sent to, by which step; apart from these, those that letters of failing steps go to."""
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
    """The output that ``who`` writes dead letters to, with their columns."""
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
