"""An attempt: a task between two starts or rollbacks, and what it waits for. On the run-loop thread; nothing blocks.

**Patience.** Waiting for upstream tasks is always safe, and so is not waiting: it only costs a rollback, if frames of a
late task that it hasn't committed were processed. So the wait is longer than a container takes to be replaced. It isn't
over before the task has read what was there at its end: a reader that lags behind finds the missing checkpoints there.

**Attempt.** What it has is built and dropped together, so nothing uncommitted can survive a rollback. The host keeps
the I/O, the protocol machine and the local state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import assert_never

import msgspec
import polars as pl
from msgspec import UNSET

from headrace.api.specs import Role
from headrace.core.errors import DeploymentError, UnavailableError
from headrace.core.ids import SSP, Offset
from headrace.core.log import RecentWarnings, logger
from headrace.protocol import instructions as do
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.protocol import Phase
from headrace.protocol.record import CommitRecord, Detour, LocalCheckpoint, SourceEntry
from headrace.stores.base import StateStore
from headrace.systems.base import Edge, Ended, Position, Rows
from headrace.systems.positions import Place
from headrace.systems.slot_reports import Shards
from headrace.task.connections import Connections
from headrace.task.event_time import TimesCheckpoint
from headrace.task.inputs.chooser import Chooser, Envelope, Frames, SingleFrame, VersionBuffer
from headrace.task.inputs.consumers import Bootstrap, Idleness, InputConsumers
from headrace.task.inputs.frame_receiver import FrameReceiver
from headrace.task.inputs.intake import DeadLetters, Intakes
from headrace.task.metrics import TaskMetrics
from headrace.task.outputs.outlet import Announcer, Outlet
from headrace.task.outputs.publisher import Publisher, Written
from headrace.task.scope import TaskScope
from headrace.task.state.task_state import TaskState
from headrace.task.task import Task, TaskFactory

PATIENCE_MS = 30_000.0
_log = logger(__name__)


class Patience:
    """The wait of one task for the upstream tasks that are late with its next version."""

    def __init__(self, scope: TaskScope, machine: ProtocolMachine, inputs: InputConsumers, patience_ms: float) -> None:
        self._scope = scope
        self._machine = machine
        self._inputs = inputs
        self._ms = patience_ms
        self._awaited = (-1, -1)
        self._until_ms: float | None = None
        self._ends: Mapping[SSP, Offset] = {}

    @property
    def due_ms(self) -> float | None:
        """When (monotonic) the wait is over at the earliest; None if it doesn't wait, or must read on first."""
        return None if self._ends else self._until_ms

    def look(self, positions: Mapping[SSP, Offset], now_ms: float, metrics: TaskMetrics, *, resting: bool) -> None:
        machine = self._machine
        if resting or not machine.lagging:
            self._until_ms = None
            return
        if self._until_ms is None or self._awaited != (machine.generation, machine.version):
            self._awaited = machine.generation, machine.version
            self._until_ms, self._ends = now_ms + self._ms, {}
        if now_ms < self._until_ms:
            return
        late = dict.fromkeys(machine.late())
        if not self._ends:
            try:
                self._ends = self._inputs.ends({ssp for ssp, _ in late})
            except UnavailableError:  # the system is what is late
                self._until_ms = now_ms + self._ms
                return
        if any(positions[ssp] < end for ssp, end in self._ends.items()):
            return
        self._until_ms = None
        names = sorted({str(self._scope.producers[ssp][producer]) for ssp, producer in late})
        if machine.set_aside():
            metrics.warnings.add(
                _log,
                f"no longer waits for {', '.join(names)}: late by {self._ms / 1000:g} s. What others have sent is "
                "committed without what these haven't committed yet",
            )
        if machine.phase is Phase.DOWN:
            metrics.count("rollbacks")


FOLDER_MS = 100.0  # how often it is looked whether the folder is free


class Beginning:
    """``fetching``: it waits for a snapshot. ``again``: its base didn't belong to its changelog."""

    def __init__(self, state: TaskState) -> None:
        self._state = state
        self.fetching = self.again = False

    def ready(self, instruction: do.Instruction) -> bool:
        begins = self.again or isinstance(instruction, do.TakeGeneration)
        self.fetching = begins and not self._state.prepared()
        return not self.fetching

    @property
    def ask_ms(self) -> float:
        return FOLDER_MS if self._state.locked_out else 1000.0

    def begin(self, stores: Mapping[str, StateStore]) -> LocalCheckpoint | None:
        self.again = False
        return self._state.begin(stores)

    def misfit(self) -> None:
        self._state.misfit()
        self.again = True


