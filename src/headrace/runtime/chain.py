"""The operators of one stage, connected for one task: rows enter at an input, results leave through the port.

Watermarks and the end of the stream visit the operators in topological order. So what a window emits at a watermark
reaches the operators downstream before that watermark does. An operator receives the watermark that the operators
before it have let through: a lower one after a step that emits old results, a later one after a step that waits for
answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import polars as pl

from headrace.api.operators.streams import SideOutput
from headrace.api.specs import Node
from headrace.core.errors import PlanError
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import ChainPlan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Operator, Port
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.provenance import Arrival, Provenance
from headrace.runtime.operators.registry import build_operator
from headrace.runtime.tables.task_tables import TaskTables
from headrace.serdes.schema import Schema
from headrace.stores.base import StateStore


class Chain:
    """All operators of a stage for one task."""

    def __init__(self, plan: ChainPlan, port: Port, counters: Counters, calls: Calls) -> None:
        self.tables = TaskTables(plan.tables, counters, calls)
        self._operators: dict[str, Operator] = {}
        self._inputs: dict[str, list[Operator]] = {}
        for id_, node in plan.nodes.items():
            context = BuildContext(
                port=port,
                counters=counters,
                calls=calls,
                tables=self.tables,
                inputs=_input_schemas(plan, node),
                needed=plan.needed[id_],
                takes_partials=id_ in plan.takes_partials,
                partials_of=plan.partials_of.get(id_),
                target_key=plan.target_keys.get(id_, ()),
            )
            self._operators[id_] = build_operator(node, context)
            if node.operator.stream_read is not None:
                self._inputs.setdefault(node.operator.stream_read, []).append(self._operators[id_])
            for number, before in enumerate(node.inputs):
                operator = self._operators[before]
                side = node.operator.name if isinstance(node.operator, SideOutput) else None
                after = operator.after if side is None else operator.aside.setdefault(side, [])
                after.append(self._operators[id_].side(number))
        self.provenance = Provenance()
        for operator in self._reached():
            operator.provenance = self.provenance
        self._times = _Times({id_: (*node.inputs, *plan.fillers.get(id_, ())) for id_, node in plan.nodes.items()})
        operators = self._operators.values()
        self._waiting = [operator for operator in operators if type(operator).collect is not Operator.collect]
        self._asking = [operator for operator in operators if type(operator).committed is not Operator.committed]
        self._unended = list(self._operators)

    def _reached(self) -> list[Operator]:
        """All operators, including those that take the input of another one."""
        operators = list(self._operators.values())
        for operator in operators:  # grows during the loop
            after = (*operator.after, *(taker for takers in operator.aside.values() for taker in takers))
            operators += [taker for taker in after if taker not in operators]
        return operators

    @property
    def output_watermark(self) -> int:
        """The watermark of what leaves the stage."""
        return min((self._times.after[id_] for id_, operator in self._operators.items() if not operator.after))

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def process(self, stream: str, rows: pl.DataFrame, arrival: Arrival | None = None) -> None:
        """Process rows of an input stream; all their results have left when this returns."""
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
        """Event time has reached ``watermark``."""
        self._times.task = watermark
        self._let_time_through()

    def _let_time_through(self) -> None:
        for id_, operator in self._operators.items():
            risen = self._times.rise(id_)
            if risen is not None:
                operator.on_watermark(risen)
            self._times.after[id_] = operator.watermark_after(self._times.reached[id_])

    def tell_time(self, now_ms: int) -> None:
        """Set the wall clock; nothing happens yet."""
        self.tables.tell_time(now_ms)
        for operator in self._operators.values():
            operator.now_ms = now_ms

    def on_time(self, now_ms: int) -> None:
        """Set the wall clock, and let operators do what is due by it."""
        self.tell_time(now_ms)
        for operator in self._operators.values():
            due = operator.due_ms()
            if due is not None and due <= now_ms:
                operator.on_time(now_ms)
        self.tables.on_time(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) something is due next; None: never."""
        parts: list[TaskTables | Operator] = [self.tables, *self._operators.values()]
        return min((due for part in parts if (due := part.due_ms()) is not None), default=None)

    # -- operators that wait for others

    @property
    def holding(self) -> bool:
        """Some operator has taken rows and not yet emitted their results."""
        return any(operator.holding for operator in self._waiting)

    @property
    def full(self) -> str | None:
        """The step that can't take more rows until it has emitted some, and why; None if there is none."""
        return next((_waits(operator) for operator in self._waiting if operator.full), None)

    @property
    def held_by(self) -> str | None:
        """The step that is holding rows, and why; None if there is none."""
        return next((_waits(operator) for operator in self._waiting if operator.holding), None)

    def collect(self) -> None:
        """Emit what operators have waited for, and the watermarks after it, in order."""
        while sum(operator.collect() for operator in self._waiting):  # all of them: any() would stop at the first
            self._let_time_through()

    def close(self) -> None:
        """Drop what operators wait for, and release what they opened; all of it, even if some of that fails."""
        with ExitStack() as closing:
            closing.callback(self.tables.close)
            for operator in reversed(self._operators.values()):
                closing.callback(operator.close)

    # -- operators with requests

    @property
    def wants_commit(self) -> bool:
        """Some operator asks for a commit."""
        return any(operator.wants_commit for operator in self._asking)

    @property
    def wants_shutdown(self) -> bool:
        """Some operator asks for the app to be drained."""
        return any(operator.wants_shutdown for operator in self._asking)

    def committed(self) -> None:
        """What operators have done so far is committed."""
        for operator in self._asking:
            operator.committed()

    # -- the end, and the beginning

    def end(self) -> bool:
        """All inputs have ended. Return False if some operator waits: call again after ``collect``."""
        while self._unended and not self.holding:
            self._operators[self._unended.pop(0)].on_end()
        return not self._unended and not self.holding

    def begin(self, task: TaskName) -> None:
        """The state has been restored: let tables and operators prepare, before anything else."""
        self.tables.begin()
        for id_, operator in self._operators.items():
            operator.begin(task, self._times.reached[id_])

    def resume(self, watermark: int) -> None:
        """Give the operators the watermark that their restored state belongs to."""
        self._times.task = watermark
        for id_, operator in self._operators.items():
            self._times.rise(id_)
            operator.resume(self._times.reached[id_])
            self._times.after[id_] = max(NEVER, self._times.reached[id_] - operator.delay_ms)

    def sizes(self) -> dict[str, int]:
        """The approximate number of rows of each table, and of each store of a low-level task; for status."""
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


def _input_schemas(plan: ChainPlan, node: Node) -> tuple[Schema, ...]:
    schemas = [plan.nodes[before].schema for before in node.inputs]
    known = tuple(schema for schema in schemas if schema is not None)
    if len(known) < len(schemas) and not isinstance(node.operator, SideOutput):
        raise PlanError(f"step {node.id!r} takes a flow whose columns aren't known")
    return known


class _Times:
    """The watermarks of the task, of each operator, and after each operator."""

    def __init__(self, before: Mapping[str, Sequence[str]]) -> None:
        """``before``: the operators that feed each one, in topological order."""
        self.task = NEVER
        self.reached = dict.fromkeys(before, NEVER)
        self.after = dict.fromkeys(before, NEVER)
        self._before = before

    def rise(self, id_: str) -> int | None:
        """The new watermark of an operator; None if it hasn't risen."""
        risen = min((self.after[before] for before in self._before[id_]), default=self.task)
        if risen <= self.reached[id_]:
            return None
        self.reached[id_] = risen
        return risen
