"""The part of a plan that concerns one task, its durable names, and its pauses and times.

**Frame pace.** A task tells every partition that it writes of each commit and watermark, so *n* tasks write *n x m*
frames each time. Therefore many tasks, and tasks with many partitions, commit and announce watermarks less often. That
is safe: commits may be late, intervals may differ, and a watermark stays true.

**Placing.** State by key trusts the partitions, so every row of an input with a key, and every result of a function, is
checked to be where its key belongs: about 10 ns a row, up to 70 with long keys of which few repeat.

**Pauses.** Whatever blocks is a generator of pauses. A live container resumes it at once, because its ports block. The
simulator waits until what the pause names has happened, and may kill the task there, let another one overtake it, or
let time go by.

**At work.** The run loop writes, other threads read, without a lock: a record is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from math import ceil
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.api.operators.steps import SendTo
from headrace.api.specs import Node, Role, Settings, StreamSpec, TableSpec
from headrace.core.errors import DataError, PlanError
from headrace.core.ids import SSP, TaskName
from headrace.core.log import logger
from headrace.plan.model import Plan, StagePlan, StreamPlan, TaskPlan
from headrace.plan.passes import Delivery, Queryable, deliveries, queryable_in
from headrace.protocol.machine import MachineConfig
from headrace.protocol.record import Founding
from headrace.rows.hashing import partition_of, partitions_of
from headrace.systems.registry import Hash, SystemSpec, keeps_rows
from headrace.task.naming import StateFolders, changelog_ssp, state_folders

# -- frame pace --------------------------------------------------------------------------------------
FRAMES_A_SECOND = 5_000  # they cost a quarter to a third of a processor to write and to read
WATERMARK_INTERVAL_MS = 10
COMMIT_FRAMES = 10  # a commit costs as much as so many frames, apart from those that it sends
FREE_FRAMES = 1_000  # with so few, the checkpoint interval is that of the app, however short


def commit_interval_ms(wanted_ms: int, tasks: int, frames: int) -> int:
    work = frames + COMMIT_FRAMES * tasks
    if work <= FREE_FRAMES:
        return wanted_ms
    return wanted_ms * max(1, ceil(work * 1000 / FRAMES_A_SECOND / wanted_ms))


def longest_interval_ms(plan: Plan) -> int:
    """The checkpoint interval of tasks that are all in one container. With several it may be shorter."""
    tasks = sum(len(stage.tasks) for stage in plan.stages)
    streams = [plan.streams[id_] for stage in plan.stages for id_ in stage.outputs for _ in stage.tasks]
    frames = sum(stream.partitions for stream in streams if stream.spec.role is Role.INTERMEDIATE)
    return commit_interval_ms(plan.graph.settings.checkpoint_interval_ms, tasks, frames)


def watermark_interval_ms(frames: int) -> float:
    return max(WATERMARK_INTERVAL_MS, frames * 1000 / FRAMES_A_SECOND)


_FEW = 500  # so many rows are hashed faster than their distinct keys are found


@dataclass(frozen=True, slots=True)
class Placing:
    """An input with several partitions, in which a row's key chooses the partition."""

    key: tuple[str, ...]
    partitions: int
    hash: Hash = "headrace"

    def misplaced(self, rows: pl.DataFrame, partition: int) -> pl.Series | None:
        keys = rows.select(self.key)
        if rows.height > _FEW and self._in_place(keys.unique(), partition).all():
            return None
        there = self._in_place(keys, partition)
        return None if there.all() else pl.Series(~there)

    def complaint(self, rows: pl.DataFrame) -> str:
        values = rows.select(self.key).row(0)
        named = ", ".join(f"{name}={value!r}" for name, value in zip(self.key, values, strict=True))
        where = f"in partition {int(self._partitions_of(rows.head(1))[0])}"
        if self.hash == "kafka" and values[0] is None:
            where = "nowhere, because records without a key may be in any partition"
        whose = "Kafka's default partitioner" if self.hash == "kafka" else "partition_by"
        return (
            f"{rows.height} rows are in another partition than their key chooses with {whose}; "
            f"the first has {named}, which belongs {where}"
        )

    @property
    def remedy(self) -> str:
        names = ", ".join(map(repr, self.key))
        return (
            "its writers don't partition it by this key: leave out key=, or read it from a stream that isn't created "
            f"with a key, and put .partition_by({names}, id=...) before the steps that need it"
        )

    def check_results(self, rows: pl.DataFrame, partition: int, node: Node) -> None:
        wrong = self.misplaced(rows, partition)
        if wrong is not None:
            names = ", ".join(map(repr, self.key))
            first = rows.filter(wrong).select(self.key).row(0)
            raise DataError(
                f"{node.operator.kind} {node.id!r} ({node.location}) has changed {names}, by which its messages are "
                f"partitioned and a later step keeps state: one of its results has {first}, which belongs to another "
                "task",
                hint=f"put .partition_by({names}, id=...) after it, or let it return the key under another name",
            )

    def _in_place(self, keys: pl.DataFrame, partition: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self._partitions_of(keys) == partition
        if self.hash == "kafka":
            found &= keys.to_series().is_not_null().to_numpy()
        return found

    def _partitions_of(self, rows: pl.DataFrame) -> npt.NDArray[np.integer]:
        if self.hash == "kafka":
            return partitions_of(rows[self.key[0]].cast(pl.Binary), self.partitions)
        return partition_of(rows, self.key, self.partitions)


_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class TaskScope:
    """One task of the plan, with its stage. Streams and tables are named by their ids."""

    app: str
    name: TaskName
    producer: int
    task_count: int
    settings: Settings
    inputs: Mapping[SSP, StreamSpec]  # sources and intermediate streams, by the partitions that the task reads
    side_inputs: Mapping[SSP, StreamSpec] = field(default_factory=dict)  # event time and the end don't depend on them
    writers: Mapping[SSP, Mapping[str, int]] = field(default_factory=dict)  # by stage the number of its tasks
    producers: Mapping[SSP, Mapping[int, TaskName]] = field(default_factory=dict)  # by producer id
    written_by_clock: frozenset[SSP] = frozenset()  # inputs whose writers read only sources, so commit by the clock
    outputs: Mapping[str, StreamPlan] = field(default_factory=dict)  # the streams and targets that the stage writes
    own: frozenset[str] = frozenset()
    """Those that leave the app and that no key deals out: of their partitions the task writes its own alone."""
    output_tables: Mapping[str, TableSpec] = field(default_factory=dict)  # the remote tables among the outputs
    output_writers: Mapping[str, int] = field(default_factory=dict)  # the number of tasks that write each of those
    partial: frozenset[str] = frozenset()  # the inputs that carry partial results of a window
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)  # columns of inputs that older frames lack
    placing: Mapping[str, Placing] = field(default_factory=dict)  # the inputs with a key that chooses the partition
    kept_keys: Mapping[str, Placing] = field(default_factory=dict)  # functions that must not change the partition's key
    deliveries: Mapping[str, Delivery] = field(default_factory=dict)  # of outputs outside the app and of sinks
    timed: bool = True  # some input of the app has an event time, so watermarks mean something
    queryable: Mapping[str, Queryable] = field(default_factory=dict)  # the tables of the stage that can be queried
    kept_as: Mapping[str, str] | None = None  # the names of state and positions by id; None, without a plan: the ids
    dropped: tuple[str, ...] = ()  # the names of unneeded state that the changelog may still hold
    founding: Founding | None = None  # what the task takes over from a savepoint if its changelog is empty
    tasks_beside: int = 0
    frames_beside: int = 0  # by the tasks of its container, for a commit of each

    @classmethod
    def of(cls, plan: Plan, stage: StagePlan, task: TaskPlan) -> TaskScope:
        mine = sorted(task.inputs)
        read = (plan.graph.nodes[id_].operator.stream_read for id_ in stage.nodes)
        inputs = _partitions(plan, mine, dict.fromkeys(stream for stream in read if stream is not None))
        shuffled = {s.spec.id: s for s in plan.streams.values() if s.spec.role is Role.INTERMEDIATE}
        counts = {s.name: len(s.tasks) for s in plan.stages}
        writers = {
            ssp: {name: counts[name] for name in shuffled[spec.id].writers}
            for ssp, spec in inputs.items()
            if spec.id in shuffled
        }
        tables = {id_: plan.graph.tables[id_] for id_ in stage.outputs if id_ in plan.graph.tables}
        return cls(
            app=plan.graph.app,
            name=task.name,
            producer=task.producer,
            task_count=len(stage.tasks),
            settings=plan.graph.settings,
            inputs=inputs,
            side_inputs=_partitions(plan, mine, stage.side_inputs),
            writers=writers,
            producers={
                ssp: {task.producer: task.name for name in names for task in plan.stage(name).tasks}
                for ssp, names in writers.items()
            },
            written_by_clock=frozenset(
                ssp for ssp, names in writers.items() if not any(shuffled.keys() & plan.stage(n).inputs for n in names)
            ),
            outputs={id_: plan.streams[id_] for id_ in stage.outputs},
            own=frozenset(_own(plan, stage)),
            output_tables=tables,
            output_writers={id_: sum(len(s.tasks) for s in plan.stages if id_ in s.outputs) for id_ in tables},
            partial=frozenset(plan.combined),
            added={id_: plan.streams[id_].added for id_ in (*stage.inputs, *stage.side_inputs)},
            placing=placings(plan.streams[id_] for id_ in (*stage.inputs, *stage.side_inputs)),
            kept_keys={
                id_: Placing(kept.columns, plan.streams[kept.stream].partitions, spec.system.key_hash)
                for id_, kept in plan.kept_keys.items()
                if id_ in stage.nodes and (spec := plan.streams[kept.stream].spec)
            },
            deliveries=deliveries(plan.graph, stage),
            timed=any(stream.event_time is not None for stream in plan.graph.streams.values()),
            queryable=queryable_in(plan, stage),
            kept_as=stage.kept_as,
            dropped=stage.dropped,
            founding=task.founding,
        )

    def store_name(self, id_: str) -> str:
        """The name under which a store is kept. A store of a step has the step's id, or begins with it and a dot."""
        if self.kept_as is None:
            return id_
        owner = id_
        while owner:
            if owner in self.kept_as:
                return self.kept_as[owner] + id_.removeprefix(owner)
            owner = owner.rpartition(".")[0]
        raise PlanError(
            f"stage {self.name.stage!r} keeps state in the store {id_!r}, which no step declares",
            hint="have the step's spec declare it in kept_state: else a changed app couldn't be compared with it",
        )

    def position_name(self, ssp: SSP) -> str:
        return (self.kept_as or {}).get(self.specs[ssp].id, str(ssp.stream))

    @cached_property
    def specs(self) -> Mapping[SSP, StreamSpec]:
        return {**self.inputs, **self.side_inputs}

    @property
    def interval_ms(self) -> int:
        return commit_interval_ms(self.settings.checkpoint_interval_ms, self.tasks_beside, self.frames_beside)

    @property
    def downstream(self) -> tuple[StreamPlan, ...]:
        return tuple(stream for stream in self.outputs.values() if stream.spec.role is Role.INTERMEDIATE)

    @cached_property
    def machine(self) -> MachineConfig:
        framed = [stream for stream in self.outputs.values() if not keeps_rows(stream.spec.system)]
        return MachineConfig(
            task=self.name,
            task_count=self.task_count,
            producer=self.producer,
            inputs={ssp: tuple(producers) for ssp, producers in self.producers.items()},
            outputs={stream.spec.stream: stream.partitions for stream in framed},
            own={s.spec.stream: self.name.number % s.partitions for s in framed if s.spec.id in self.own},
            interval_ms=self.interval_ms,
            exactly_once=self.settings.guarantee == "exactly_once",
            founded=self.founding.record if self.founding is not None else None,
        )

    @property
    def changelog(self) -> tuple[SSP, SystemSpec]:
        return changelog_ssp(self.settings, self.app, self.name)

    @property
    def folders(self) -> StateFolders | None:
        return state_folders(self.settings, self.app, self.name)


