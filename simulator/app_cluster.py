"""The cluster of an app with real operators: its sources hold Arrow frames, its targets take rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import polars as pl
from typing_extensions import override

from headrace.api.specs import Role
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.plan.chain_plan import chain_plan
from headrace.plan.model import StreamPlan
from headrace.rows.ipc import encode_rows
from headrace.task.calls import Calls
from headrace.task.connections import Connections
from headrace.task.host.attempt import Factories
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Port
from headrace.task.scope import TaskScope
from headrace.task.task import Task
from simulator.app_oracle import AppOracle
from simulator.case import COLUMNS, keys_in
from simulator.cluster import Cluster
from simulator.dealings import Dealings
from simulator.expected import TICK_MS, Message
from simulator.journal import Journal, WatchedChain, WatchedIntakes, WatchedMachine, watched_publisher
from simulator.kinesis import SimStream, is_sharded
from simulator.planned import AppShape
from simulator.sources import SourceLog
from simulator.storage import STEP

if TYPE_CHECKING:
    from simulator.container import SimContainer

_KEYS = 4


class AppCluster(Cluster):
    """All that the tasks of an app share."""

    shape: AppShape
    oracle: AppOracle
    streams: Mapping[StreamId, SimStream] = MappingProxyType({})
    """Its sources whose partitions are slots."""
    dealings: Dealings | None = None
    restored_version = 0
    """The version with which it began, in a timeline that began with a savepoint."""

    @override
    def make_scopes(self) -> dict[TaskName, TaskScope]:
        """Those of the first version, which others follow if the app changes."""
        self._version = self._wanted = 0
        for _ in self.shape.versions[1:]:
            self.world.after(self.world.chance.random() * self.settings.faults_until * 0.8, self._change)
        scopes = self.shape.versions[0].scopes
        if self.settings.durability == "commit":
            return dict(scopes)
        return {
            task: replace(scope, settings=replace(scope.settings, durability=self.settings.durability))
            for task, scope in scopes.items()
        }

    @override
    def changelog_of(self, task: TaskName) -> SSP:
        return next(v.scopes[task].changelog[0] for v in self.shape.versions if task in v.scopes)

    def _change(self) -> None:
        """The app is to be drained or killed, and started as its next version."""
        self._wanted += 1
        self.world.tell("coordinator", "the app is to change")
        if self.world.chance.random() < 0.5:
            self.crash_coordinator(self.world.chance.random() * 20)
        else:
            self.drain()

    @override
    def restart(self) -> None:
        if self._version < self._wanted:
            self._version = self._wanted
            self.scopes = dict(self.shape.versions[self._version].scopes)
            self.staff()
            self.world.tell("coordinator", "the app has changed")
        super().restart()

    @override
    def factories(
        self, scope: TaskScope, journal: Journal, machine: WatchedMachine, connections: Connections
    ) -> Factories:
        parts, plan = self.parts, self.shape.plan_of(scope)
        operators = chain_plan(plan, plan.stage(scope.name.stage))

        def task(port: Port, metrics: TaskMetrics, calls: Calls) -> Task:
            return parts.task(scope, WatchedChain(journal, operators, port, metrics, calls), metrics)

        return Factories(
            task,
            lambda task, letters, metrics: WatchedIntakes(journal, task, letters, metrics),
            watched_publisher(parts.publisher, journal),
            parts.idleness,
        )

    @override
    def draw_sources(self) -> None:
        self.targets = {stream: self.parts.target(self.world, stream.name) for stream in self.shape.targets}
        self._last_row = 0
        streams: dict[StreamId, SimStream] = {}
        for stream in self.shape.sources:
            self.oracle.inputs[stream.spec.id] = []
            if is_sharded(stream):
                streams[stream.spec.stream] = SimStream(self, stream)
                continue
            for ssp in stream.ssps():
                self.sources[ssp] = self._draw_source(stream, ssp)
        self.streams = streams
        self.oracle.shards = {id_: stream.judge for id_, stream in streams.items()}
        if self.shape.case.due is not None:
            self.world.after(self.settings.faults_until + self.shape.case.quiet_ms - 1, self.oracle.judge_due)

    @property
    @override
    def slotted(self) -> Collection[SimStream]:
        return self.streams.values()

    @override
    def deal(self) -> None:
        if self.streams:
            self.dealings = Dealings(self, self.streams.values())
            self.coordinator.deal(self.dealings)

    @override
    def start(self) -> None:
        for stream in self.streams.values():
            self.world.spawn(f"stream {stream.plan.spec.id}", stream.run())
        super().start()

    @override
    def send_heartbeat(self, container: SimContainer) -> None:
        if self.dealings is None:
            super().send_heartbeat(container)
        else:
            self.dealings.send(container)

    @override
    def commits(self, container: SimContainer, task: TaskName) -> None:
        if self.dealings is not None:
            self.dealings.commits(container, task)

    @override
    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        return [*super().faults(), (2, self._doom), *([(3, self._disturb_target)] if self.targets else [])]

    @override
    def heal(self) -> None:
        super().heal()
        if self.dealings is not None:
            self.dealings.calm = True
        for target in self.targets.values():
            target.failing = 0.0

    def _disturb_target(self) -> None:
        target = self.world.chance.choice(list(self.targets.values()))
        target.failing = self.world.chance.choice((0.0, 0.3, 0.9))
        self.world.tell("faults", f"target {target.name} fails {target.failing:.0%} of the time")

    def _draw_source(self, stream: StreamPlan, ssp: SSP) -> SourceLog:
        chance = self.world.chance
        frames: list[bytes] = []
        earlier: list[Message] = []
        count = chance.randint(2, 4)
        keys = keys_in(stream.spec, ssp.partition, stream.partitions, _KEYS)
        disorder = self.shape.case.disorder * TICK_MS
        # What lies before is from before the app's time: a startpoint, or the oldest message that is kept.
        start = chance.choice((0, 0, 0, 1))
        time = chance.randrange(20 * TICK_MS)
        for number in range(count):
            messages = []
            if number == start:
                earlier.clear()  # nobody reads those, so what repeats them wouldn't
            for _ in range(chance.randint(1, 7)):
                time += chance.randrange(12 * TICK_MS)
                messages.append(self.new_row(ssp.partition, number, time - chance.randrange(disorder), keys))
            self._again(messages, earlier)
            frames.append(_frame(messages))
            if number >= start:
                self.oracle.source_frame(stream, ssp, number * STEP, messages)
        arrivals = sorted(chance.random() * self.settings.faults_until for _ in range(count))
        quiet = 0 if stream.spec.id in self.shape.case.ends_early else self.shape.case.quiet_ms
        ends_at = self.settings.faults_until + quiet if quiet else self.end_of(arrivals[-1])
        if self.settings.ends_late:
            ends_at = max(ends_at, self.settings.faults_until)
        if self.shape.case.late_frame:
            arrivals[-1] = ends_at
        return SourceLog(self.world, frames, arrivals, start * STEP, ends_at)

    @override
    def lose_sources(self, chance: random.Random) -> None:
        for stream in self.shape.sources:
            for ssp in stream.ssps() if stream.spec.role is Role.SOURCE else ():
                log = self.sources[ssp]
                log.kept = self.shape.case.repeats or self.shape.case.asks
                if lost := log.lose(chance):
                    self.oracle.source_lost(stream, ssp, [number * STEP for number in lost])

    @override
    def message_at(self, ssp: SSP, log: SourceLog, offset: Offset) -> int:
        return self.oracle.source_message(ssp, offset)

    def new_row(self, partition: int, frame: int, ts: int, keys: Sequence[int] = range(_KEYS)) -> Message:
        """A message for a source."""
        self._last_row += 1
        return Message(self._last_row, self.world.chance.choice(keys), max(0, ts), partition, frame)

    def _again(self, messages: list[Message], earlier: list[Message]) -> None:
        """Some messages arrive again under their id, not much later; that makes no other message late."""
        chance = self.world.chance
        earlier += messages
        if self.shape.case.repeats and chance.random() < 0.7:
            first = earlier.pop(chance.randrange(len(earlier)))
            newest = max(message.ts for message in (*earlier, first))
            messages.append(replace(first, ts=min(first.ts + chance.randrange(10 * TICK_MS), newest)))


def _frame(messages: list[Message]) -> bytes:
    columns = {name: [getattr(message, name) for message in messages] for name in COLUMNS}
    return encode(Header(Kind.USER), encode_rows(pl.DataFrame(columns, schema=COLUMNS)))
