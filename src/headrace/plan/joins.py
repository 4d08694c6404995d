"""Which streams meet at which operator, and so have to have equal partition counts.

Two traversals of the same graph. The first finds, for every ``send_to(table)``, the joins with that
table. The second goes from each input through the graph, crossing from the one to the other as if they
were connected, and notes the places it comes by where messages of one key have to be in one task: joins,
joins with a table, keyed windows and ``deduplicate`` (which see several streams behind a ``merge``), low-level tasks.

Streams that every task reads whole (broadcast ones, the side inputs of a global table) meet nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.api.specs import Graph, Node
from headrace.api.steps import Deduplicate, Input, Join, LatestJoin, SendToTable, TableJoin, TaskStep, Window
from headrace.plan.traverse import traverse


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """The streams, sorted by id, whose messages meet at ``node``. Never fewer than two."""

    node: str
    streams: tuple[str, ...]


def join_groups(graph: Graph) -> tuple[JoinGroup, ...]:
    """Every join of the app with the streams that have to agree there, sorted by the join's id."""
    inputs = inputs_of_joins(graph, joins_of_table_writes(graph))
    groups = (_as_streams(graph, graph.nodes[join], reached_by) for join, reached_by in sorted(inputs.items()))
    return tuple(group for group in groups if len(group.streams) > 1)


def input_nodes(graph: Graph) -> list[str]:
    """The ids of the nodes where messages enter, sorted."""
    return sorted(node.id for node in graph.nodes.values() if isinstance(node.operator, Input))


def joins_of_table_writes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each node that writes a local table the nodes that join it, sorted."""
    visitor = _TableVisitor(graph)
    successors = graph.successors()
    for start in input_nodes(graph):
        traverse(start, visitor, successors.__getitem__)
    return visitor.association()


def fillers_of_versions(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each join with a table of versions the nodes that fill it, sorted: it waits for them."""
    writers: dict[str, list[str]] = {}
    for id_ in sorted(graph.nodes):
        operator = graph.nodes[id_].operator
        if isinstance(operator, SendToTable) and graph.tables[operator.table].versions_ms is not None:
            writers.setdefault(operator.table, []).append(id_)
    return {
        node.id: tuple(writers[node.operator.table])
        for node in graph.nodes.values()
        if isinstance(node.operator, TableJoin) and node.operator.table in writers
    }


def inputs_of_joins(graph: Graph, joins_of_writes: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """For each place where keys meet the input nodes whose messages come there, also by way of a table."""
    next_vertexes = _Connector(graph, joins_of_writes)
    reached_by: dict[str, set[str]] = {}
    for start in input_nodes(graph):
        visitor = _JoinVisitor(graph)
        traverse(start, visitor, next_vertexes)
        for join in visitor.joins:
            reached_by.setdefault(join, set()).add(start)
    return reached_by


def _as_streams(graph: Graph, join: Node, inputs: Iterable[str]) -> JoinGroup:
    """From input nodes to the streams they read, and the side inputs of the table that is joined."""
    streams = {operator.stream for id_ in inputs if isinstance(operator := graph.nodes[id_].operator, Input)}
    if isinstance(join.operator, TableJoin):
        table = graph.tables[join.operator.table]
        if table.kind == "local":
            streams.update(table.side_inputs)
    return JoinGroup(join.id, tuple(sorted(s for s in streams if not graph.streams[s].broadcast)))


class _TableVisitor:
    """Notes who writes and who joins each local table."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._table_of_write: dict[str, str] = {}
        self._joins: dict[str, set[str]] = {}

    def __call__(self, vertex: str) -> None:
        match self._graph.nodes[vertex].operator:
            case SendToTable(table=table) if self._graph.tables[table].kind == "local":
                self._table_of_write[vertex] = table
            case TableJoin(table=table):
                self._joins.setdefault(table, set()).add(vertex)
            case _:
                pass

    def association(self) -> dict[str, tuple[str, ...]]:
        """To be asked when the traversal is over."""
        return {write: tuple(sorted(self._joins.get(table, ()))) for write, table in self._table_of_write.items()}


class _JoinVisitor:
    """Notes the places where messages of one key have to be in one task."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.joins: list[str] = []

    def __call__(self, vertex: str) -> None:
        match self._graph.nodes[vertex].operator:
            case Join() | LatestJoin() | TaskStep():
                self.joins.append(vertex)
            case TableJoin(table=table) if self._graph.tables[table].kind == "local":
                self.joins.append(vertex)
            case Window(keys=keys) | Deduplicate(keys=keys) if keys:
                self.joins.append(vertex)
            case _:
                pass


class _Connector:
    """The successors of a node, and those that a table connects it to."""

    def __init__(self, graph: Graph, joins_of_writes: Mapping[str, tuple[str, ...]]) -> None:
        self._successors = graph.successors()
        self._joins_of_writes = joins_of_writes

    def __call__(self, vertex: str) -> tuple[str, ...]:
        return self._successors[vertex] + self._joins_of_writes.get(vertex, ())
