"""Which streams meet at which operator, and so need equal partition counts.

Two traversals of the same graph. The first finds the joins with the table for every ``send_to(table)``. The second
starts at each input and crosses from a write of a table to its joins as if they were connected. It collects the nodes
where all messages of a key must be in one task (``OperatorSpec.gathers_keys``).

Streams that every task reads as a whole (broadcast streams, the side inputs of a global table) don't count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.api.specs import Graph, Node
from headrace.plan.traverse import reachable


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """The streams, sorted by id, whose messages meet at ``node``. Never fewer than two."""

    node: str
    streams: tuple[str, ...]


def join_groups(graph: Graph) -> tuple[JoinGroup, ...]:
    """Every node where streams meet, sorted by id, with those streams."""
    inputs = inputs_of_joins(graph, joins_of_table_writes(graph))
    groups = (_as_streams(graph, graph.nodes[join], reached_by) for join, reached_by in sorted(inputs.items()))
    return tuple(group for group in groups if len(group.streams) > 1)


def input_nodes(graph: Graph) -> list[str]:
    """The ids of the nodes where messages enter, sorted."""
    return sorted(node.id for node in graph.nodes.values() if node.operator.stream_read is not None)


def joins_of_table_writes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each node that writes a local table the nodes that join it, sorted; only nodes that an input reaches."""
    successors = graph.successors()
    reached = {id_ for start in input_nodes(graph) for id_ in reachable(start, successors.__getitem__)}
    return {
        writer.id: tuple(join.id for join in graph.joins_of(table) if join.id in reached)
        for table, spec in graph.tables.items()
        if spec.kind == "local"
        for writer in graph.writers_of(table)
        if writer.id in reached
    }


def fillers_of_versions(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each join with a table of versions the nodes that write it, sorted: the join waits for them."""
    return {
        join.id: tuple(writer.id for writer in writers)
        for table, spec in graph.tables.items()
        if spec.versions_ms is not None and (writers := graph.writers_of(table))
        for join in graph.joins_of(table)
    }


def inputs_of_joins(graph: Graph, joins_of_writes: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """For each node that gathers keys the input nodes whose messages reach it, directly or through a table."""
    successors = graph.successors()
    reached_by: dict[str, set[str]] = {}
    for start in input_nodes(graph):
        for id_ in reachable(start, lambda vertex: successors[vertex] + joins_of_writes.get(vertex, ())):
            if _gathers_keys(graph, graph.nodes[id_]):
                reached_by.setdefault(id_, set()).add(start)
    return reached_by


def _gathers_keys(graph: Graph, node: Node) -> bool:
    table = node.operator.table_joined
    return node.operator.gathers_keys and (table is None or graph.tables[table].kind == "local")


def _as_streams(graph: Graph, join: Node, inputs: Iterable[str]) -> JoinGroup:
    """The streams that these input nodes read, and the side inputs of the joined table."""
    read = (graph.nodes[id_].operator.stream_read for id_ in inputs)
    streams = {stream for stream in read if stream is not None}
    table = join.operator.table_joined
    if table is not None and graph.tables[table].kind == "local":
        streams.update(graph.tables[table].side_inputs)
    return JoinGroup(join.id, tuple(sorted(s for s in streams if not graph.streams[s].broadcast)))