def _own(plan: Plan, stage: StagePlan) -> Iterable[str]:
    operators = [plan.graph.nodes[id_].operator for id_ in stage.nodes]
    dealt = {operator.stream for operator in operators if isinstance(operator, SendTo) and operator.keys}
    leave = (id_ for id_ in stage.outputs if plan.streams[id_].spec.role is not Role.INTERMEDIATE)
    return (id_ for id_ in leave if id_ not in dealt)


def _partitions(plan: Plan, mine: Iterable[SSP], streams: Iterable[str]) -> dict[SSP, StreamSpec]:
    """The task's partitions of these streams. Of thousands of partitions it looks at its own alone."""
    specs = [plan.streams[id_].spec for id_ in streams]
    return {ssp: spec for spec in specs for ssp in mine if ssp.stream == spec.stream}


def placings(inputs: Iterable[StreamPlan]) -> dict[str, Placing]:
    return {
        stream.spec.id: Placing(stream.key, stream.partitions, stream.spec.system.key_hash)
        for stream in inputs
        if stream.key and stream.partitions > 1 and stream.spec.role is not Role.INTERMEDIATE
    }


def beside(scopes: Mapping[TaskName, TaskScope]) -> dict[TaskName, TaskScope]:
    frames = sum(stream.partitions for scope in scopes.values() for stream in scope.downstream)
    found = {name: replace(scope, tasks_beside=len(scopes), frames_beside=frames) for name, scope in scopes.items()}
    for scope in islice(found.values(), 1):
        if (wanted_ms := scope.settings.checkpoint_interval_ms) != scope.interval_ms:
            _log.warning(
                "the checkpoint interval is longer than the app's, because this container has many tasks, or they write"
                " many partitions: have fewer partitions, or more containers",
                tasks=len(scopes),
                frames=frames,
                wanted_ms=wanted_ms,
                interval_ms=scope.interval_ms,
            )
    return found