class CatchingUp:
    """Whether a task has read what its sources held when it started: its goals. ``version`` is the first commit (since
    a task was left out) that reached them; with at-least-once the last, if no own frame was waiting."""

    def __init__(self, scope: TaskScope) -> None:
        self.sources = [ssp for ssp, spec in scope.specs.items() if spec.role is Role.SOURCE]
        self.version: int | None = None
        self.silent = False  # nothing is written again after a restore; the goals are the app's former positions
        self._scope = scope
        self._between = [ssp for ssp, spec in scope.specs.items() if spec.role is Role.INTERMEDIATE]
        self._exactly_once = scope.settings.guarantee == "exactly_once"
        self.goals: dict[SSP, Offset] | None = None  # known once it has begun; they stay when the task rolls back

    def granted(self, *, silent: bool) -> None:
        if self.silent and not silent:
            self.goals, self.version = None, None
        self.silent = silent

    def limits(self, begun: Mapping[SSP, Offset]) -> dict[SSP, Offset]:
        if not self.silent:
            return {}
        founding, name = self._scope.founding, self._scope.position_name
        known = founding.silent_until if founding is not None else {}
        limits = {ssp: known.get((name(ssp), ssp.partition), begun[ssp]) for ssp in self.sources}
        return {ssp: max(limit, begun[ssp]) for ssp, limit in limits.items() if limit is not None}

    def committed(
        self,
        version: int,
        positions: Mapping[SSP, Offset],
        lag: Callable[[SSP], int | None],
        *,
        whole: bool,
        detoured: bool = False,
    ) -> None:
        """``whole``: no late upstream task was left out. ``detoured``: positions are in a range that is read again."""
        reached = not detoured and all(positions[ssp] >= goal for ssp, goal in (self.goals or {}).items())
        if not self._exactly_once:
            self.version = version if reached and not any(lag(ssp) for ssp in self._between) else None
        elif not whole:
            self.version = None
        elif reached and self.version is None:
            self.version = version


@dataclass(frozen=True, slots=True)
class Factories:
    """The parts of an attempt; the simulator replaces some."""

    task: TaskFactory
    intakes: Callable[[Task, DeadLetters, TaskMetrics], Intakes] = Intakes
    publisher: Callable[[TaskScope, Connections, RecentWarnings, random.Random, Written], Publisher] = Publisher
    idleness: Callable[[Task, float], Idleness] = Idleness


