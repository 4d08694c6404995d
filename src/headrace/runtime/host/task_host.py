"""Hosts one task in a container: the I/O, buffers and time of ``checkpoint.protocol``'s contract.

Everything happens on the container's run-loop thread. ``perform`` does what the protocol asks for (start,
rollback, commit) and may block on acknowledgements and on reading the changelog; ``step`` processes one envelope
and doesn't block. What is ordered: the envelopes of a partition, always; the instructions of the protocol.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import assert_never

import msgspec

from headrace.api.specs import Role
from headrace.checkpoint.instructions import (
    AppendAbort,
    AppendChanges,
    AppendCommit,
    End,
    Feed,
    Finish,
    FlushOutputs,
    Instruction,
    ReadChangelog,
    Report,
    Resume,
    ScanAhead,
    SendControl,
    Stop,
    TakeGeneration,
    WriteLocal,
)
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.protocol import Phase
from headrace.checkpoint.record import CommitRecord, encode_record
from headrace.core.clock import Clock
from headrace.core.errors import FencedError, TrimmedOffsetError
from headrace.core.frame import encode_control
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.connections import Connections
from headrace.runtime.event_time.idleness import Idleness
from headrace.runtime.event_time.watermark import TimesCheckpoint
from headrace.runtime.host.attempt import Attempt
from headrace.runtime.host.machine_config import machine_config
from headrace.runtime.host.timing import Every
from headrace.runtime.inputs.consumers import InputConsumers
from headrace.runtime.inputs.frame_receiver import FrameReceiver
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import changelog_ssp, state_folders
from headrace.runtime.outputs.announcer import Announcer
from headrace.runtime.outputs.backpressure import Backpressure
from headrace.runtime.outputs.outlet import Outlet
from headrace.runtime.outputs.published_positions import PublishedPositions
from headrace.runtime.outputs.publisher import Publisher
from headrace.runtime.state.changelog_partition import ChangelogPartition
from headrace.runtime.state.replay import Replay
from headrace.runtime.state.task_state import TaskState
from headrace.runtime.task import Task

TICK_INTERVAL_MS = 10
SETTLING_MS = 1000.0
"""A commit that waits for calls for longer than this is worth telling."""

NextGeneration = Callable[[], int]
"""Issues the task's next generation, or raises ``FencedError`` when another incarnation has taken over."""

_TIMES = msgspec.json.Decoder(TimesCheckpoint)
_log = logger(__name__)


