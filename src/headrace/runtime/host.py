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

from headrace.api.specs import Role, StreamSpec
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
from headrace.checkpoint.node import Node
from headrace.checkpoint.protocol import Phase
from headrace.checkpoint.record import CommitRecord, SourceEntry, encode_record
from headrace.core.clock import Clock
from headrace.core.errors import FencedError, TrimmedOffsetError
from headrace.core.frame import (
    encode_control,
)
from headrace.core.ids import SSP, Offset
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.announcing import Announcer
from headrace.runtime.backpressure import Backpressure
from headrace.runtime.bootstrap import Bootstrap
from headrace.runtime.changelog import ChangelogPartition
from headrace.runtime.chooser import Chooser
from headrace.runtime.connections import Connections
from headrace.runtime.envelope import ControlFrame, Frames, PartitionEnd, Table
from headrace.runtime.inputs import Inputs
from headrace.runtime.intake import Intake
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import changelog_ssp, state_folders
from headrace.runtime.nodes import node_config
from headrace.runtime.outlet import Outlet
from headrace.runtime.progress import Progress
from headrace.runtime.publishing import Publishing
from headrace.runtime.reception import Reception
from headrace.runtime.replay import Replay
from headrace.runtime.state import TaskState
from headrace.runtime.task import Task
from headrace.runtime.timing import Every
from headrace.runtime.watermark import TimesCheckpoint
from headrace.stores.base import StateStore
from headrace.systems.base import Edge, Position

TICK_INTERVAL_MS = 10
SETTLING_MS = 1000.0
"""A commit that waits for calls for longer than this is worth telling."""

NextGeneration = Callable[[], int]
"""Issues the task's next generation, or raises ``FencedError`` when another incarnation has taken over."""