T = TypeVar("T")


class Pause(Enum):
    """What has to happen before the work resumes."""

    INSTRUCTION = "instruction"  # nothing: an instruction of the protocol is about to be performed
    PROGRESS = "progress"  # nothing: part of an instruction has been performed, more is to come
    ACKNOWLEDGED = "acknowledged"  # everything sent so far is acknowledged; ``flush`` comes next
    DISK = "disk"  # the task is about to wait for the disk, unless the caller does that for several tasks
    GENERATION = "generation"  # the coordinator has answered; ``next_generation`` comes next
    REST = "rest"  # pause for a few milliseconds, because nothing is due and a drain waits for others


Steps = Generator[Pause, None, T]  # work that may be interrupted


def run(steps: Steps[T]) -> T:
    """Do all of it now; the ports block where it has to wait."""
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result


class Every:
    """Due once per interval; ``due`` says so at most once for each."""

    __slots__ = ("interval_ms", "next_ms")

    def __init__(self, interval_ms: float, start_ms: float) -> None:
        self.interval_ms = interval_ms
        self.next_ms = start_ms + interval_ms

    def due(self, now_ms: float) -> bool:
        if now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + self.interval_ms
        return True


TICK_INTERVAL_MS = 10


class Ticks:
    """When to show the protocol the wall clock: now and then, and as soon as another checkpoint interval begins."""

    def __init__(self, interval_ms: int, now_ms: float) -> None:
        self._interval_ms = interval_ms
        self._every = Every(TICK_INTERVAL_MS, now_ms)
        self._shown = 0

    def due(self, clock_ms: int, now_ms: float) -> bool:
        interval = clock_ms // self._interval_ms
        if not self._every.due(now_ms) and interval == self._shown:
            return False
        self._shown = interval
        return True

    def left_ms(self, clock_ms: int) -> int:
        """How long the interval that was shown last still lasts; 0 if another one has begun."""
        interval, into = divmod(clock_ms, self._interval_ms)
        return 0 if interval != self._shown else self._interval_ms - into


