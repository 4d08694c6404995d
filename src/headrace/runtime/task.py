"""One task: the operators of a stage on one partition group, their event time, their state.

The host feeds a task with rows and control messages, in the order of each partition, on one thread.
It knows nothing of frames' headers, containers, Spark or clocks, so a live container, a test harness and a
batch job can all host it. What it writes leaves through its port before a call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import polars as pl

from headrace.api.specs import Role, StreamSpec
from headrace.core.errors import DataError, ProtocolError
from headrace.core.frame import ControlMessage, EndOfStream, Restore, Watermark
from headrace.core.ids import SSP
from headrace.plan.chain_plan import chain_plan
from headrace.plan.model import Plan, StagePlan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.chain import Chain
from headrace.runtime.event_time.columns import is_time_ms, time_ms
from headrace.runtime.event_time.watermark import NEVER, InputTimes, PartitionTime, Progress, TimesCheckpoint
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.base import Port
from headrace.runtime.operators.provenance import Arrival
from headrace.runtime.task_scope import TaskScope
from headrace.stores.base import StateStore


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
        """How long (ms) a partition may send nothing before it is idle, for those that can be."""
        self.times = InputTimes(
            (spec.id, PartitionTime(ssp, scope.writers.get(ssp), spec.id if _falls_idle(spec) else None))
            for ssp, spec in sources.items()
        )
        self._clocks = {ssp: _SourceClock(spec) for ssp, spec in sources.items() if spec.event_time}
        for operator in chain:
            operator.kept = scope.kept_keys.get(operator.node.id)
            operator.number = scope.name.number
        self.finished = False
        self._closed = False

    @property
    def progress(self) -> Progress:
        """The progress of this task's event time: that of its inputs, without those that don't affect its results."""
        return self.chain.progress

    @property
    def outputs(self) -> Mapping[str, Progress]:
        """The progress of each stream that the task writes, by id."""
        return self.chain.outputs

    def rows(self, arrival: Arrival, rows: pl.DataFrame) -> None:
        """Process messages of a partition."""
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
        """Process a message of an upstream task. Checkpoints concern the host, not the task."""
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
        """Note that a source partition has ended. If it is a side input, its table stays unchanged."""
        if ssp not in self.side_inputs:
            self.times[ssp].end()

    def slot(self, ssp: SSP, shards: Collection[str], holding: Collection[str]) -> None:
        """A source partition is a slot, and has these shards now; of those that are ``holding`` nothing comes yet."""
        self.times[ssp].has_shards(shards, holding)

    def idle(self, ssp: SSP, shard: str = "") -> None:
        """Note that a source partition or a shard of a slot is idle after its timeout, so that no task waits for it."""
        self.times[ssp].fall_idle(shard)

    def advance(self) -> bool:
        """Let event time and ends pass through the operators, as far as the inputs allow; return whether any did."""
        news = None if self.finished else self.times.news()
        if news is not None:
            self.chain.advance(news)
        return news is not None

    @property
    def ended(self) -> bool:
        """All inputs have ended: time to ``finish``."""
        return self.times.ended

    @property
    def ended_inputs(self) -> list[SSP]:
        """The partitions that have ended."""
        return [ssp for ssp, time in self.times.partitions.items() if time.progress.ended]

    def finish(self) -> bool:
        """All inputs have ended: emit what is open. False when that takes time: call again after ``collect``."""
        self.advance()
        self.finished = self.chain.ended
        return self.finished

    def save(self) -> TimesCheckpoint:
        """The bookkeeping, for the checkpoint; stores are saved by the host."""
        partitions = self.times.save(self.scope.position_name)
        return self.chain.save(TimesCheckpoint(watermark=NEVER, partitions=partitions), self.scope)

    def begin(self) -> None:
        """Prepare for the first message; stores and bookkeeping are as the last commit left them."""
        self.chain.begin(self.scope.name)

    def stores(self) -> dict[str, StateStore]:
        """The state of all operators and tables, by durable id."""
        return self.chain.stores()

    def close(self) -> None:
        """Release what the operators hold. What they have taken stays counted. Idempotent."""
        self.metrics.rows_into.update(self.rows_into())
        self._closed = True
        self.chain.close()

    def rows_into(self) -> dict[str, int]:
        """How many messages each step has taken since the process began, before rollbacks too."""
        before = self.metrics.rows_into
        if self._closed:
            return dict(before)
        return {step: before.get(step, 0) + rows for step, rows in self.chain.rows_into().items()}

    def load(self, times: TimesCheckpoint) -> None:
        """Continue from what ``save`` returned; the stores have been filled already."""
        self.times.load(times.partitions, self.scope.position_name)
        self.chain.load(times, self.times.streams(), self.scope)


def _falls_idle(spec: StreamSpec) -> bool:
    """Whether it is a source whose partitions can fall idle; a slot without shards does."""
    return spec.role is not Role.INTERMEDIATE and (spec.idle_timeout_ms is not None or bool(spec.slots))


class _SourceClock:
    """Reads the watermark out of a source's rows: their highest event time, less the lateness."""

    def __init__(self, spec: StreamSpec) -> None:
        if spec.event_time is None or spec.schema is None:
            raise ValueError("an event time needs a schema")
        column = spec.event_time.column
        dtype = spec.schema.columns[column]
        self._column = column if is_time_ms(spec.event_time, dtype) else None
        self._time = time_ms(spec.event_time, dtype).max()
        self._lateness = spec.lateness_ms

    def read(self, rows: pl.DataFrame) -> int:
        # Asking the column itself takes a fiftieth of the time of an expression on a small batch.
        highest: Any = rows.select(self._time).item() if self._column is None else rows.get_column(self._column).max()
        return NEVER if highest is None else int(highest) - self._lateness


TaskFactory = Callable[[Port, TaskMetrics, Calls], Task]
"""Makes the task of one attempt. Results leave through the port; steps that wait make their calls through the calls."""


def task_factory(plan: Plan, stage: StagePlan, scope: TaskScope) -> TaskFactory:
    """A factory for a task with the operators of a stage."""
    operators = chain_plan(plan, stage)
    return lambda port, metrics, calls: Task(scope, Chain(operators, port, metrics, calls), metrics)