_TIMES = msgspec.json.Decoder(TimesCheckpoint)


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
        self.metrics = TaskMetrics()
        self.backpressure = backpressure
        self.finished = False
        self._over = False
        self._settling = False
        """A commit or the end is due, and waits for steps that wait."""
        self._settling_since = 0.0
        self.started_ms = now_ms
        self.committed_ms: float | None = None
        self.commit_took_ms = 0.0
        self.node = Node(node_config(plan, stage, task), writer=uuid.uuid4().hex)
        self._plan_of_task = task
        self._next_generation = next_generation
        self._connections = connections
        self._systems = {stream.spec.stream: stream.spec.system for stream in plan.streams.values()}
        self._clock = clock
        self.publishing = Publishing(plan, stage, task.name, connections)
        self._outlet = Outlet(plan, task.name, connections, self.publishing, self.node.stamp, self.metrics)
        changelog, system = changelog_ssp(plan, task.name)
        self._changelog = ChangelogPartition(changelog, system, connections)
        self.state = TaskState(changelog, state_folders(plan, task.name))
        self.replay = Replay(str(task.name), self._changelog, self.state, pulse)
        self.reception = Reception(self.node, self.metrics)
        downstream = [id_ for id_ in stage.outputs if plan.streams[id_].spec.role is Role.INTERMEDIATE]
        self._announcer = Announcer(self._outlet, task.name, len(stage.tasks), downstream, now_ms)
        self._begin()
        self._progress = Progress(plan.graph.app, self.task.specs, connections, now_ms)
        self.inputs = Inputs(self.task.specs, connections)
        self._heard_ms: dict[SSP, float] = dict.fromkeys(self.task.specs, now_ms)
        self._tick_every = Every(TICK_INTERVAL_MS, now_ms)
        self._commit_began = 0.0

    def _begin(self) -> None:
        """Start over: drop everything uncommitted."""
        self.task = Task(self.plan, self.stage, self._plan_of_task, self._outlet, self.metrics, self._connections.calls)
        self.publishing.begin(self.task.chain.tables.written)
        self.chooser = Chooser(self.task.specs, self.task.side_inputs)
        self.bootstrap = Bootstrap(self.chooser)
        self.reception.begin(self.task, self.chooser, self._intakes())
        self._announcer.reset()

    def _intakes(self) -> dict[SSP, Intake]:
        return {
            ssp: Intake(
                spec,
                self.metrics,
                self._outlet.write,
                keys=self.task.chain.tables.keys_of(spec.id),
                partial=spec.id in self.plan.combined,
            )
            for ssp, spec in self.task.specs.items()
        }

    # -- life

    def start(self) -> None:
        """Restore from the last commit and announce it; afterwards the task can be stepped."""
        self.node.tick(self._clock.now_ms())
        self.perform()

    def close(self) -> None:
        """Stop reading. What was not committed will be read again."""
        with ExitStack() as closing:  # all of it, though the user's part fails
            closing.callback(self.state.close)
            closing.callback(self.publishing.close)
            closing.callback(self.task.chain.close)
            self.inputs.close()
            self._changelog.close()
            self.reception.early.clear()

    @property
    def generation(self) -> int:
        """The number that fences off older incarnations."""
        return self.node.generation

    @property
    def positions(self) -> dict[SSP, Offset]:
        """How far each input partition has been processed."""
        return self.reception.positions

    @property
    def early_bytes(self) -> tuple[int, int]:
        """How much of what has arrived waits for its version: in memory and on disk."""
        return self.reception.early.memory_bytes, self.reception.early.disk_bytes

    def lag(self, ssp: SSP) -> int | None:
        """How far the processed position of an input is behind its end; None when unknown."""
        behind = self.inputs.lag(ssp)
        return None if behind is None else behind + self.inputs.position(ssp) - self.positions.get(ssp, 0)

    # -- one turn

    def poll(self) -> None:
        """Take what has arrived, unless enough waits already."""
        if not self._over:
            self.inputs.poll(self.chooser)

    @property
    def blocked_by(self) -> str | None:
        """What keeps the task from reading on: readers that are behind, a target that is away, a step that waits."""
        blocked_by = self.backpressure.blocked_by or self.publishing.blocked_by or self.task.chain.full
        if blocked_by is None and self._settling and self._clock.monotonic_ms() - self._settling_since > SETTLING_MS:
            return self.task.chain.held_by
        return blocked_by

    @property
    def waits_for_calls(self) -> str | None:
        """What waits for calls, and why their answers don't come; None: nothing does."""
        return (None if self._over else self.task.chain.held_by) or self.publishing.calling

    @property
    def busy(self) -> bool:
        """There is work now, or the last poll found something: don't sleep."""
        if self._over or self._settling or self.blocked_by is not None:
            return False
        return self.chooser.ready or self.inputs.hungry

    @property
    def owes(self) -> bool:
        """Something done has not been told downstream yet: a watermark waits for its interval."""
        return not self._over and (self._has_news() or self.task.ended)

    def step(self, now_ms: float) -> bool:
        """Process one envelope; False when there is none, or the stage has to wait for its readers."""
        if self.node.phase is Phase.RUNNING:  # in a task that has to roll back nothing that waits is wanted any more
            self.task.chain.collect()
        if self.node.due or self._settling:
            self.perform()
        if self._over or self._settling or self.backpressure.check(now_ms) or self.blocked_by is not None:
            return False
        envelope = self.chooser.choose()
        if envelope is None:
            return False
        ssp = envelope.ssp
        self._heard_ms[ssp] = now_ms
        self.task.chain.tell_time(self._clock.now_ms())
        match envelope:
            case Frames():
                self.reception.frames(envelope)
            case ControlFrame():
                self.reception.control(envelope)
            case Table():
                self.reception.table(envelope)
            case PartitionEnd():
                self.task.end(ssp)
                self.positions[ssp] = envelope.next
            case _:
                assert_never(envelope)
        self.bootstrap.note(ssp, self.positions[ssp], ended=isinstance(envelope, PartitionEnd))
        self._advance()
        self._commit_if_asked()
        return True

    def on_time(self, now_ms: float) -> float:
        """Do what is due; returns how long (ms) nothing will be."""
        # What a commit made publishable goes out a turn later: readers downstream hear of the commit first.
        self.publish(now_ms)
        if not self._over:
            if self._tick_every.due(now_ms):
                self.node.tick(self._clock.now_ms())
            self.perform()
        due = 1000.0 if self._over else self._do_due(now_ms)
        return min(due, self.publishing.pause(now_ms))

    def publish(self, now_ms: float) -> None:
        """Publish what is committed. A task whose protocol is over has finished when all of it is."""
        self.publishing.advance(now_ms)
        self.finished = self._over and self.publishing.idle

    def _do_due(self, now_ms: float) -> float:
        self.task.chain.collect()
        self._notice_silence(now_ms)
        if not self._settling:  # or what is due by the clock could hold the commit up for ever
            self.task.chain.on_time(self._clock.now_ms())
        self._advance()
        self._commit_if_asked()
        if not self.task.finished:
            self._announcer.tell(self.task.output_watermark, idle=self._idle, now_ms=now_ms)
        self._progress.report(self.positions, now_ms)
        return self._until_due(now_ms)

    def commit_now(self) -> None:
        """Have a timer-driven task commit without waiting for the clock; others follow their upstream tasks."""
        if not self._over:
            self.node.tick((self.node.label + 1) * self.plan.graph.settings.checkpoint_interval_ms)
            self.perform()

    def _commit_if_asked(self) -> None:
        """Commit before the clock says so: once for each of its versions, for readers wait for those of others."""
        interval = self.plan.graph.settings.checkpoint_interval_ms
        if self.task.chain.wants_commit and self.node.label * interval <= self._clock.now_ms():
            self.commit_now()

    @property
    def wants_shutdown(self) -> bool:
        """A step of the task asks that the app be drained."""
        return self.task.chain.wants_shutdown

    # -- performing

    def _advance(self) -> None:
        if self.node.phase is not Phase.RUNNING:
            return
        self.task.advance()
        if self.task.ended and not self.task.finished and not self._settling:
            self.node.inputs_ended()
            self.perform()

    def perform(self) -> None:
        """Do what the protocol asks for, until it asks for nothing, or for something that a waiting step holds up."""
        settling, self._settling = self._settling, False
        while not self._over and (instruction := self.node.next_step()) is not None:
            self._settling = not self._prepared(instruction)
            if self._settling:
                self._settling_since = self._settling_since if settling else self._clock.monotonic_ms()
                return
            self._perform(instruction)

    def _prepared(self, instruction: Instruction) -> bool:
        """False when steps that wait for answers have to be done before this."""
        match instruction:
            case FlushOutputs():
                self.task.chain.collect()
                return not self.task.chain.holding
            case Finish():
                self.task.chain.tell_time(self._clock.now_ms())
                self.task.advance()
                self.task.chain.collect()
                return self.task.finish()
            case _:
                return True

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case TakeGeneration():
                self.task.chain.close()
                self._begin()
                generation = self._next_generation()
                self.node.start(generation, self.state.begin(self._stores()))
                return
            case AppendAbort(header=header, record=abort):
                self._changelog.append(header, encode_record(abort))
                self.node.performed(self._changelog.flush())
                return
            case ReadChangelog(start=start, end=end):
                if self.node.phase is not Phase.REPLAYING:
                    self._check_changelog(start, end)
                elif not self.replay.run(self.node, start, end):
                    self._rebase()
                    return
            case Resume(record=record, inputs=positions):
                self._resume(record, dict(positions))
            case SendControl(frames=frames):
                for frame in frames:
                    producer = self._connections.record_producer(self._systems[frame.stream])
                    producer.send(frame.stream.name, frame.partition, encode_control(frame.header, frame.message))
            case ScanAhead(inputs=positions):
                self.reception.learn(self.inputs.scan(dict(positions)))
            case Feed(label=label):
                self.task.chain.tell_time(self._clock.now_ms())
                self.reception.feed(label)
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
                self.finished = self.publishing.idle
                return
            case Stop(error=error):
                raise error
            case _:
                assert_never(instruction)
        self.node.performed()

    def _check_changelog(self, start: Offset | None, end: Offset) -> None:
        try:
            for offset, header, body in self._changelog.read(start, end):
                self.node.changelog(offset, header, body)
        except TrimmedOffsetError as error:
            raise FencedError(
                f"task {self.name}: what it committed behind was given up: {error.message}",
                hint="this is a stale copy of the task; its replacement has taken a snapshot since",
            ) from error

    def _rebase(self) -> None:
        """Begin the replay again from another base, with empty stores."""
        self.task.chain.close()
        self._begin()
        self.node.rebase(self.state.misfit(self._stores()))

    def _stores(self) -> dict[str, StateStore]:
        return {**self.task.chain.stores(), **self.publishing.stores()}

    def _resume(self, record: CommitRecord | None, intermediate: Mapping[SSP, Offset | None]) -> None:
        self.publishing.resume(-1 if record is None else record.version)
        positions: dict[SSP, Position] = {}
        for ssp, spec in self.task.specs.items():
            if spec.role is Role.INTERMEDIATE:
                offset = intermediate[ssp]
                positions[ssp] = Edge.OLDEST if offset is None else offset
            else:
                positions[ssp] = _first_position(spec)
        saved: dict[SSP, SourceEntry] = {}
        if record is not None:
            self.task.load(_TIMES.decode(record.bookkeeping))
            self.task.finished = record.end_of_stream_sent
            saved = {SSP.of(entry.stream, entry.partition): entry for entry in record.sources}
            positions |= {ssp: entry.offset for ssp, entry in saved.items() if entry.offset is not None}
        try:
            self.reception.resume(self.inputs.begin(positions), saved)
        except TrimmedOffsetError as error:
            raise FencedError(
                f"task {self.name} would have to read what was given up: {error.message}",
                hint="this is a stale copy of the task; its replacement has read further",
            ) from error
        ends = self.inputs.ends(self.task.side_inputs)
        if not self.task.finished:
            self.task.chain.tell_time(self._clock.now_ms())
            self.task.begin()
        self.bootstrap.begin(self.positions, ends)

    def _append_changes(self, version: int) -> None:
        for change in self.state.changes(version):
            self._changelog.append(self.node.stamp_change(), change.encode())

    def _append_commit(self) -> None:
        header, record = self.node.seal(
            sources=self.reception.source_entries(), bookkeeping=msgspec.json.encode(self.task.save())
        )
        data = encode_record(record)
        self.state.grown(len(data))
        self._changelog.append(header, data)
        self.node.performed(self._changelog.flush())

    def _committed(self, needed: Mapping[SSP, Offset | None]) -> None:
        now = self._clock.monotonic_ms()
        self._progress.trim(needed)
        self.task.chain.committed()
        self.committed_ms = now
        self.commit_took_ms = now - self._commit_began

    # -- time

    def _notice_silence(self, now_ms: float) -> None:
        for ssp, timeout in self.task.timeouts.items():
            if self.task.times[ssp].idle or self.task.times[ssp].closed:
                continue
            if now_ms - self._heard_ms[ssp] >= timeout:
                self.task.idle(ssp)

    def _has_news(self) -> bool:
        return not self.task.finished and self._announcer.news(self.task.output_watermark, idle=self._idle)

    @property
    def _idle(self) -> bool:
        """Nothing comes, and nothing is to come of what came: downstream may go on without this task."""
        return self.task.times.idle and not self.task.chain.holding

    def _until_due(self, now_ms: float) -> float:
        interval = self.plan.graph.settings.checkpoint_interval_ms
        due = [now_ms + interval - self._clock.now_ms() % interval]
        if not self._settling and (by_clock := self.task.chain.due_ms()) is not None:
            due.append(now_ms + by_clock - self._clock.now_ms())
        if self._has_news():
            due.append(self._announcer.next_ms)
        if self._progress.news(self.positions):
            due.append(self._progress.next_ms)
        if self.backpressure.blocked_by is not None:
            due.append(now_ms + 5)
        for ssp, timeout in self.task.timeouts.items():
            times = self.task.times[ssp]
            if not times.idle and not times.closed:
                due.append(self._heard_ms[ssp] + timeout)
        return max(0.0, min(due) - now_ms)


def _first_position(spec: StreamSpec) -> Edge:
    return Edge.OLDEST if spec.start == "oldest" else Edge.UPCOMING
