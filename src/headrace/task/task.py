"""One task: the operators of a stage on one partition group, connected as a chain, with their event time and state.

Watermarks and ends visit the operators of a chain in topological order, so what a window emits at a watermark reaches
the operators downstream before it. An operator hears only the inputs that feed it, as far as the operators before it
let time through, and ends when all of them have. Flows that fill a table don't affect the progress of its joins, unless
it is a table of versions.

The host feeds a task on one thread, with rows and control messages in the order of each partition. A task knows no
frame headers, containers, Spark or clocks. What it writes leaves through its port before a call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import polars as pl

from headrace.api.operators.steps import SideOutput
from headrace.api.specs import Node, Role, StreamSpec
from headrace.core.errors import DataError, PlanError, ProtocolError
from headrace.core.frame import ControlMessage, EndOfStream, Restore, Watermark
from headrace.core.ids import SSP, TaskName
from headrace.plan.chain_plan import ChainPlan, chain_plan
from headrace.plan.model import Plan, StagePlan
from headrace.rows.schema import Schema
from headrace.stores.base import StateStore
from headrace.task.calls import Calls
from headrace.task.event_time import (
    NEVER,
    NOTHING,
    UNHEARD,
    InputTimes,
    PartitionTime,
    Progress,
    TimesCheckpoint,
    combined,
    is_time_ms,
    time_ms,
)
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival, BuildContext, Operator, Port, Provenance
from headrace.task.operators.meetings import Gate, Meetings, TracedProvenance
from headrace.task.operators.registry import build_operator
from headrace.task.scope import TaskScope
from headrace.task.tables import TaskTables

_WRITERS = "writers"  # stands in for the joins with a table of versions that no step of the stage joins


class Chain:
    """All operators of a stage for one task."""

    def __init__(self, plan: ChainPlan, port: Port, counters: TaskMetrics, calls: Calls) -> None:
        self.tables = TaskTables(plan.tables, counters, calls)
        self._operators: dict[str, Operator] = {}
        self._inputs: dict[str, list[Operator]] = {}
        self.provenance = TracedProvenance() if plan.order.meetings else Provenance()
        self._meetings: Meetings | None = None
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
        if isinstance(self.provenance, TracedProvenance):
            self._meetings = Meetings(self.provenance, plan.order.meetings)
        self._connect(plan)
        self.connected = self._reached()
        for operator in self.connected:
            operator.provenance = self.provenance
        operators = self._operators.values()
        self._timed = [operator for operator in operators if type(operator).due_ms is not Operator.due_ms]
        self._waiting = [operator for operator in operators if type(operator).collect is not Operator.collect]
        self._asking = [operator for operator in operators if type(operator).committed is not Operator.committed]
        self._steps: dict[str, _Step] = {}
        for id_, node in plan.nodes.items():
            steps = tuple(self._steps[other] for other in (*node.inputs, *plan.fillers.get(id_, ())))
            self._steps[id_] = _Step(self._operators[id_], steps, waits=self._operators[id_] in self._waiting)
        self._sources = {id_: [self._steps[o.node.id] for o in read] for id_, read in self._inputs.items()}
        self._told = [self._steps[id_] for id_ in plan.time_of_task]
        self._writers: dict[str, list[_Step]] = {}
        for id_, node in plan.nodes.items():
            if node.operator.stream_written is not None:
                self._writers.setdefault(node.operator.stream_written, []).append(self._steps[id_])
        versions = plan.unjoined_versions.items()
        self._versions = {table: [self._steps[id_] for id_ in writers] for table, writers in versions}
        for table in self._versions:
            self.tables.used(table, _WRITERS)
        self.progress = UNHEARD  # the task's own: that of the inputs whose time counts for its results
        self.outputs: dict[str, Progress] = dict.fromkeys(self._writers, UNHEARD)  # by stream

    def _connect(self, plan: ChainPlan) -> None:
        for id_ in plan.order.inputs:
            stream = plan.nodes[id_].operator.stream_read
            if stream is not None:
                self._inputs.setdefault(stream, []).append(self._operators[id_])
        for before, ids in plan.order.branches.items():
            operator = self._operators[before]
            operator.hand_on = None if self._meetings is None else self._meetings.hand_on
            operator.emits_single = any(m.pace == "single" and before in m.nodes for m in plan.order.meetings)
            for id_ in dict.fromkeys(ids):
                node = plan.nodes[id_]
                after = operator.after
                if isinstance(node.operator, SideOutput):
                    after = operator.aside.setdefault(node.operator.name, [])
                for number, other in enumerate(node.inputs):
                    if other == before:
                        target = self._operators[id_].side(number)
                        target.takes_single = self._operators[id_].takes_single = id_ in plan.order.alone
                        if self._meetings is not None:
                            target = self._meetings.way(before, id_, number, target)
                        after.append(target)

    def _reached(self) -> list[Operator]:
        operators = list(self._operators.values())
        for operator in operators:  # grows during the loop
            after = (*operator.after, *(taker for takers in operator.aside.values() for taker in takers))
            operators += [taker for taker in after if taker not in operators]
        return operators

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def process(self, stream: str, rows: pl.DataFrame, arrival: Arrival | None = None) -> None:
        self.provenance.arrive(arrival)
        try:
            if self._meetings is not None:
                self._meetings.process(rows, self._inputs[stream])
                return
            for operator in self._inputs[stream]:
                operator.receive(rows)
        finally:
            self.provenance.arrive(None)

    def update(self, stream: str, rows: pl.DataFrame) -> None:
        self.tables.update(stream, rows)

    def advance(self, inputs: Mapping[str, Progress]) -> None:
        self._hear(inputs)
        self._let_time_through()

    def _hear(self, inputs: Mapping[str, Progress]) -> None:
        for stream, steps in self._sources.items():
            # This task may have no partition of a stream: then nothing of it will come.
            progress = inputs.get(stream, NOTHING)
            for step in steps:
                step.input = progress

    def _let_time_through(self) -> None:
        for step in self._steps.values():
            step.hear()
        self._sum_up()

    def _sum_up(self) -> None:
        self.progress = combined([step.reached for step in self._told], self.progress.watermark)
        for stream, writers in self._writers.items():
            self.outputs[stream] = writers[0].after if len(writers) == 1 else combined([w.after for w in writers])
        for table, writers in self._versions.items():
            self.tables.pass_by(table, _WRITERS, combined([writer.reached for writer in writers]).watermark)

    def tell_time(self, now_ms: int) -> None:
        self.tables.tell_time(now_ms)
        for operator in self._operators.values():
            operator.now_ms = now_ms

    def on_time(self, now_ms: int) -> None:
        self.tell_time(now_ms)
        some = False
        for operator in self._timed:
            due = operator.due_ms()
            if due is not None and due <= now_ms:
                operator.on_time(now_ms)
                some = True
        self.tables.sweeper.on_time(now_ms)
        if some:  # a step may owe nothing any more
            self._let_time_through()

    def due_ms(self) -> int | None:
        soonest = self.tables.sweeper.due_ms()
        for operator in self._timed:
            due = operator.due_ms()
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    @property
    def holding(self) -> bool:
        return any(operator.holding for operator in self._waiting)

    @property
    def full(self) -> str | None:
        return next((_waits(operator) for operator in self._waiting if operator.full), None)

    @property
    def held_by(self) -> str | None:
        return next((_waits(operator) for operator in self._waiting if operator.holding), None)

    def collect(self) -> None:
        waiting = self._waiting
        while waiting and sum([operator.collect() for operator in waiting]):  # all: any() would stop at the first
            self._let_time_through()

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.tables.close)
            for operator in reversed(self._operators.values()):
                closing.callback(operator.close)

    @property
    def wants_commit(self) -> bool:
        return any(operator.wants_commit for operator in self._asking)

    @property
    def wants_shutdown(self) -> bool:
        return any(operator.wants_shutdown for operator in self._asking)

    def committed(self) -> None:
        for operator in self._asking:
            operator.committed()

    @property
    def ended(self) -> bool:
        return all(step.after.ended for step in self._steps.values())

    def begin(self, task: TaskName) -> None:
        self.tables.begin()
        for id_, operator in self._operators.items():
            operator.begin(task, self._steps[id_].reached.watermark)

    def save(self, times: TimesCheckpoint, scope: TaskScope) -> TimesCheckpoint:
        """Return the progress of each operator, for the commit record. No operator holds rows at a commit."""
        streams, operators = self._kept(scope)
        return msgspec.structs.replace(
            times,
            watermark=self.progress.watermark,
            streams={name: step.reached.watermark for name, step in streams.items()},
            operators={name: step.reached.watermark for name, step in operators.items()},
            ended_operators=[name for name, step in operators.items() if step.done],
        )

    def load(self, times: TimesCheckpoint, inputs: Mapping[str, Progress], scope: TaskScope) -> None:
        streams, operators = self._kept(scope)
        ended = set(times.ended_operators)
        watermarks = {id(step): times.streams[name] for name, step in streams.items() if name in times.streams}
        watermarks |= {id(step): times.operators[name] for name, step in operators.items() if name in times.operators}
        unended = {id(step) for name, step in operators.items() if name not in ended}
        self._hear(inputs)
        for step in self._steps.values():
            step.resume(watermarks.get(id(step)), done=id(step) not in unended)
        self.progress = Progress(times.watermark)
        self._sum_up()

    def _kept(self, scope: TaskScope) -> tuple[dict[str, _Step], dict[str, _Step]]:
        names = {spec.id: scope.position_name(ssp) for ssp, spec in scope.inputs.items()}
        streams = {names[id_]: steps[0] for id_, steps in self._sources.items() if id_ in names}
        stores = ((step, step.operator.stores()) for step in self._steps.values())
        return streams, {scope.store_name(kept[0].id): step for step, kept in stores if kept}

    def sizes(self) -> dict[str, int]:
        sizes = self.tables.sizes()
        for operator in self._operators.values():
            sizes |= operator.sizes()
        return sizes

    def taking(self, step: str) -> list[Operator]:
        return [operator for operator in self.connected if operator.node.id == step and not isinstance(operator, Gate)]

    def rows_into(self) -> dict[str, int]:
        taken: dict[str, int] = {}
        for operator in self.connected:
            if operator.node.operator.stream_read is None:
                taken[operator.node.id] = taken.get(operator.node.id, 0) + operator.rows
        return taken

    def stores(self) -> dict[str, StateStore]:
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


class _Step:
    __slots__ = ("after", "before", "done", "input", "operator", "reached", "waits")

    def __init__(self, operator: Operator, before: tuple[_Step, ...], *, waits: bool) -> None:
        self.operator = operator
        self.before = before
        self.input = UNHEARD  # the progress of the stream that it reads, if it reads one
        self.reached = UNHEARD
        self.after = UNHEARD
        self.done = False
        self.waits = waits

    def hear(self) -> None:
        now = self._now()
        same = now == self.reached and self.done is now.ended and not self.waits
        if same and self.after.idle is (now.idle and not self.operator.owes):
            return
        risen = now.watermark > self.reached.watermark
        self.reached = now
        if now.ended:
            # A step that waits holds rows from before the end: it ends when they have left.
            if not self.done and not self.operator.holding:
                self.operator.on_end()
                self.done = True
        else:
            self.done = False
            if risen:
                self.operator.on_watermark(now.watermark)
        self.after = self._let_through()

    def resume(self, watermark: int | None, *, done: bool) -> None:
        now = self._now()
        self.reached = now if watermark is None else now._replace(watermark=watermark)
        self.done = done and now.ended
        self.operator.resume(self.reached.watermark)
        self.after = self._let_through()

    def _now(self) -> Progress:
        before = self.before
        if len(before) > 1:
            return combined([step.after for step in before], self.reached.watermark)
        now = before[0].after if before else self.input
        return now if now.watermark >= self.reached.watermark else now._replace(watermark=self.reached.watermark)

    def _let_through(self) -> Progress:
        reached, operator = self.reached, self.operator
        watermark = operator.watermark_after(reached.watermark)
        if self.waits and operator.holding:
            return reached._replace(watermark=watermark, idle=False, ended=False)
        idle = reached.idle and not operator.owes
        if watermark == reached.watermark and self.done is reached.ended and idle is reached.idle:
            return reached
        return reached._replace(watermark=watermark, idle=idle, ended=self.done)


class Task:
    """The processing of one task."""

    def __init__(self, scope: TaskScope, chain: Chain, metrics: TaskMetrics) -> None:
        self.scope = scope
        self.chain = chain
        self.metrics = metrics
        self.specs = scope.specs
        self.side_inputs = scope.side_inputs
        sources = scope.inputs
        self.timeouts = {ssp: spec.idle_timeout_ms for ssp, spec in sources.items() if spec.idle_timeout_ms is not None}
        self.times = InputTimes(
            (spec.id, PartitionTime(ssp, scope.writers.get(ssp), spec.id if _falls_idle(spec) else None))
            for ssp, spec in sources.items()
        )
        self._clocks = {ssp: _SourceClock(spec) for ssp, spec in sources.items() if spec.event_time}
        for operator in chain:
            operator.kept = scope.kept_keys.get(operator.node.id)
            operator.number = scope.name.number
        self.finished = self._closed = False

    @property
    def progress(self) -> Progress:
        return self.chain.progress

    @property
    def outputs(self) -> Mapping[str, Progress]:
        return self.chain.outputs

    def rows(self, arrival: Arrival, rows: pl.DataFrame) -> None:
        if not rows.height:
            return
        ssp = arrival.ssp
        spec = self.specs[ssp]
        self.metrics.rows_in += rows.height
        self.metrics.rows_of[ssp] += rows.height
        self.metrics.batches += 1
        try:
            if ssp in self.side_inputs:
                self.chain.update(spec.id, rows)
                return
            self.times.wake(ssp, arrival.shard)
            self.chain.process(spec.id, rows, arrival)
        except DataError as error:
            place = f"{ssp}, offsets {arrival.first} to {arrival.after - 1}"
            raise DataError(f"{error.message} (in {place})", hint=error.hint) from error
        clock = self._clocks.get(ssp)
        if clock is not None and spec.role is not Role.INTERMEDIATE:
            self.times[ssp].advance(clock.read(rows), arrival.shard)

    def control(self, ssp: SSP, message: ControlMessage) -> None:
        partition = self.times[ssp]
        match message:
            case Watermark(task_name=name, task_count=count, timestamp=timestamp, idle=idle, heard=heard, own=own):
                partition.on_watermark(name, count, timestamp, idle=idle, heard=heard, own=own)
            case EndOfStream(task_name=name, task_count=count):
                partition.on_end_of_stream(name, count)
            case Restore(task_name=name, task_count=count):
                partition.on_restart(name, count)
            case _:
                raise ProtocolError(f"{ssp}: a {type(message).__name__} reached the task's operators")

    def end(self, ssp: SSP) -> None:
        if ssp not in self.side_inputs:
            self.times[ssp].end()

    def slot(self, ssp: SSP, shards: Collection[str], holding: Collection[str]) -> None:
        self.times[ssp].has_shards(shards, holding)

    def idle(self, ssp: SSP, shard: str = "") -> None:
        self.times[ssp].fall_idle(shard)

    def advance(self) -> bool:
        news = None if self.finished else self.times.news()
        if news is not None:
            self.chain.advance(news)
        return news is not None

    @property
    def ended(self) -> bool:
        return self.times.ended

    @property
    def ended_inputs(self) -> list[SSP]:
        return [ssp for ssp, time in self.times.partitions.items() if time.progress.ended]

    def finish(self) -> bool:
        """False when that takes time: call again after ``collect``."""
        self.advance()
        self.finished = self.chain.ended
        return self.finished

    def save(self) -> TimesCheckpoint:
        partitions = self.times.save(self.scope.position_name)
        return self.chain.save(TimesCheckpoint(watermark=NEVER, partitions=partitions), self.scope)

    def begin(self) -> None:
        self.chain.begin(self.scope.name)

    def stores(self) -> dict[str, StateStore]:
        return self.chain.stores()

    def close(self) -> None:
        self.metrics.rows_into.update(self.rows_into())
        self._closed = True
        self.chain.close()

    def rows_into(self) -> dict[str, int]:
        before = self.metrics.rows_into
        if self._closed:
            return dict(before)
        return {step: before.get(step, 0) + rows for step, rows in self.chain.rows_into().items()}

    def load(self, times: TimesCheckpoint) -> None:
        self.times.load(times.partitions, self.scope.position_name)
        self.chain.load(times, self.times.streams(), self.scope)


def _falls_idle(spec: StreamSpec) -> bool:
    return spec.role is not Role.INTERMEDIATE and (spec.idle_timeout_ms is not None or bool(spec.slots))


class _SourceClock:
    """Reads the watermark out of a source's rows: their highest event time, less the lateness."""

    def __init__(self, spec: StreamSpec) -> None:
        assert spec.event_time is not None and spec.schema is not None, "an event time needs a schema"
        column = spec.event_time.column
        dtype = spec.schema.columns[column]
        self._column = column if is_time_ms(spec.event_time, dtype) else None
        self._time = time_ms(spec.event_time, dtype).max()
        self._lateness = spec.lateness_ms

    def read(self, rows: pl.DataFrame) -> int:
        # Asking the column itself takes a fiftieth of the time of an expression on a small batch.
        highest: Any = rows.select(self._time).item() if self._column is None else rows.get_column(self._column).max()
        return NEVER if highest is None else int(highest) - self._lateness


TaskFactory = Callable[[Port, TaskMetrics, Calls], Task]  # its results leave through the port


def task_factory(plan: Plan, stage: StagePlan, scope: TaskScope) -> TaskFactory:
    operators = chain_plan(plan, stage)
    return lambda port, metrics, calls: Task(scope, Chain(operators, port, metrics, calls), metrics)
