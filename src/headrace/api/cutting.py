"""Cut the part of an app that one step depends on, for a test run over the first rows."""

from __future__ import annotations

import copy
from dataclasses import replace

from headrace.api.draft import Draft
from headrace.api.freeze import freeze
from headrace.api.operators.streams import SendTo
from headrace.api.specs import Graph, Node, Role, StreamSpec
from headrace.core.ids import StreamId


def cut_behind(draft: Draft, node: str, output: str) -> Graph:
    """Return a graph of the steps that ``node`` needs, with an ``output`` for its results. The draft doesn't change."""
    last, location = draft.nodes[node], draft.nodes[node].location
    kept = _needed(draft, node)
    system = draft.default_system
    part = copy.copy(draft)
    part.nodes = {id_: one for id_, one in draft.nodes.items() if id_ in kept}
    part.nodes[output] = Node(id=output, operator=SendTo(output), inputs=(node,), location=location)
    sink = StreamSpec(
        id=output,
        role=Role.SINK,
        stream=StreamId(system.name, output),
        system=system,
        location=location,
        schema=last.schema,
    )
    part.streams = {**draft.streams, output: sink}
    part.windows_without_aggregates = {}
    graph = freeze(part)
    return replace(graph, settings=replace(graph.settings, metadata=None, snapshots=None))


def _needed(draft: Draft, node: str) -> set[str]:
    """Return the steps before it, including those that write the intermediate streams and tables that these read."""
    found: set[str] = set()
    open_ = [node]
    while open_:
        id_ = open_.pop()
        if id_ in found:
            continue
        found.add(id_)
        one = draft.nodes[id_]
        read, joined = one.operator.stream_read, one.operator.table_joined
        open_ += one.inputs
        for writer in draft.nodes.values():
            spec = writer.operator
            if (read is not None and spec.stream_written == read) or (
                joined is not None and spec.table_written == joined
            ):
                open_.append(writer.id)
    return found
