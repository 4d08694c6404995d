"""The slices of a plan that tasks need: of a live stage, of a batch job, and the owner of a key of a table.

Messages after a ``partition_by`` are in the partition to which their key columns hash, and task n reads partition n. If
every flow that fills a table comes from one, and the hashed columns belong to the table's key, then a key is in one
known task, and otherwise unknown.

In a batch job, every stage gets all of its input, in order of event time. Order costs a sort, so only stages that keep
state between messages get it, and order between their inputs only if a step depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.api.operators.changes import ChangesJoin
from headrace.api.operators.join import IntervalJoin
from headrace.api.operators.spec import EventTime, OperatorSpec
from headrace.api.operators.steps import BatchFunction, MapAsync, PartitionBy, RowFunction, Sampler
from headrace.api.operators.task import TaskStep
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Node, StreamSpec, TableSpec
from headrace.core.ids import SSP, TaskName
from headrace.plan.keys import Partitioning, partitionings
from headrace.plan.model import Plan, StagePlan, reachable
from headrace.plan.order import Order, order_of
from headrace.plan.partitions import fillers_of_versions
from headrace.plan.passes import inputs_with_a_say, untimed_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesPlan:
    """The tables of a stage. ``by_record``: those that low-level tasks read and write record by record."""

    tables: tuple[TableSpec, ...]
    side_inputs: Mapping[str, StreamSpec]
    readers: Mapping[str, int]
    """How many tasks of the app read each remote table; each task has an equal share of its rate."""
    by_record: frozenset[str]


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
    graph = plan.graph
    untimed = untimed_inputs(graph)
    nodes = {id_: graph.nodes[id_] for id_ in stage.nodes}
    for id_, node in nodes.items():
        if id_ in untimed and isinstance(node.operator, TaskStep):
            # Its event-time timers would never fire.
            nodes[id_] = replace(node, operator=replace(node.operator, timed=False))
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
        unjoined_versions={
            id_: tuple(writer.id for writer in writers)
            for id_ in stage.tables
            if graph.tables[id_].versions_ms is not None
            and (writers := graph.writers_of(id_))
            and not graph.joins_of(id_)
        },
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


def _target_key(graph: Graph, written: str | None) -> tuple[str, ...]:
    """The columns by which a step's written rows replace others; none if rows are only added."""
    if written is None:
        return ()
    if written in graph.tables:
        return graph.tables[written].key
    system = graph.streams[written].system
    return tuple(system.options.get("key", ())) if system.kind == "sql" else ()


def _readers(plan: Plan, table: str) -> int:
    joins = {node.id for node in plan.graph.joins_of(table)}
    return max(1, sum(len(stage.tasks) for stage in plan.stages if joins & set(stage.nodes)))


def owned_by(plan: Plan, stage: StagePlan, table: str) -> tuple[str, ...] | None:
    """The columns of a local table's key whose hash, modulo the stage's tasks, is the row's task; or None."""
    graph = plan.graph
    spec = graph.tables[table]
    if spec.kind != "local" or graph.settings.grouping != "partition":
        return None
    known = partitionings(graph)
    writers = graph.writers_of(table)
    found = {_hashed(plan, stage, known.get(before), spec.key) for node in writers for before in node.inputs}
    return found.pop() if len(found) == 1 else None


