"""The operators of one stage, wired for one task: rows go in at an input, results leave through the port.

Built from the plan once per task. Watermarks and the end visit every operator in topological order, so that
what a window emits at a watermark reaches the operators behind it before they hear of that watermark. An operator
hears the watermark that those before it have let through: a lower one behind a step that emits old results, and a later
one behind a step that waits for answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import polars as pl

from headrace.api.specs import Node
from headrace.api.steps import (
    BatchFunction,
    Broadcast,
    Deduplicate,
    DropLate,
    Filter,
    Input,
    Join,
    LatestJoin,
    MapAsync,
    Merge,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SendToTable,
    SideOutput,
    Sink,
    TableJoin,
    TaskStep,
    Window,
)
from headrace.core.errors import PlanError
from headrace.core.ids import TaskName
from headrace.plan.joins import fillers_of_versions
from headrace.plan.model import Plan, StagePlan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Counters, Operator, Port
from headrace.runtime.operators.deduplicate import DeduplicateOperator, DropLateOperator
from headrace.runtime.operators.expression import FilterOperator, ProjectOperator
from headrace.runtime.operators.joins.as_of import TableAsOf
from headrace.runtime.operators.joins.interval import JoinOperator
from headrace.runtime.operators.joins.latest import LatestJoinOperator
from headrace.runtime.operators.joins.remote import RemoteLookup
from headrace.runtime.operators.joins.table import RemoteWriter, TableLookup, TableWriter
from headrace.runtime.operators.provenance import Arrival, Provenance
from headrace.runtime.operators.sending import SendOperator
from headrace.runtime.operators.user_code.functions import BatchFunctionOperator, RowFunctionOperator, SinkOperator
from headrace.runtime.operators.user_code.map_async import MapAsyncOperator
from headrace.runtime.operators.user_code.task import TaskOperator
from headrace.runtime.operators.windows.choice import window_operator
from headrace.runtime.operators.windows.partial import CombineOperator
from headrace.runtime.tables.table_feed import LocalTable
from headrace.runtime.tables.task_tables import TaskTables
from headrace.serdes.schema import Schema
from headrace.stores.base import StateStore
from headrace.stores.versions import VersionedTable


def build_operator(
    plan: Plan, node: Node, port: Port, counters: Counters, tables: TaskTables, calls: Calls
) -> Operator:
    """The operator that runs a node."""
    match node.operator:
        case Input() | Merge() | SideOutput():
            return Operator(node)
        case Filter() as spec:
            return FilterOperator(node, spec, plan.needed.get(node.id))
        case Project() as spec:
            return ProjectOperator(node, spec)
        case RowFunction() as spec:
            return RowFunctionOperator(node, spec, counters)
        case BatchFunction() as spec:
            return BatchFunctionOperator(node, spec, counters)
        case MapAsync() as spec:
            return MapAsyncOperator(node, spec, counters, calls)
        case Window() as spec:
            return window_operator(node, spec, counters, combined=node.id in plan.combined.values())
        case Deduplicate() as spec:
            return DeduplicateOperator(node, spec, counters)
        case DropLate() as spec:
            return DropLateOperator(node, spec, counters)
        case SendTo(stream=table) as spec if table in plan.graph.tables:
            return RemoteWriter(node, spec, port, plan.graph.tables[table].key)
        case PartitionBy() | SendTo() | Broadcast() as spec:
            return SendOperator(node, spec, port)
        case Sink() as spec:
            return SinkOperator(node, spec, counters)
        case Join() as spec:
            left, right = _columns_before(plan, node)
            return JoinOperator(node, spec, left, right, counters)
        case LatestJoin() as spec:
            left, right = _columns_before(plan, node)
            return LatestJoinOperator(node, spec, left, right)
        case TableJoin(table=table) as spec:
            (left,) = _columns_before(plan, node)
            if table in tables.remote:
                return RemoteLookup(node, spec, left, tables.remote[table], counters)
            return _look_up(plan, node, spec, left, tables[table], counters)
        case TaskStep() as spec:
            return TaskOperator(node, spec, counters)
        case SendToTable(table=table) as spec:
            (before,) = _columns_before(plan, node)
            return TableWriter(node, spec, tables[table], tables.feed(spec, before), counters)


def _look_up(plan: Plan, node: Node, spec: TableJoin, left: Schema, table: LocalTable, counters: Counters) -> Operator:
    if isinstance(table, VersionedTable):
        waits = not plan.graph.tables[spec.table].side_inputs
        return TableAsOf(node, spec, left, table, counters, waits=waits)
    return TableLookup(node, spec, left, table)


def _columns_before(plan: Plan, node: Node) -> list[Schema]:
    """The columns of each of a join's inputs."""
    schemas = [plan.graph.nodes[before].schema for before in node.inputs]
    known = [schema for schema in schemas if schema is not None]
    if len(known) < len(schemas):
        raise PlanError(f"step {node.id!r} joins a flow whose columns aren't known")
    return known


