"""Small passes over a graph: guarantees, early aggregation, unneeded columns, event time, tables to query.

Early aggregation: a window directly after a ``partition_by`` whose keys it groups by has all rows of a group in one
task. So partial results of each batch can cross the stream instead of messages: they give the same windows, but are
fewer. The graph stays as declared; only the contents of the intermediate stream differ.

Unneeded columns: a filter copies the rows that it keeps, but needn't copy a column that no later step reads. Outputs
and users' functions need all columns.

Event time: an input without it has no watermark, so a step that it reaches would wait until the input ends. Flows that
fill a table don't count, because their time doesn't affect the joins of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from headrace.api.operators.spec import ColumnSet, union
from headrace.api.operators.steps import PartitionBy, SideOutput
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Node, Role, StreamSpec, TableSpec
from headrace.core.errors import PlanError
from headrace.plan.model import Plan, StagePlan, reachable

Delivery = Literal["exactly-once", "at-least-once"]


def delivery_of(graph: Graph, output: str) -> Delivery:
    """How often a result arrives at an output or target; a remote table's functions may see rows again."""
    table = graph.tables.get(output)
    if table is not None and table.remote is not None and table.remote.write is not None:
        return "at-least-once"
    if graph.streams[output].system.may_repeat:
        return "at-least-once"
    return "exactly-once" if graph.settings.guarantee == "exactly_once" else "at-least-once"


def deliveries(graph: Graph, stage: StagePlan) -> dict[str, Delivery]:
    """By id the delivery of each output of a stage, and of each step that acts outside."""
    found: dict[str, Delivery] = {
        id_: delivery_of(graph, id_) for id_ in stage.outputs if graph.streams[id_].role is Role.SINK
    }
    outside = (id_ for id_ in stage.nodes if graph.nodes[id_].operator.acts_outside)
    return found | dict.fromkeys(outside, "at-least-once")


def combined_windows(graph: Graph) -> dict[str, str]:
    """For each intermediate stream with partial results the window to which they belong."""
    if not graph.settings.combine:
        return {}
    after = graph.successors()
    nodes = graph.nodes.values()
    late_wanted = {before for node in nodes if isinstance(node.operator, SideOutput) for before in node.inputs}
    readers: dict[str, list[str]] = {}
    for node in nodes:
        if node.operator.stream_read is not None:
            readers.setdefault(node.operator.stream_read, []).append(node.id)
    found: dict[str, str] = {}
    for partition in (node.operator for node in nodes if isinstance(node.operator, PartitionBy)):
        takers = [taker for reader in readers.get(partition.stream, ()) for taker in after[reader]]
        window = graph.nodes[takers[0]].operator if len(takers) == 1 else None
        if (
            isinstance(window, Window)
            and len(readers[partition.stream]) == 1
            and window.mergeable
            and set(partition.keys) <= set(window.keys)
            and takers[0] not in late_wanted
        ):
            found[partition.stream] = takers[0]
    return found