class TaskHost:
    """One task with everything around it."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        task: TaskPlan,
        next_generation: NextGeneration,
        connections: Connections,
        backpressure: Backpressure,
        clock: Clock,
        pulse: Callable[[], None],
    ) -> None:
        """``pulse`` is called now and then while restoring takes its time."""
        now_ms = clock.monotonic_ms()
        self.plan = plan
        self.stage = stage
        self.name = task.name
        self.metrics = TaskMetrics(str(task.name), clock)
        self.backpressure = backpressure
        self.finished = False
        self._over = False
        self.started_ms = now_ms
        self.committed_ms: float | None = None
        self.commit_took_ms = 0.0
        self.machine = ProtocolMachine(machine_config(plan, stage, task), writer=uuid.uuid4().hex)
        self._plan_of_task = task
        self._next_generation = next_generation
        self._connections = connections
        self._systems = {stream.spec.stream: stream.spec.system for stream in plan.streams.values()}
        self._clock = clock
        self.publishing = Publisher(plan, stage, task.name, connections, self.metrics.warnings)
        self._outlet = Outlet(plan, task.name, connections, self.publishing, self.machine.stamp, self.metrics)
        changelog, system = changelog_ssp(plan, task.name)
        self._changelog = ChangelogPartition(changelog, system, connections)
        self.state = TaskState(changelog, state_folders(plan, task.name), self.metrics.warnings)
        self.replay = Replay(str(task.name), self._changelog, self.state, pulse)
        self.receiver = FrameReceiver(self.machine, self.metrics)
        downstream = [id_ for id_ in stage.outputs if plan.streams[id_].spec.role is Role.INTERMEDIATE]
        self._announcer = Announcer(self._outlet, task.name, len(stage.tasks), downstream, now_ms)
        self._begin()
        self._progress = PublishedPositions(plan.graph.app, self.task.specs, connections, now_ms)
        self.inputs = InputConsumers(self.task.specs, connections)
        self._idleness = Idleness(self.task, now_ms)
        self._tick_every = Every(TICK_INTERVAL_MS, now_ms)
        self._commit_began = 0.0

    def _begin(self) -> None:
        """Start over: drop everything uncommitted."""
        calls = self._connections.calls
        self.task = Task(self.plan, self.stage, self._plan_of_task, self._outlet, self.metrics, calls)
        self.attempt = Attempt(self.task, self._outlet, self.publishing, self.receiver)
        self._announcer.reset()

    # -- life

    def start(self) -> None:
        """Restore from the last commit and announce it; afterwards the task can be stepped."""
        self.machine.tick(self._clock.now_ms())
        self.perform()

    def close(self) -> None:
        """Stop reading. What was not committed will be read again."""
        with ExitStack() as closing:  # all of it, though the user's part fails
            closing.callback(self.state.close)
            closing.callback(self.publishing.close)
            closing.callback(self.attempt.close)
            self.inputs.close()
            self._changelog.close()
            self.receiver.buffer.clear()

    @property
    def generation(self) -> int:
        """The number that fences off older incarnations."""
        return self.machine.generation

    @property
    def positions(self) -> dict[SSP, Offset]:
        """How far each input partition has been processed."""
        return self.receiver.positions

    @property
    def early_bytes(self) -> tuple[int, int]:
        """How much of what has arrived waits for its version: in memory and on disk."""
        return self.receiver.buffer.memory_bytes, self.receiver.buffer.disk_bytes

    def lag(self, ssp: SSP) -> int | None:
        """How far the processed position of an input is behind its end; None when unknown."""
        behind = self.inputs.lag(ssp)
        return None if behind is None else behind + self.inputs.position(ssp) - self.positions.get(ssp, 0)

    # -- one turn

    def poll(self) -> None:
        """Take what has arrived, unless enough waits already."""
        if not self._over:
            self.inputs.poll(self.attempt.chooser)

    @property
    def blocked_by(self) -> str | None:
        """What keeps the task from reading on: readers that are behind, a target that is away, a step that waits."""
        blocked_by = self.backpressure.blocked_by or self.publishing.blocked_by or self.task.chain.full
        since = self.attempt.settling_ms
        if blocked_by is None and since is not None and self._clock.monotonic_ms() - since > SETTLING_MS:
            return self.task.chain.held_by
        return blocked_by

    @property
    def waits_for_calls(self) -> str | None:
        """What waits for calls, and why their answers don't come; None: nothing does."""
        return (None if self._over else self.task.chain.held_by) or self.publishing.calling

    @property
    def busy(self) -> bool:
        """There is work now, or the last poll found something: don't sleep."""
        if self._over or self.attempt.settling or self.blocked_by is not None:
            return False
        return self.attempt.chooser.ready or self.inputs.hungry

    @property
    def owes(self) -> bool:
        """Something done has not been told downstream yet: a watermark waits for its interval."""
        return not self._over and (self._has_news() or self.task.ended)

    def step(self, now_ms: float) -> bool:
        """Process one envelope; False when there is none, or the stage has to wait for its readers."""
        if self.machine.phase is Phase.RUNNING:  # in a task that has to roll back nothing that waits is wanted any more
            self.task.chain.collect()
        if self.machine.due or self.attempt.settling:
            self.perform()
        if self._over or self.attempt.settling or self.backpressure.check(now_ms) or self.blocked_by is not None:
            return False
        envelope = self.attempt.chooser.choose()
        if envelope is None:
            return False
        self._idleness.heard(envelope.ssp, now_ms)
        self.attempt.take(envelope, self._clock.now_ms())
        self._advance()
        self._commit_if_asked()
        return True

    def on_time(self, now_ms: float) -> float:
        """Do what is due; returns how long (ms) nothing will be."""
        # What a commit made publishable goes out a turn later: readers downstream hear of the commit first.
        self.publish(now_ms)
        if not self._over:
            if self._tick_every.due(now_ms):
                self.machine.tick(self._clock.now_ms())
            self.perform()
        due = 1000.0 if self._over else self._do_due(now_ms)
        return min(due, self.publishing.pause(now_ms))

    def publish(self, now_ms: float) -> None:
        """Publish what is committed. A task whose protocol is over has finished when all of it is."""
        self.publishing.advance(now_ms)
        self.finished = self._over and self.publishing.idle

    def _do_due(self, now_ms: float) -> float:
        self.task.chain.collect()
        self._idleness.notice(self.attempt.chooser, now_ms)
        if not self.attempt.settling:  # or what is due by the clock could hold the commit up for ever
            self.task.chain.on_time(self._clock.now_ms())
        self._advance()
        self._commit_if_asked()
        if not self.task.finished:
            self._announcer.tell(self.task.output_watermark, idle=self.attempt.idle, now_ms=now_ms)
        self._progress.report(self.positions, now_ms)
        return self._until_due(now_ms)

    def commit_now(self) -> None:
        """Have a timer-driven task commit without waiting for the clock; others follow their upstream tasks."""
        if not self._over:
            self.machine.tick((self.machine.label + 1) * self.plan.graph.settings.checkpoint_interval_ms)
            self.perform()

    def has_committed(self, label: int) -> bool:
        """The version of this label is committed, and published."""
        return self.machine.version >= label and self.publishing.idle

    def _commit_if_asked(self) -> None:
        """Commit before the clock says so: once for each of its versions, for readers wait for those of others."""
        interval = self.plan.graph.settings.checkpoint_interval_ms
        if self.task.chain.wants_commit and self.machine.label * interval <= self._clock.now_ms():
            self.commit_now()

    @property
    def wants_shutdown(self) -> bool:
        """A step of the task asks that the app be drained."""
        return self.task.chain.wants_shutdown

    # -- performing

    def _advance(self) -> None:
        if self.machine.phase is not Phase.RUNNING:
            return
        self.task.advance()
        if self.task.ended and not self.task.finished and not self.attempt.settling:
            self.machine.inputs_ended()
            self.perform()

    def perform(self) -> None:
        """Do what the protocol asks for, until it asks for nothing, or for something that a waiting step holds up."""
        while not self._over and (instruction := self.machine.next_step()) is not None:
            if not self.attempt.ready(instruction, self._clock.now_ms(), self._clock.monotonic_ms()):
                return
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case TakeGeneration():
                self.attempt.close()
                self._begin()
                generation = self._next_generation()
                self.machine.start(generation, self.state.begin(self.attempt.stores()))
                return
            case AppendAbort(header=header, record=abort):
                self._changelog.append(header, encode_record(abort))
                self.machine.performed(self._changelog.flush())
                return
            case ReadChangelog(start=start, end=end):
                if self.machine.phase is not Phase.REPLAYING:
                    self._check_changelog(start, end)
                elif not self.replay.run(self.machine, start, end):
                    self._rebase()
                    return
            case Resume(record=record, inputs=positions):
                self._resume(record, dict(positions))
            case SendControl(frames=frames):
                for frame in frames:
                    producer = self._connections.record_producer(self._systems[frame.stream])
                    producer.send(frame.stream.name, frame.partition, encode_control(frame.header, frame.message))
            case ScanAhead(inputs=positions):
                self.receiver.learn(self.inputs.scan(dict(positions)))
            case Feed(label=label):
                self.task.chain.tell_time(self._clock.now_ms())
                self.receiver.feed(label)
            case Finish():
                self._announcer.end()
            case FlushOutputs():
                self._commit_began = self._clock.monotonic_ms()
                self._connections.flush_records()
            case AppendChanges(version=version):
                self._append_changes(version)
            case AppendCommit():
                self._append_commit()
                return
            case WriteLocal(local=local):
                self.state.persist(local)
                self.publishing.committed()
                trim = self.state.snapshot_if_due(local)
                if trim is not None:
                    self._changelog.trim(trim)
            case Report(inputs=needed):
                self._committed(dict(needed))
            case End():
                self._over = True
                _log.info("the task has ended", task=str(self.name), version=self.machine.version)
                self.finished = self.publishing.idle
                return
            case Stop(error=error):
                raise error
            case _:
                assert_never(instruction)
        self.machine.performed()

    def _check_changelog(self, start: Offset | None, end: Offset) -> None:
        try:
            for offset, header, body in self._changelog.read(start, end):
                self.machine.changelog(offset, header, body)
        except TrimmedOffsetError as error:
            raise FencedError(
                f"task {self.name}: what it committed behind was given up: {error.message}",
                hint="this is a stale copy of the task; its replacement has taken a snapshot since",
            ) from error

    def _rebase(self) -> None:
        """Begin the replay again from another base, with empty stores."""
        self.attempt.close()
        self._begin()
        self.machine.rebase(self.state.misfit(self.attempt.stores()))

    def _resume(self, record: CommitRecord | None, intermediate: Mapping[SSP, Offset | None]) -> None:
        times = None if record is None else _TIMES.decode(record.bookkeeping)
        positions = self.attempt.restore(record, times, intermediate)
        try:
            begun = self.inputs.begin(positions)
        except (FencedError, TrimmedOffsetError) as error:
            error.message = f"task {self.name}: {error.message}"
            raise
        self._idleness = Idleness(self.task, self._clock.monotonic_ms())
        self.attempt.begin(begun, self.inputs.ends(self.task.side_inputs), self._clock.now_ms())
        self.state.begun()
        _log.info(
            "the task has its state and reads on",
            task=str(self.name),
            generation=self.generation,
            version=None if record is None else self.machine.version,
        )

    def _append_changes(self, version: int) -> None:
        for change in self.state.changes(version):
            self._changelog.append(self.machine.stamp_change(), change.encode())

    def _append_commit(self) -> None:
        header, record = self.machine.seal(
            sources=self.receiver.source_entries(), bookkeeping=msgspec.json.encode(self.task.save())
        )
        data = encode_record(record)
        self.state.grown(len(data))
        self._changelog.append(header, data)
        self.machine.performed(self._changelog.flush())

    def _committed(self, needed: Mapping[SSP, Offset | None]) -> None:
        now = self._clock.monotonic_ms()
        self._progress.trim(needed)
        self.task.chain.committed()
        self.committed_ms = now
        self.commit_took_ms = now - self._commit_began
        _log.debug(
            "committed", task=str(self.name), version=self.machine.version, took_ms=round(self.commit_took_ms, 1)
        )

    # -- time

    def _has_news(self) -> bool:
        return not self.task.finished and self._announcer.news(self.task.output_watermark, idle=self.attempt.idle)

    def _until_due(self, now_ms: float) -> float:
        interval = self.plan.graph.settings.checkpoint_interval_ms
        due = [now_ms + interval - self._clock.now_ms() % interval]
        if not self.attempt.settling and (by_clock := self.task.chain.due_ms()) is not None:
            due.append(now_ms + by_clock - self._clock.now_ms())
        if self._has_news():
            due.append(self._announcer.next_ms)
        if self._progress.news(self.positions):
            due.append(self._progress.next_ms)
        if self.backpressure.blocked_by is not None:
            due.append(now_ms + 5)
        if (silent := self._idleness.due_ms()) is not None:
            due.append(silent)
        return max(0.0, min(due) - now_ms)