Done = Callable[[], int]  # from any thread, a number that changes with each message that a function has been called for


@dataclass(frozen=True, slots=True)
class Work:
    """``place`` is empty if time alone has led to the call. ``done`` shows that a function of messages goes on."""

    task: str
    step: str
    place: str
    since_ms: float
    done: Done = field(default=lambda: 0, compare=False)


class AtWork:
    """The call in progress in a container; ``now`` is None between calls."""

    def __init__(
        self, monotonic_ms: Callable[[], float] = lambda: 0.0, keep: Callable[[Work | None], None] = lambda work: None
    ) -> None:
        self.now: Work | None = None
        self.spent: Callable[[str, str, float], None] = lambda task, step, seconds: None  # of each call of a step
        self.entered: Callable[[str], None] = lambda task: None  # the task for which the app's code works now
        self._monotonic_ms = monotonic_ms
        self._keep = keep

    @contextmanager
    def call(self, task: str, step: str, place: str, done: Done | None = None) -> Iterator[None]:
        self.entered(task)
        self.now = work = Work(task, step, place, self._monotonic_ms(), done or (lambda: 0))
        self._keep(work)
        try:
            yield
        finally:
            self.spent(task, step, (self._monotonic_ms() - work.since_ms) / 1000)
            self.now = None
            self._keep(None)


class Movement:
    """When the call that is under way has last gone on to another message. One thread asks, now and then."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._done = 0
        self._moved_ms = 0.0

    def moved_ms(self, work: Work, now_ms: float) -> float:
        done = work.done()
        if work is not self._work:
            self._work, self._done, self._moved_ms = work, done, work.since_ms
        elif done != self._done:
            self._done, self._moved_ms = done, now_ms
        return self._moved_ms