class Attempt:
    """One attempt. ``settling_ms``: since when an instruction has been waiting for steps that wait for answers."""

    def __init__(
        self,
        scope: TaskScope,
        make: Factories,
        machine: ProtocolMachine,
        connections: Connections,
        metrics: TaskMetrics,
        jitter: random.Random,
        monotonic_ms: float,
        early: VersionBuffer | None = None,
    ) -> None:
        self._scope = scope
        self.publisher = make.publisher(scope, connections, metrics.warnings, jitter, self._written)
        self.outlet = Outlet(scope.outputs, scope.name.number, connections, self.publisher, machine.stamp, metrics)
        self.announcer = Announcer(scope, self.outlet, monotonic_ms)
        self.task = make.task(self.outlet, metrics, connections.calls)
        self.task.chain.provenance.report_to(connections.at_work, str(scope.name))
        self.chooser = Chooser(self.task.specs, self.task.side_inputs)
        self.bootstrap = Bootstrap(self.chooser)
        intakes = make.intakes(self.task, self.outlet.write, metrics)
        self.receiver = FrameReceiver(machine, self.task, intakes, self.chooser, metrics, early or VersionBuffer())
        self._make_idleness = make.idleness
        self.idleness = make.idleness(self.task, monotonic_ms)
        self.settling_ms: float | None = None
        self.used = False  # its stores have been handed out; an unused one is as good as new
        self._saved: dict[SSP, SourceEntry] = {}
        self.shards: dict[SSP, Shards] = {}  # the shards of its slots in the last commit

    def stores(self) -> dict[str, StateStore]:
        self.used = True
        stores = {**self.task.stores(), **self.publisher.stores()}
        return {self._scope.store_name(id_): store for id_, store in stores.items()}

    def source_entries(self) -> tuple[SourceEntry, ...]:
        return tuple(
            msgspec.structs.replace(entry, stream=self._scope.position_name(SSP.of(entry.stream, entry.partition)))
            for entry in self.receiver.source_entries()
        )

    def close(self) -> None:
        with ExitStack() as closing:  # release the rest even if the user's part fails
            closing.callback(self.receiver.buffer.clear)
            closing.callback(self.publisher.close)
            closing.callback(self.task.close)

    def _written(self, table: str, rows: pl.DataFrame, gone: pl.DataFrame | None) -> None:
        self.task.chain.tables.written(table, rows, gone)

    def restore(
        self, record: CommitRecord | None, times: TimesCheckpoint | None, inputs: Mapping[SSP, Offset | None]
    ) -> dict[SSP, Position]:
        """Without a commit, ``record`` is None. The stores are filled already. Return where to read each input."""
        task = self.task
        self.publisher.resume(-1 if record is None else record.version)
        positions: dict[SSP, Position] = {}
        for ssp, spec in task.specs.items():
            offset = inputs[ssp] if spec.role is Role.INTERMEDIATE else None
            edge = Edge.OLDEST if spec.start == "oldest" else Edge.UPCOMING
            positions[ssp] = edge if offset is None else offset
        if times is not None:
            task.load(times)
            # A step that has begun empty since then hasn't received the end yet, and has nothing to emit at it.
            self.announcer.resume(times.ended_streams, {} if task.ended else task.outputs)
        if record is not None:
            task.finished = record.end_of_stream_sent
            saved = {(entry.stream, entry.partition): entry for entry in record.sources}
            names = {ssp: (self._scope.position_name(ssp), ssp.partition) for ssp in task.specs}
            self._saved = {ssp: saved[name] for ssp, name in names.items() if name in saved}
            self.shards = {ssp: entry.shards for ssp, entry in self._saved.items() if entry.shards}
            positions |= {ssp: entry.offset for ssp, entry in self._saved.items() if entry.offset is not None}
            if task.finished:
                self._check_nothing_new()
        return positions

    def move(self, ssp: SSP, place: Place) -> Offset:
        saved = self._saved.pop(ssp, None)
        if place.until is not None:
            self._saved[ssp] = SourceEntry.at(ssp, place.offset, detour=Detour.of(place.until, saved, place.first))
        return place.offset

    def detours(self) -> dict[SSP, Offset]:
        return {ssp: entry.detour.until for ssp, entry in self._saved.items() if entry.detour is not UNSET}

    def _check_nothing_new(self) -> None:
        sources = (ssp for ssp, spec in self._scope.inputs.items() if spec.role is not Role.INTERMEDIATE)
        new = [*(str(ssp) for ssp in sources if ssp not in self._saved), *self.announcer.open]
        if new:
            raise DeploymentError(
                f"task {self._scope.name} has ended, and can't go on with what is new in this version of the app: "
                f"{', '.join(new)}",
                hint="go back to the version before until all stages have ended, or give the app another name",
            )

    def begin(
        self,
        positions: dict[SSP, Offset],
        slots: Iterable[Rows],
        ends: Mapping[SSP, Offset],
        now_ms: int,
        monotonic_ms: float,
    ) -> None:
        self.task.metrics.latency.forget()
        self.receiver.resume(positions, self._saved)
        for slot in slots:
            if slot.shards:
                self.receiver.stands(slot)
            else:  # it may still get shards until the dealer says otherwise
                self.task.times[slot.ssp].wake()
        self.idleness = self._make_idleness(self.task, monotonic_ms)
        if not self.task.finished:
            self.task.chain.tell_time(now_ms)
            self.task.begin()
        detours = self.receiver.detours
        self.bootstrap.begin(
            {ssp: min(at, detours[ssp].offset) if ssp in detours else at for ssp, at in positions.items()}, ends
        )

    def save(self) -> TimesCheckpoint:
        return msgspec.structs.replace(self.task.save(), ended_streams=self.announcer.ended)

    def take(self, envelope: Envelope, now_ms: int) -> None:
        ssp, receiver, metrics = envelope.ssp, self.receiver, self.task.metrics
        before = metrics.rows_in
        self.task.chain.tell_time(now_ms)
        try:
            match envelope:
                case Frames():
                    receiver.frames(envelope)
                case SingleFrame():
                    receiver.control(envelope)
                case Rows():
                    receiver.table(envelope)
                case Ended():
                    receiver.end(envelope)
                case _:
                    assert_never(envelope)
        except DeploymentError as error:
            scope = self.task.scope
            writers = ", ".join(scope.writers.get(ssp, ()))
            error.message += f"\n  task {scope.name} reads it, and expects it to be written by stage {writers}"
            raise
        if isinstance(envelope, Frames | Rows):
            metrics.latency.took(envelope.arrived_ms, metrics.rows_in - before)
        if ssp not in receiver.detours:
            self.bootstrap.note(ssp, receiver.positions[ssp], ended=isinstance(envelope, Ended))

    def ready(self, instruction: do.Instruction, now_ms: int, monotonic_ms: float) -> bool:
        """False while steps wait for answers: the caller takes nothing, and asks again later."""
        if self._prepared(instruction, now_ms):
            self.settling_ms = None
            return True
        self.settling_ms = monotonic_ms if self.settling_ms is None else self.settling_ms
        return False

    def _prepared(self, instruction: do.Instruction, now_ms: int) -> bool:
        match instruction:
            case do.FlushOutputs():
                self.task.chain.collect()
                return not self.task.chain.holding
            case do.Finish():
                self.task.chain.tell_time(now_ms)
                self.task.advance()
                self.task.chain.collect()
                return self.task.finish()
            case _:
                return True

    @property
    def settling(self) -> bool:
        return self.settling_ms is not None

    @property
    def idle(self) -> bool:
        return self.task.progress.idle and all(told.idle or told.ended for told in self.task.outputs.values())
