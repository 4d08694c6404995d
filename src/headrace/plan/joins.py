"""Find the streams that meet at an operator, and therefore need equal partition counts.

Two traversals of the same graph. The first finds the joins with the table for every ``send_to(table)``. The second
starts at each input and crosses from a write of a table to its joins as if they were connected. It collects the nodes
where all messages of a key must be in one task (``OperatorSpec.gathers_keys``). Flows that write a table meet at each
join with it; if nothing joins the table, they meet at the table.

Streams that every task reads completely (broadcast streams, the side inputs of a global table) don't count. Where an
outer join would emit their messages without partners in the tasks that don't have these, the app is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.api.operators.join import StreamJoin
from headrace.api.operators.table import TableJoin
from headrace.api.specs import Graph, Node
from headrace.core.errors import PlanError
from headrace.plan.traverse import reachable


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """The streams, sorted by id, whose messages meet at a node, or in a table that no node joins. At least two."""

    at: str
    streams: tuple[str, ...]


def join_groups(graph: Graph) -> tuple[JoinGroup, ...]:
    """Return every node or table where streams meet, sorted by id, with those streams."""
    meeting: dict[str, set[str]] = {}
    for id_, reached_by in inputs_of_meetings(graph, joins_of_table_writes(graph)).items():
        table = graph.nodes[id_].operator.table_written
        if table is None or not graph.joins_of(table):
            meeting.setdefault(table or id_, set()).update(reached_by)
    groups = (JoinGroup(at, _partitioned(graph, at, inputs)) for at, inputs in sorted(meeting.items()))
    return tuple(group for group in groups if len(group.streams) > 1)


def input_nodes(graph: Graph) -> list[str]:
    """Return the ids of the nodes where messages enter, sorted."""
    return sorted(node.id for node in graph.nodes.values() if node.operator.stream_read is not None)


def joins_of_table_writes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return for each writer of a local table the nodes that join it, sorted; only nodes that an input reaches."""
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
    """Return for each join with a table of versions the writers of the table, sorted; the join waits for them."""
    return {
        join.id: tuple(writer.id for writer in writers)
        for table, spec in graph.tables.items()
        if spec.versions_ms is not None and (writers := graph.writers_of(table))
        for join in graph.joins_of(table)
    }


def inputs_of_meetings(graph: Graph, joins_of_writes: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """Return for each node that gathers keys the input nodes whose messages reach it, directly or through a table."""
    successors = graph.successors()
    reached_by: dict[str, set[str]] = {}
    for start in input_nodes(graph):
        for id_ in reachable(start, lambda vertex: successors[vertex] + joins_of_writes.get(vertex, ())):
            if _gathers_keys(graph, graph.nodes[id_]):
                reached_by.setdefault(id_, set()).add(start)
    return reached_by


def streams_upstream(graph: Graph, node: str) -> list[str]:
    """Return the streams whose messages reach a node, sorted."""
    read = (graph.nodes[id_].operator.stream_read for id_ in upstream(graph, node))
    return sorted({stream for stream in read if stream is not None})


def upstream(graph: Graph, node: str) -> list[str]:
    """Return the nodes of its stage that a node's messages have passed, itself first."""
    return reachable(node, lambda vertex: graph.nodes[vertex].inputs)


def check_outer_joins(graph: Graph) -> None:
    """Raise ``PlanError`` for a join that would emit broadcast messages without partners in all tasks but one."""
    for id_ in sorted(graph.nodes):
        node = graph.nodes[id_]
        for flow, partners in _outer_sides(graph, node):
            to_all = [stream for stream in streams_upstream(graph, flow) if graph.streams[stream].broadcast]
            divided = [stream for stream in partners if not graph.streams[stream].broadcast]
            if to_all and divided:
                spec = graph.streams[to_all[0]]
                raise PlanError(
                    f"{_meant(node)} keeps messages without a partner, and every task gets those of {spec.id!r} "
                    f"({spec.location}: {spec.location.text}), but only one has the partner, because each task has its "
                    f"part of {divided[0]!r}: the others would emit the message without it",
                    hint='write how="inner", so that only the task that has the partner emits the message; or put a '
                    "partition_by before the join instead of the broadcast",
                )


def _outer_sides(graph: Graph, node: Node) -> list[tuple[str, list[str]]]:
    """The flows whose messages a join emits even without a partner, each with the streams that the partners are of."""
    match node.operator:
        case TableJoin(table=table, how="left") if graph.tables[table].kind == "local":
            writers = (writer.inputs[0] for writer in graph.writers_of(table))
            filled = [stream for flow in writers for stream in streams_upstream(graph, flow)]
            return [(node.inputs[0], [*graph.tables[table].side_inputs, *filled])]
        case StreamJoin(how="left" | "full" as how):
            left, right = node.inputs
            sides = [(left, streams_upstream(graph, right)), (right, streams_upstream(graph, left))]
            return sides if how == "full" else sides[:1]
        case _:
            return []


def _meant(node: Node) -> str:
    return f"{node.operator.kind} {node.id!r} ({node.location}: {node.location.text})"


def _gathers_keys(graph: Graph, node: Node) -> bool:
    table = node.operator.table_used
    return node.operator.gathers_keys and (table is None or graph.tables[table].kind == "local")


def _partitioned(graph: Graph, at: str, inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the streams of these input nodes, and the side inputs of the table that ``at`` joins, sorted by id."""
    streams = {stream for id_ in inputs if (stream := graph.nodes[id_].operator.stream_read) is not None}
    table = graph.nodes[at].operator.table_joined if at in graph.nodes else None
    if table is not None and graph.tables[table].kind == "local":
        streams.update(graph.tables[table].side_inputs)
    return tuple(sorted(s for s in streams if not graph.streams[s].broadcast))