def _hashed(plan: Plan, stage: StagePlan, flow: Partitioning | None, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns of the key by which the flow is partitioned, in the order of hashing."""
    if flow is None or plan.streams[flow.stream].partitions != len(stage.tasks):
        return None
    return flow.within(key)


# -- batch -------------------------------------------------------------------------------------------
_BY_ORDER = {"first", "last", "top_k", "implode", "fold", "reduce"}
"""Aggregates whose results depend on the order of equal times, or of all messages."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order that a stage needs, also ``between`` its inputs; ``watched``: steps get a time before its messages."""

    timed: bool = False
    between: bool = False
    watched: bool = False


def batch_order_of(plan: Plan, stage: StagePlan) -> BatchOrder:
    nodes = [plan.graph.nodes[id_] for id_ in stage.nodes]
    watched = any(isinstance(node.operator, TaskStep) for node in nodes)
    keeping = [node for node in nodes if node.operator.table_used is not None or plan.graph.kept_state(node.id)]
    if not keeping and not stage.tables:
        return BatchOrder()
    several = len({*stage.inputs, *stage.side_inputs}) > 1
    return BatchOrder(timed=True, between=several and not all(map(_indifferent, keeping)), watched=watched)


def _indifferent(node: Node) -> bool:
    """A step's results, or what they add up to, don't depend on the order of its inputs."""
    step = node.operator
    if isinstance(step, Window):
        return step.mergeable and not any(aggregate.kind in _BY_ORDER for _, aggregate in step.aggregates)
    return isinstance(step, IntervalJoin | ChangesJoin)


def slack_of(plan: Plan, stage: StagePlan) -> int:
    """How far (ms) a stage's event time must stay behind that of its input, so that nothing is late in it.

    If a step uses another time, of a function or a window, its messages are only as ordered as live ones.
    """
    mine = set(stage.nodes)
    if not any(_has_another_time(plan, mine, id_) for id_ in stage.nodes):
        return 0
    graph = plan.graph
    writers: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if node.operator.stream_written is not None:
            writers.setdefault(node.operator.stream_written, []).append(node.id)

    def before(id_: str) -> Iterable[str]:
        return (*graph.nodes[id_].inputs, *writers.get(graph.nodes[id_].operator.stream_read or "", ()))

    upstream = {above for id_ in stage.nodes for above in reachable(id_, before)}
    read = {graph.nodes[id_].operator.stream_read for id_ in upstream}
    return max((spec.lateness_ms for id_, spec in graph.streams.items() if id_ in read), default=0)


def _has_another_time(plan: Plan, mine: set[str], id_: str) -> bool:
    """A step waits for event time, and its messages may have another time than the stage's input."""
    node, graph = plan.graph.nodes[id_], plan.graph
    step = node.operator
    if not step.needs_event_time or isinstance(step, TaskStep) or id_ in plan.combined.values():
        return False  # a task's timers use the input's time; partial results are sorted by the window's own time
    if isinstance(step, Window) and any(graph.nodes[before].event_time != step.event_time for before in node.inputs):
        return True
    above = reachable(id_, lambda each: [before for before in graph.nodes[each].inputs if before in mine])
    return any(_computes_rows(graph.nodes[each].operator) for each in above)


def _computes_rows(step: OperatorSpec) -> bool:
    """It is a user's function whose rows may have other times than its input."""
    if isinstance(step, RowFunction):
        return step.mode != "filter"
    return isinstance(step, MapAsync) or (isinstance(step, BatchFunction) and not isinstance(step.function, Sampler))


def ranks_of(plan: Plan, stage: StagePlan) -> dict[str, int]:
    """The rank of each input at equal times: inputs that fill a table precede those that look rows up in it."""
    after = plan.successors(stage)
    ranks = dict.fromkeys(stage.side_inputs, 0)
    for id_ in stage.nodes:
        stream = plan.graph.nodes[id_].operator.stream_read
        if stream is not None:
            ranks[stream] = min(ranks.get(stream, 1), 0 if _fills_a_table(plan.graph, after, id_) else 1)
    return ranks


def _fills_a_table(graph: Graph, after: Mapping[str, tuple[str, ...]], id_: str) -> bool:
    return graph.nodes[id_].operator.table_written is not None or any(
        _fills_a_table(graph, after, next_) for next_ in after[id_]
    )


def readers_of(plan: Plan) -> dict[SSP, tuple[TaskName, ...]]:
    found: dict[SSP, list[TaskName]] = {}
    for stage in plan.stages:
        for task in stage.tasks:
            for ssp in task.inputs:
                found.setdefault(ssp, []).append(task.name)
    return {ssp: tuple(names) for ssp, names in found.items()}


def time_written(graph: Graph, stream: str) -> EventTime | None:
    """The event time of a stream's messages; None if they have none, or if its writers disagree."""
    spec = graph.streams.get(stream)
    if spec is None or spec.event_time is not None:
        return None if spec is None else spec.event_time
    writers = [node for node in graph.nodes.values() if node.operator.stream_written == stream]
    times = {graph.nodes[before].event_time for node in writers for before in node.inputs}
    return times.pop() if len(times) == 1 else None