class Chain:
    """All operators of a stage for one task."""

    def __init__(self, plan: Plan, stage: StagePlan, port: Port, counters: Counters, calls: Calls) -> None:
        graph = plan.graph
        self.tables = TaskTables(plan, stage, counters, calls)
        self._operators = {
            id_: build_operator(plan, graph.nodes[id_], port, counters, self.tables, calls) for id_ in stage.nodes
        }
        self._inputs: dict[str, list[Operator]] = {}
        for id_ in stage.nodes:
            node = graph.nodes[id_]
            if isinstance(node.operator, Input):
                self._inputs.setdefault(node.operator.stream, []).append(self._operators[id_])
            for number, before in enumerate(node.inputs):
                operator = self._operators[before]
                side = node.operator.name if isinstance(node.operator, SideOutput) else None
                after = operator.after if side is None else operator.aside.setdefault(side, [])
                after.append(_entry(plan, self._operators[id_], counters).side(number))
        self.provenance = Provenance()
        for operator in self._reached():
            operator.provenance = self.provenance
        filled_by = fillers_of_versions(graph)
        self._times = _Times({id_: (*graph.nodes[id_].inputs, *filled_by.get(id_, ())) for id_ in stage.nodes})
        operators = self._operators.values()
        self._waiting = [operator for operator in operators if type(operator).collect is not Operator.collect]
        self._asking = [operator for operator in operators if isinstance(operator, TaskOperator)]
        self._unended = list(self._operators)

    def _reached(self) -> list[Operator]:
        """All operators, those too that stand for another or before it."""
        operators = list(self._operators.values())
        for operator in operators:  # grows on the way
            after = (*operator.after, *(taker for takers in operator.aside.values() for taker in takers))
            operators += [taker for taker in after if taker not in operators]
        return operators

    @property
    def output_watermark(self) -> int:
        """How far event time has come for what leaves the stage."""
        return min((self._times.behind[id_] for id_, operator in self._operators.items() if not operator.after))

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def process(self, stream: str, rows: pl.DataFrame, arrival: Arrival | None = None) -> None:
        """Feed rows of an input stream; all that follows from them has left when this returns."""
        self.provenance.arrive(arrival)
        try:
            for operator in self._inputs[stream]:
                operator.receive(rows)
        finally:
            self.provenance.arrive(None)

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        """Put rows of a side input into its tables."""
        self.tables.update(stream, rows)

    def watermark(self, watermark: int) -> None:
        """Event time has come this far."""
        self._times.task = watermark
        self._let_time_through()

    def _let_time_through(self) -> None:
        for id_, operator in self._operators.items():
            risen = self._times.rise(id_)
            if risen is not None:
                operator.on_watermark(risen)
            self._times.behind[id_] = operator.watermark_behind(self._times.heard[id_])

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

    # -- operators that wait for others

    @property
    def holding(self) -> bool:
        """Some operator has taken rows whose results are still to come."""
        return any(operator.holding for operator in self._waiting)

    @property
    def full(self) -> str | None:
        """The step that should be given nothing until something has come out of it, and why; None: there is none."""
        return next((_waits(operator) for operator in self._waiting if operator.full), None)

    @property
    def held_by(self) -> str | None:
        """The step that is holding rows, and why; None: there is none."""
        return next((_waits(operator) for operator in self._waiting if operator.holding), None)

    def collect(self) -> None:
        """Let out what operators have waited for, and the watermarks behind it, in order."""
        while sum(operator.collect() for operator in self._waiting):  # each of them: any() would stop at the first
            self._let_time_through()

    def close(self) -> None:
        """Forget what operators wait for, and release what they have opened; all of it, whatever fails at that."""
        with ExitStack() as closing:
            closing.callback(self.tables.close)
            for operator in reversed(self._operators.values()):
                closing.callback(operator.close)

    # -- operators that ask for something

    @property
    def wants_commit(self) -> bool:
        """Some operator asks for a commit."""
        return any(operator.wants_commit for operator in self._asking)

    @property
    def wants_shutdown(self) -> bool:
        """Some operator asks that the app be drained."""
        return any(operator.wants_shutdown for operator in self._asking)

    def committed(self) -> None:
        """What operators have done so far is committed."""
        for operator in self._asking:
            operator.committed()

    # -- the end, and a new beginning

    def end(self) -> bool:
        """All inputs have ended; False when some operator waits, and this has to be called again after ``collect``."""
        while self._unended and not self.holding:
            self._operators[self._unended.pop(0)].on_end()
        return not self._unended and not self.holding

    def begin(self, task: TaskName) -> None:
        """The state is there: let tables and operators prepare themselves, before anything else."""
        self.tables.begin()
        for id_, operator in self._operators.items():
            operator.begin(task, self._times.heard[id_])

    def resume(self, watermark: int) -> None:
        """Tell the operators the watermark that their restored state belongs to."""
        self._times.task = watermark
        for id_, operator in self._operators.items():
            self._times.rise(id_)
            operator.resume(self._times.heard[id_])
            self._times.behind[id_] = max(NEVER, self._times.heard[id_] - operator.delay_ms)

    def sizes(self) -> dict[str, int]:
        """About how many rows each table has, and each store of a low-level task; for status."""
        sizes = self.tables.sizes()
        for operator in self._operators.values():
            sizes |= operator.sizes()
        return sizes

    def stores(self) -> dict[str, StateStore]:
        """The state of all operators and tables, by durable id."""
        parts: list[TaskTables | Operator] = [self.tables, *self._operators.values()]
        return {store.id: store for part in parts for store in part.stores()}


def _waits(operator: Operator) -> str:
    return f"step {operator.node.id}" + (f": {operator.trouble}" if operator.trouble else "")


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


class _Times:
    """How far event time has come for the task, at each operator, and behind it."""

    def __init__(self, before: Mapping[str, Sequence[str]]) -> None:
        """``before``: the operators that feed each one, in topological order."""
        self.task = NEVER
        self.heard = dict.fromkeys(before, NEVER)
        self.behind = dict.fromkeys(before, NEVER)
        self._before = before

    def rise(self, id_: str) -> int | None:
        """The watermark that an operator has to be told now; None when it knows it."""
        come = min((self.behind[before] for before in self._before[id_]), default=self.task)
        if come <= self.heard[id_]:
            return None
        self.heard[id_] = come
        return come
