"""The facts that a batch job needs about a plan: the stages that need order, and the readers of partitions. Pure.

In a batch job, every stage gets all of its input, in order of event time. Order costs a sort, so only stages that keep
state between messages get it. Order between the inputs of a stage is established only if a step depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.api.choosing import Sampler
from headrace.api.operators.columns import Filter, Project
from headrace.api.operators.deduplicate import DropLate
from headrace.api.operators.functions import BatchFunction, MapAsync, RowFunction, Sink
from headrace.api.operators.join import IntervalJoin
from headrace.api.operators.spec import EventTime, OperatorSpec
from headrace.api.operators.streams import Broadcast, Input, Merge, PartitionBy, SendTo, SideOutput
from headrace.api.operators.table import TaskTable
from headrace.api.operators.task import TaskStep
from headrace.api.operators.window import Window
from headrace.api.specs import Graph, Node
from headrace.core.ids import SSP, TaskName
from headrace.plan.model import Plan, StagePlan
from headrace.plan.traverse import reachable

_STATELESS = (
    BatchFunction,
    Broadcast,
    DropLate,
    Filter,
    Input,
    MapAsync,
    Merge,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SideOutput,
    Sink,
    TaskTable,
)
"""Steps that keep no state between messages. In a batch, no message is late."""

_BY_ORDER = {"first", "last", "top_k", "implode", "fold", "reduce"}
"""Aggregates whose results depend on the order of equal times, or of all messages."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of messages that a stage needs.

    ``timed``: in order of event time. ``between``: also between its inputs, not only within each of them. ``watched``:
    its steps receive each time before the messages of that time.
    """

    timed: bool = False
    between: bool = False
    watched: bool = False


def order_of(plan: Plan, stage: StagePlan) -> Order:
    """Return the order that a stage needs."""
    nodes = [plan.graph.nodes[id_] for id_ in stage.nodes]
    watched = any(isinstance(node.operator, TaskStep) for node in nodes)
    keeping = [node for node in nodes if not isinstance(node.operator, _STATELESS)]
    if not keeping and not stage.tables:
        return Order()
    several = len({*stage.inputs, *stage.side_inputs}) > 1
    return Order(timed=True, between=several and not all(map(_indifferent, keeping)), watched=watched)


def _indifferent(node: Node) -> bool:
    """Return whether a step's results don't depend on the order of its inputs, because it waits for event time."""
    step = node.operator
    if isinstance(step, Window):
        return step.mergeable and not any(aggregate.kind in _BY_ORDER for _, aggregate in step.aggregates)
    return isinstance(step, IntervalJoin)


def slack_of(plan: Plan, stage: StagePlan) -> int:
    """Return how far (ms) a stage's event time must stay behind that of its input, so that nothing is late in it.

    The input is in order of its own time. If a step uses another time, computed by a function or named by a window,
    its messages are only as ordered as live ones: within the lateness of the sources.
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
    """Return whether a step waits for event time, and its messages may have another time than the stage's input."""
    node, graph = plan.graph.nodes[id_], plan.graph
    step = node.operator
    if not step.needs_event_time or isinstance(step, TaskStep) or id_ in plan.combined.values():
        return False  # a task's timers use the input's time; partial results are sorted by the window's own time
    if isinstance(step, Window) and any(graph.nodes[before].event_time != step.event_time for before in node.inputs):
        return True
    above = reachable(id_, lambda each: [before for before in graph.nodes[each].inputs if before in mine])
    return any(_computes_rows(graph.nodes[each].operator) for each in above)


def _computes_rows(step: OperatorSpec) -> bool:
    """Return whether it is a user's function whose rows may have other times than its input."""
    if isinstance(step, RowFunction):
        return step.mode != "filter"
    return isinstance(step, MapAsync) or (isinstance(step, BatchFunction) and not isinstance(step.function, Sampler))


def ranks_of(plan: Plan, stage: StagePlan) -> dict[str, int]:
    """Return the rank of each input at equal times: inputs that fill a table precede those that look rows up in it."""
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
    """Return the tasks that read each partition."""
    found: dict[SSP, list[TaskName]] = {}
    for stage in plan.stages:
        for task in stage.tasks:
            for ssp in task.inputs:
                found.setdefault(ssp, []).append(task.name)
    return {ssp: tuple(names) for ssp, names in found.items()}


def time_written(graph: Graph, stream: str) -> EventTime | None:
    """Return the event time of a stream's messages; None if they have none, or if its writers disagree."""
    spec = graph.streams.get(stream)
    if spec is None or spec.event_time is not None:
        return None if spec is None else spec.event_time
    writers = [node for node in graph.nodes.values() if node.operator.stream_written == stream]
    times = {graph.nodes[before].event_time for node in writers for before in node.inputs}
    return times.pop() if len(times) == 1 else None
