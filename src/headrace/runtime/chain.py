"""The operators of one stage, wired for one task: rows go in at an input, results leave through the port.

Built from the plan once per task. Watermarks and the end visit every operator in topological order, so that
what a window emits at a watermark reaches the operators behind it before they hear of that watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from headrace.api.specs import (
    BatchFunction,
    Broadcast,
    Deduplicate,
    DropLate,
    Filter,
    Graph,
    Input,
    Join,
    Late,
    Merge,
    Node,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SendToTable,
    Sink,
    TableJoin,
    Window,
)
from headrace.core.errors import PlanError
from headrace.plan.model import Plan, StagePlan
from headrace.runtime.operators.base import Counters, Operator, Port
from headrace.runtime.operators.combine import CombineOperator
from headrace.runtime.operators.deduplicate import DeduplicateOperator, DropLateOperator
from headrace.runtime.operators.expression import FilterOperator, ProjectOperator
from headrace.runtime.operators.functions import BatchFunctionOperator, RowFunctionOperator, SinkOperator
from headrace.runtime.operators.join import JoinOperator
from headrace.runtime.operators.sending import SendOperator
from headrace.runtime.operators.table import TableLookup, TableWriter
from headrace.runtime.operators.window_aligned import aligned_window
from headrace.runtime.operators.windows import window_operator
from headrace.runtime.tables import TaskTables
from headrace.runtime.watermark import NEVER
from headrace.stores.base import StateStore


def build_operator(plan: Plan, node: Node, port: Port, counters: Counters, tables: TaskTables) -> Operator:
    """The operator that runs a node."""
    match node.operator:
        case Input() | Merge() | Late():
            return Operator(node)
        case Filter() as spec:
            return FilterOperator(node, spec, plan.needed.get(node.id))
        case Project() as spec:
            return ProjectOperator(node, spec)
        case RowFunction() as spec:
            return RowFunctionOperator(node, spec)
        case BatchFunction() as spec:
            return BatchFunctionOperator(node, spec)
        case Window() as spec:
            if node.id in plan.combined.values():
                return aligned_window(node, spec, counters, combined=True)
            return window_operator(node, spec, counters)
        case Deduplicate() as spec:
            return DeduplicateOperator(node, spec, counters)
        case DropLate() as spec:
            return DropLateOperator(node, spec, counters)
        case PartitionBy() | SendTo() | Broadcast() as spec:
            return SendOperator(node, spec, port)
        case Sink() as spec:
            return SinkOperator(node, spec)
        case Join() as spec:
            left, right = (plan.graph.nodes[before].schema for before in node.inputs)
            if left is None or right is None:
                raise PlanError(f"step {node.id!r} joins a flow whose columns aren't known")
            return JoinOperator(node, spec, left, right, counters)
        case TableJoin(table=table) as spec:
            before = plan.graph.nodes[node.inputs[0]].schema
            if before is None:
                raise PlanError(f"step {node.id!r} joins a flow whose columns aren't known")
            return TableLookup(node, spec, before, tables[table])
        case SendToTable(table=table) as spec:
            return TableWriter(node, spec, tables[table])


class Chain:
    """All operators of a stage for one task."""

    def __init__(self, plan: Plan, stage: StagePlan, port: Port, counters: Counters) -> None:
        graph = plan.graph
        self.tables = TaskTables(plan, stage)
        self._operators = {
            id_: build_operator(plan, graph.nodes[id_], port, counters, self.tables) for id_ in stage.nodes
        }
        self._inputs: dict[str, list[Operator]] = {}
        for id_ in stage.nodes:
            node = graph.nodes[id_]
            if isinstance(node.operator, Input):
                self._inputs.setdefault(node.operator.stream, []).append(self._operators[id_])
            for number, before in enumerate(node.inputs):
                operator = self._operators[before]
                after = operator.late_after if isinstance(node.operator, Late) else operator.after
                after.append(_entry(plan, self._operators[id_], counters).side(number))
        self._behind = _delays(graph, stage, self._operators)
        sending = [self._behind[id_] for id_ in stage.nodes if not self._operators[id_].after]
        self.delay_ms = max(sending, default=0)
        """How far below the task's watermark the event time of what leaves the stage can be."""

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def process(self, stream: str, rows: pl.DataFrame) -> None:
        """Feed rows of an input stream; all that follows from them has left when this returns."""
        for operator in self._inputs[stream]:
            operator.receive(rows)

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        """Put rows of a side input into its tables."""
        self.tables.update(stream, rows)

    def watermark(self, watermark: int) -> None:
        """Event time has come this far."""
        for id_, operator in self._operators.items():
            operator.on_watermark(max(NEVER, watermark - self._behind[id_]))

    def tell_time(self, now_ms: int) -> None:
        """Say what the wall clock shows; nothing follows from it yet."""
        self.tables.tell_time(now_ms)
        for operator in self._operators.values():
            operator.now_ms = now_ms

    def on_time(self, now_ms: int) -> None:
        """Let operators do what is due by the wall clock."""
        self.tell_time(now_ms)
        for operator in self._operators.values():
            due = operator.due_ms()
            if due is not None and due <= now_ms:
                operator.on_time(now_ms)
        self.tables.on_time(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) something is due; None: nothing is."""
        parts: list[TaskTables | Operator] = [self.tables, *self._operators.values()]
        return min((due for part in parts if (due := part.due_ms()) is not None), default=None)

    def end(self) -> None:
        """All inputs have ended."""
        for operator in self._operators.values():
            operator.on_end()

    def resume(self, watermark: int) -> None:
        """Tell the operators the watermark that their restored state belongs to."""
        for id_, operator in self._operators.items():
            operator.resume(max(NEVER, watermark - self._behind[id_]))

    def stores(self) -> dict[str, StateStore]:
        """The state of all operators and tables, by durable id."""
        parts: list[TaskTables | Operator] = [self.tables, *self._operators.values()]
        return {store.id: store for part in parts for store in part.stores()}


def _entry(plan: Plan, operator: Operator, counters: Counters) -> Operator:
    """Who takes an operator's input: itself, or what makes partial results before it sends them."""
    spec = operator.node.operator
    window_id = plan.combined.get(spec.stream) if isinstance(spec, PartitionBy) else None
    window = None if window_id is None else plan.graph.nodes[window_id]
    if window is None or not isinstance(window.operator, Window):
        return operator
    combine = CombineOperator(window, window.operator, counters)
    combine.after.append(operator)
    return combine


def _delays(graph: Graph, stage: StagePlan, operators: Mapping[str, Operator]) -> dict[str, int]:
    """For each operator how far its watermark is behind the task's: the most that those before it delay."""
    behind: dict[str, int] = {}
    for id_ in stage.nodes:  # in topological order
        before = [behind[b] + operators[b].delay_ms for b in graph.nodes[id_].inputs]
        behind[id_] = max(before, default=0)
    return behind