def needed_columns(graph: Graph, combined: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """For each node the columns of its results that another node needs, in order; None means all.

    ``combined``: the intermediate streams with partial results, each with its window.
    """
    after = graph.successors()
    known: dict[str, ColumnSet] = {}

    def downstream(id_: str) -> ColumnSet:
        if id_ not in known:
            takers = [_needed_by(graph, graph.nodes[n], combined, after[n], downstream(n)) for n in after[id_]]
            known[id_] = union(*takers) if takers else None
        return known[id_]

    for id_ in reversed(list(graph.nodes)):
        downstream(id_)
    return {id_: _in_order(node, known[id_]) for id_, node in graph.nodes.items()}


def _in_order(node: Node, needed: ColumnSet) -> tuple[str, ...] | None:
    if needed is None or node.schema is None or needed >= node.schema.columns.keys():
        return None
    return tuple(name for name in node.schema.columns if name in needed)


def _needed_by(
    graph: Graph, node: Node, combined: Mapping[str, str], after: tuple[str, ...], downstream: ColumnSet
) -> ColumnSet:
    """The columns of its input that a node needs; ``downstream`` are those of its results that others need."""
    spec = node.operator
    if isinstance(spec, PartitionBy) and spec.stream in combined:
        window = graph.nodes[combined[spec.stream]].operator
        return union(window.columns_needed(None, has_side_outputs=False), frozenset(spec.keys))
    has_side_outputs = any(isinstance(graph.nodes[id_].operator, SideOutput) for id_ in after)
    return spec.columns_needed(downstream, has_side_outputs=has_side_outputs)


def check_event_time(graph: Graph) -> None:
    untimed = untimed_inputs(graph)
    for id_ in sorted(untimed):
        node, source = graph.nodes[id_], untimed[id_]
        if node.operator.needs_event_time:
            clock = ', or use the clock in the window: time="processing"' if node.operator.kind == "window" else ""
            raise PlanError(
                f"{node} waits for event time, and "
                f"{source.role.value} {source.id!r} ({source.location}), which reaches it, has none",
                hint=f'name its event time: app.input({source.id!r}, ..., event_time="ts"){clock}',
            )


def untimed_inputs(graph: Graph) -> dict[str, StreamSpec]:
    """For each node that inputs without event time reach the first of these inputs by id."""
    following = {id_: list(after) for id_, after in graph.successors().items()}
    readers: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if node.operator.stream_read is not None:
            readers.setdefault(node.operator.stream_read, []).append(node.id)
    for node in graph.nodes.values():
        following[node.id] += readers.get(node.operator.stream_written or "", ())
    found: dict[str, StreamSpec] = {}
    for stream, spec in sorted(graph.streams.items()):
        if spec.role is Role.SOURCE and spec.event_time is None:
            for start in readers.get(stream, ()):
                for id_ in reachable(start, following.__getitem__):
                    found.setdefault(id_, spec)
    return found


def inputs_with_a_say(graph: Graph, nodes: Iterable[str]) -> tuple[str, ...]:
    """The input nodes that determine the event time of a stage's tasks, sorted.

    These are the ones with event time that feed more than tables; if none does, all with event time; if none has, all.
    """
    mine = set(nodes)
    untimed, successors = untimed_inputs(graph), graph.successors()
    inputs = tuple(sorted(id_ for id_ in mine if graph.nodes[id_].operator.stream_read is not None))
    timed = tuple(id_ for id_ in inputs if id_ not in untimed)

    def feeds_more_than_tables(start: str) -> bool:
        reached = reachable(start, lambda id_: [after for after in successors[id_] if after in mine])
        ends = (graph.nodes[id_].operator for id_ in reached if not mine & set(successors[id_]))
        return any(end.table_written is None for end in ends)

    return tuple(id_ for id_ in timed if feeds_more_than_tables(id_)) or timed or inputs


@dataclass(frozen=True, slots=True)
class Queryable:
    """Rows by key that each task of a stage keeps, as ``kept_as``: a table, or a store of a low-level task."""

    id: str
    kept_as: str
    kind: Literal["local", "global", "remote", "store"]
    columns: Mapping[str, pl.DataType]
    key: tuple[str, ...]
    ttl_ms: int | None = None
    storage: str = "disk"
    versions_ms: int | None = None


def queryable_in(plan: Plan, stage: StagePlan) -> dict[str, Queryable]:
    """By id the tables and stores of a stage, and remote tables, so that a refused query can say why."""
    found: dict[str, Queryable] = {}
    for id_ in stage.tables:
        table = _table(plan.graph.tables[id_], stage.kept_as.get(id_, id_))
        if table is not None:
            found[id_] = table
    for store in (store for id_ in stage.nodes for store in plan.graph.nodes[id_].operator.queryable_stores):
        columns, key = {**store.key.columns, **store.value.columns}, tuple(store.key.columns)
        kept_as = stage.kept_as.get(store.id, store.id)
        found[store.id] = Queryable(store.id, kept_as, "store", columns, key, store.ttl_ms)
    return found


def unreadable(graph: Graph) -> dict[str, str]:
    kinds = {id_: node.operator.hidden_state for id_, node in graph.nodes.items()}
    return {id_: kind for id_, kind in kinds.items() if kind is not None}


def _table(spec: TableSpec, kept_as: str) -> Queryable | None:
    """None if the table was never filled and so has no columns."""
    if spec.schema is None:
        return None
    storage = spec.storage if spec.remote is None else "remote"
    return Queryable(spec.id, kept_as, spec.kind, spec.schema.columns, spec.key, spec.ttl_ms, storage, spec.versions_ms)
