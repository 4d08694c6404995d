"""The slice of a plan from which a task builds its operators and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.api.operators.streams import PartitionBy
from headrace.api.operators.task import TaskStep
from headrace.api.specs import Graph, Node, StreamSpec, TableSpec
from headrace.plan.event_time import inputs_with_a_say, untimed_inputs
from headrace.plan.joins import fillers_of_versions
from headrace.plan.model import Plan, StagePlan
from headrace.plan.order import Order, order_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesPlan:
    """The tables of a stage."""

    tables: tuple[TableSpec, ...]
    side_inputs: Mapping[str, StreamSpec]
    readers: Mapping[str, int]
    """How many tasks of the app read each remote table; each task has an equal share of its rate."""
    by_record: frozenset[str]
    """The tables that low-level tasks read and write record by record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """The operators of a stage."""

    nodes: Mapping[str, Node]
    """By id, upstream first."""
    tables: TablesPlan
    fillers: Mapping[str, tuple[str, ...]]
    """The nodes that write each joined table of versions, by join, because the join waits for them."""
    unjoined_versions: Mapping[str, tuple[str, ...]]
    """The nodes that write each table of versions that the stage fills but no step joins, by table."""
    time_of_task: tuple[str, ...]
    """The input nodes whose event time is that of the task."""
    needed: Mapping[str, tuple[str, ...] | None]
    """The columns of each node's results that others need; None means all."""
    target_keys: Mapping[str, tuple[str, ...]]
    """The key of each node that sends to a table, or to an output that replaces rows by key."""
    partials_of: Mapping[str, Node]
    """The window of each ``partition_by`` that writes partial results."""
    takes_partials: frozenset[str]
    """The windows of this stage that read partial results."""
    order: Order
    """Where flows of one input meet, and how they do so in order."""


def chain_plan(plan: Plan, stage: StagePlan) -> ChainPlan:
    """The slice of ``plan`` for the tasks of ``stage``."""
    graph = plan.graph
    untimed = untimed_inputs(graph)
    nodes = {id_: _without_timers(graph.nodes[id_]) if id_ in untimed else graph.nodes[id_] for id_ in stage.nodes}
    fillers = fillers_of_versions(graph)
    keys = {id_: _target_key(graph, node.operator.stream_written) for id_, node in nodes.items()}
    return ChainPlan(
        nodes=nodes,
        tables=TablesPlan(
            tables=tuple(graph.tables[id_] for id_ in stage.tables),
            side_inputs={id_: graph.streams[id_] for id_ in stage.side_inputs},
            readers={id_: _readers(plan, id_) for id_ in stage.tables if graph.tables[id_].remote is not None},
            by_record=frozenset(
                use.table
                for node in nodes.values()
                if isinstance(node.operator, TaskStep)
                for use in node.operator.tables
            ),
        ),
        fillers={id_: fillers[id_] for id_ in nodes if id_ in fillers},
        unjoined_versions=_unjoined_versions(graph, stage),
        time_of_task=inputs_with_a_say(graph, stage.nodes),
        needed={id_: plan.needed.get(id_) for id_ in nodes},
        target_keys={id_: key for id_, key in keys.items() if key},
        partials_of={
            id_: graph.nodes[plan.combined[node.operator.stream]]
            for id_, node in nodes.items()
            if isinstance(node.operator, PartitionBy) and node.operator.stream in plan.combined
        },
        takes_partials=frozenset(plan.combined.values()) & nodes.keys(),
        order=order_of(graph, stage.nodes),
    )


def _without_timers(node: Node) -> Node:
    """Mark low-level tasks that an input without event time reaches: their event-time timers would never fire."""
    step = node.operator
    return replace(node, operator=replace(step, timed=False)) if isinstance(step, TaskStep) else node


def _unjoined_versions(graph: Graph, stage: StagePlan) -> dict[str, tuple[str, ...]]:
    return {
        id_: tuple(writer.id for writer in writers)
        for id_ in stage.tables
        if graph.tables[id_].versions_ms is not None and (writers := graph.writers_of(id_)) and not graph.joins_of(id_)
    }


def _target_key(graph: Graph, written: str | None) -> tuple[str, ...]:
    """Return the columns by which a step's written rows replace others; none if rows are only added."""
    if written is None:
        return ()
    if written in graph.tables:
        return graph.tables[written].key
    system = graph.streams[written].system
    return tuple(system.options.get("key", ())) if system.kind == "sql" else ()


def _readers(plan: Plan, table: str) -> int:
    joins = {node.id for node in plan.graph.joins_of(table)}
    return max(1, sum(len(stage.tasks) for stage in plan.stages if joins & set(stage.nodes)))
