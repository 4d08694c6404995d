"""The protocol machine of one task. ``protocol`` explains it, and holds its tables and the host's contract."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.checkpoint.changelog import ABORT_SEQ, Changelog, ReplayStep
from headrace.checkpoint.frame_judge import FrameJudge
from headrace.checkpoint.frame_stamper import FrameStamper
from headrace.checkpoint.instructions import (
    AppendAbort,
    AppendChanges,
    AppendCommit,
    End,
    Feed,
    Finish,
    FlushOutputs,
    Forget,
    Instruction,
    ReadChangelog,
    Report,
    Resume,
    ScanAhead,
    SendControl,
    Stop,
    TakeGeneration,
    Verdict,
    WriteLocal,
)
from headrace.checkpoint.protocol import DECISIONS, STEPS, Phase, Step
from headrace.checkpoint.record import AbortRecord, CommitRecord, InputEntry, LocalCheckpoint, SourceEntry
from headrace.core.errors import ProtocolError
from headrace.core.frame import END_VERSION, Bytes, ControlMessage, Header, Kind, Restore
from headrace.core.ids import SSP, Offset, StreamId, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """What the machine needs to know of the plan.

    ``inputs`` maps each intermediate input partition to all producers that write it, of every upstream stage.
    ``outputs`` maps each framed stream that the task writes, intermediate or output, to its number of partitions.
    """

    task: TaskName
    task_count: int
    producer: int
    inputs: Mapping[SSP, Collection[int]] = field(default_factory=dict)
    outputs: Mapping[StreamId, int] = field(default_factory=dict)
    interval_ms: int = 1000
    exactly_once: bool = True


class ProtocolMachine:
    """One incarnation of a task. ``version`` is C; ``label`` is the label of outgoing frames.

    ``writer`` is a text that no other incarnation has. The tables and the classes of the parts are class attributes,
    so that tests can run a broken protocol.
    """

    judge_class = FrameJudge
    stamper_class = FrameStamper
    changelog_class = Changelog
    steps = STEPS
    decisions = DECISIONS

    def __init__(self, config: MachineConfig, writer: str) -> None:
        self.config = config
        self.phase = Phase.DOWN
        self.generation = 0
        self.version = -1
        self.label = 0
        self.end_of_stream_sent = False
        self.rollbacks = 0
        self._writer = writer
        self._judge = self.judge_class(config.inputs, config.exactly_once)
        self._stamper = self.stamper_class(
            config.task, config.task_count, config.producer, config.outputs, config.exactly_once
        )
        self._changelog = self.changelog_class(config.producer, writer, None)
        self._clock = 0
        self._inputs_ended = False
        self._woken = False
        self._current: Instruction | None = None
        self._read_from: Offset | None = None
        self._read_to: Offset = 0
        self._changelog_seq = 0
        self._feeding = -1
        self._commit_version = -1
        self._next_version = 0
        self._sealed: tuple[Header, CommitRecord] | None = None
        self._steps = {step.phase: step for step in self.steps}

    # -- events -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Set the wall clock. It may jump in either direction.

        Labels are milliseconds, not numbers of intervals: so they rise even if the next start has a longer interval.
        """
        self._clock = now_ms - now_ms % self.config.interval_ms
        self._woken = True

    def start(self, generation: int, base: LocalCheckpoint | None) -> None:
        """Start, or restart after a rollback, as ``generation``. ``base`` is the commit that the local state holds."""
        if self.phase is not Phase.DOWN or generation <= self.generation:
            raise ProtocolError(
                f"task {self.config.task}: generation {generation} can't start while generation "
                f"{self.generation} is {self.phase.value}"
            )
        self.generation = generation
        self._stamper.generation = generation
        self._changelog_seq = 0
        self._inputs_ended = False
        self._sealed = None
        self.phase, self._current = Phase.FENCING, None
        self._begin_replay(base)

    def rebase(self, base: LocalCheckpoint | None) -> None:
        """Replay from another base, because the last one doesn't belong to the changelog or was trimmed from it."""
        self._expect("rebase", Phase.REPLAYING)
        self._current = None
        self._begin_replay(base)

    def changelog(self, offset: Offset, header: Header, body: Bytes) -> ReplayStep:
        """Take a record that ``ReadChangelog`` asked for. The result matters only while replaying, for state."""
        self._expect("changelog", Phase.REPLAYING, Phase.CHECKING)
        return self._changelog.take(offset, header, body)

    def performed(self, end: Offset | None = None) -> None:
        """Note that the current instruction is done; ``end`` is the acknowledged offset, if the instruction has one."""
        step = self._steps.get(self.phase)
        if step is None or self._current is None or not step.then or self.phase is Phase.DOWN:
            raise ProtocolError(f"task {self.config.task}: no instruction is to be performed ({self.phase.value})")
        if end is not None:
            self._read_to = end
        elif self.phase in {Phase.FENCING, Phase.COMMITTING}:
            raise ProtocolError(f"task {self.config.task}: the acknowledged offset is missing ({self.phase.value})")
        getattr(self, step.effect)()
        self._enter(step)

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """Take a restore frame that ``ScanAhead`` found."""
        self._expect("learn", Phase.SCANNING)
        self._judge.learn(ssp, header, restore)

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> Verdict | Forget:
        """Judge the next frame of an intermediate input: it is at ``offset``, and the frame after it at ``after``.

        ``control`` is the message of a checkpoint or restore frame, and None for all other frames.
        """
        if self.phase is not Phase.RUNNING or self._woken or self._judge.due:
            raise ProtocolError(
                f"task {self.config.task}: a frame was received while an instruction is to be performed "
                f"({self.phase.value})"
            )
        verdict = self._judge.receive(ssp, offset, after, header, control)
        if verdict is Verdict.ROLLBACK:
            self.rollbacks += 1
            self.phase = Phase.DOWN
        return verdict

    def inputs_ended(self) -> None:
        """Note that every source has ended and every end-of-stream has been processed."""
        self._inputs_ended = self._woken = True

    def abandon(self) -> None:
        """Give up everything uncommitted and restart, after an external failure."""
        if self.phase not in {Phase.OVER, Phase.STOPPED}:
            self.phase, self._current = Phase.DOWN, None

    # -- queries ------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there may be an instruction to perform."""
        return self._woken or self._judge.due or self.phase is not Phase.RUNNING

    def next_step(self) -> Instruction | None:
        """Return the instruction to perform now, the same one until it is performed. None: receive frames."""
        if self.phase is Phase.RUNNING:
            if not (self._woken or self._judge.due):
                return None
            self._decide()
            if self.phase is Phase.RUNNING:
                self._woken = self._judge.due = False
                return None
        if self._current is None:
            instruction: Instruction = getattr(self, self._steps[self.phase].instruction)()
            self._current = instruction
        return self._current

    def stamp(self, stream: StreamId, partition: int, kind: Kind = Kind.USER) -> Header:
        """Return the header of an outgoing user, watermark or end-of-stream frame."""
        self._expect("stamp", Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.FLUSHING)
        return self._stamper.stamp(stream, partition, kind)

    def stamp_change(self) -> Header:
        """Return the header of a change frame. Changes may be appended at any time while the task runs."""
        self._expect("stamp_change", Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.APPENDING)
        return self._record_header(Kind.CHANGE, self.label)

    def seal(
        self,
        *,
        sources: tuple[SourceEntry, ...] = (),
        bookkeeping: bytes = b"null",
        timers: bytes = b"null",
    ) -> tuple[Header, CommitRecord]:
        """Return header and record of the commit frame that ``AppendCommit`` asks for.

        ``sources``, ``bookkeeping`` and ``timers`` are the host's parts of the record; the last two are any JSON.
        """
        self._expect("seal", Phase.COMMITTING)
        if self._sealed is not None:
            raise ProtocolError(f"task {self.config.task}: version {self._commit_version} is already sealed")
        record = CommitRecord(
            generation=self.generation,
            version=self._commit_version,
            next_version=self._next_version,
            outputs=self._stamper.save(),
            inputs=self._judge.save(self._commit_version),
            sources=sources,
            parents_version=self._judge.parents_version,
            end_of_stream_sent=self.end_of_stream_sent,
            bookkeeping=msgspec.Raw(bookkeeping),
            timers=msgspec.Raw(timers),
        )
        self._sealed = self._record_header(Kind.COMMIT, self._commit_version), record
        return self._sealed

    @property
    def local(self) -> LocalCheckpoint | None:
        """The last commit read so far that counts. It is written in the same batch as the changes it commits."""
        return self._changelog.local

    def waiting_for(self) -> list[tuple[SSP, int]]:
        """Return what the next commit waits for: the (input partition, producer) pairs that haven't closed it."""
        return self._judge.waiting_for()

    # -- instructions -------------------------------------------------------------------------------------

    def take_generation(self) -> Instruction:
        """Start over with a new generation."""
        return TakeGeneration()

    def append_abort(self) -> Instruction:
        """Append the abort record, which fences older generations off: the first record of a generation."""
        record = AbortRecord(generation=self.generation, writer=self._writer)
        return AppendAbort(self._record_header(Kind.ABORT, self.version), record)

    def read_changelog(self) -> Instruction:
        """At a start, read from the base through the own abort; at a commit, the rest through the own commit."""
        return ReadChangelog(self._read_from, self._read_to)

    def resume(self) -> Instruction:
        """Restore the host's part of the last commit."""
        return Resume(self._changelog.record, self._judge.positions())

    def send_restores(self) -> Instruction:
        """Announce to every downstream partition what is committed. The label until the next commit is chosen here."""
        self.label = self._first_label()
        self._stamper.label = self.label
        return SendControl(self._stamper.restores(self.version, self.label))

    def scan_ahead(self) -> Instruction:
        """Learn which frames are void before processing any of them."""
        return ScanAhead(self._judge.positions())

    def feed(self) -> Instruction:
        """Process the buffered frames of the lowest label."""
        return Feed(self._feeding)

    def finish(self) -> Instruction:
        """Fire open windows and send end-of-stream."""
        return Finish()

    def flush_outputs(self) -> Instruction:
        """Wait until outputs are acknowledged: a commit, or the end, must not cover frames that may still be lost."""
        return FlushOutputs()

    def append_changes(self) -> Instruction:
        """Append the changes before the commit that makes them count."""
        return AppendChanges(self._commit_version)

    def append_commit(self) -> Instruction:
        """Append the commit record: the one step that decides whether the version happened."""
        return AppendCommit(self._commit_version, self._next_version)

    def write_local(self) -> Instruction:
        """Bring local state up to date. It follows the changelog, never the other way round."""
        local = self._changelog.local
        if local is None:
            raise ProtocolError(f"task {self.config.task}: no commit to write")
        return WriteLocal(local)

    def send_checkpoints(self) -> Instruction:
        """Announce the commit downstream, now that it is known to count."""
        return SendControl(self._stamper.checkpoints(self._commit_version, self._next_version))

    def report(self) -> Instruction:
        """Report which input frames the commit covers and that are no longer needed."""
        record = self._changelog.record
        inputs = record.inputs if record else ()
        return Report(self.version, tuple((_ssp(entry), entry.offset) for entry in inputs))

    def end(self) -> Instruction:
        """End: the final commit is announced and acknowledged."""
        return End()

    def stop(self) -> Instruction:
        """Stop: another incarnation has the right to run this task."""
        return Stop(self._changelog.stop_reason(self.config.task))

    # -- guards -------------------------------------------------------------------------------------------

    def always(self) -> bool:
        """Hold always: the last alternative."""
        return True

    def fenced(self) -> bool:
        """The changelog shows a newer generation, or a second writer with this task's generation."""
        return self._changelog.replaced

    def ended(self) -> bool:
        """The last commit was the final one."""
        return self._next_version == END_VERSION

    def buffer_due(self) -> bool:
        """A buffered label is in turn: labels up to M before the commit of M, and M + 1 right after it."""
        lowest = self._judge.lowest_buffered
        return lowest is not None and lowest <= max(self._judge.threshold, self._judge.closed_through)

    def finish_due(self) -> bool:
        """All inputs have ended. This happens once in the life of a task, across all incarnations."""
        return self._inputs_ended and not self.end_of_stream_sent

    def final_due(self) -> bool:
        """Nothing more will arrive, and nothing that arrived can become void."""
        return self.end_of_stream_sent and self._inputs_ended and self._timer_driven

    def version_closed(self) -> bool:
        """All upstream tasks have closed the next version, or several.

        Its own label is the next version, but for a task that was timer-driven until its upstream tasks changed to
        exactly-once. It has announced that label, so it waits until they have closed it: labels don't fall.
        """
        return self.label <= self._judge.closed_through < END_VERSION

    def clock_passed(self) -> bool:
        """The interval is over. An idle task commits too, because downstream tasks wait for its versions."""
        return self._timer_driven and self._clock > self.label

    @property
    def _timer_driven(self) -> bool:
        return self._judge.closed_through == END_VERSION

    # -- decisions and effects --------------------------------------------------------------------------------

    def nothing(self) -> None:
        """Do nothing."""

    def decide_feed(self) -> None:
        """Choose the lowest buffered label."""
        lowest = self._judge.lowest_buffered
        self._feeding = -1 if lowest is None else lowest

    def decide_command(self) -> None:
        """Choose the closed version M to commit."""
        closed = self._judge.closed_through
        self._commit_version, self._next_version = closed, closed + 1

    def decide_timer(self) -> None:
        """Choose the highest label in use as the version to commit, and the next label by the clock."""
        self._commit_version = max(self.label, self._judge.highest_label)
        self._next_version = max(self._above(self._commit_version), self._clock)

    def decide_final(self) -> None:
        """Choose a final version that is not below any label or parent's version that it includes."""
        judge = self._judge
        self._commit_version = max(self.version + 1, self.label, judge.highest_label, judge.parents_version)
        self._next_version = END_VERSION

    def fed(self) -> None:
        """Note that the buffered frames were processed."""
        self._judge.feed(self._feeding)

    def finished(self) -> None:
        """Note that end-of-stream was sent. The record says so, so that no restart fires windows or sends it again."""
        self.end_of_stream_sent = True

    def adopt_record(self) -> None:
        """Reset the machine to the last commit that counts."""
        self._read_from = self._read_to
        if self.fenced():
            return
        if self._changelog.generation != self.generation:
            raise ProtocolError(
                f"task {self.config.task}: the changelog was not read through the task's own abort record",
                hint="a base past the end belongs to another changelog: the host must throw it away and call rebase",
            )
        if self._changelog.seq != ABORT_SEQ:
            raise ProtocolError(
                f"task {self.config.task}: it was given generation {self.generation}, which was used before",
                hint="the app's metadata (metadata.db in its home) was lost, or is older than its streams: restore it "
                "from a backup, or start over with another home",
            )
        record = self._changelog.record
        self.version = record.version if record else -1
        self._next_version = record.next_version if record else 0
        self.end_of_stream_sent = self._inputs_ended = bool(record and record.end_of_stream_sent)
        self._stamper.load(record.outputs if record else ())
        self._judge.load(record.inputs if record else (), self.version, record.parents_version if record else -1)

    def check_commit(self) -> None:
        """Check that the own commit counts: only then did it happen."""
        self._read_from = self._read_to
        local = self._changelog.local
        found = (local.generation, local.version) if local else None
        if not self.fenced() and found != (self.generation, self._commit_version):
            raise ProtocolError(f"task {self.config.task}: its own commit was not found in the changelog")

    def committed(self) -> None:
        """Start the next version."""
        self.version = self._commit_version
        self.label = self._stamper.label = self._next_version
        self._sealed = None
        self._judge.commit(self.version)

    def _decide(self) -> None:
        for decision in self.decisions:
            if getattr(self, decision.when)():
                getattr(self, decision.then)()
                self.phase, self._current = decision.phase, None
                return

    def _enter(self, step: Step) -> None:
        self.phase = next(phase for guard, phase in step.then if getattr(self, guard)())
        self._current = None
        self._woken = True

    def _first_label(self) -> int:
        if self.ended():
            return END_VERSION
        return max(self._above(self.version), self._clock) if self._timer_driven else self.version + 1

    def _above(self, version: int) -> int:
        """The first label above ``version`` that the clock may show: tasks with equal intervals choose equal labels."""
        interval = self.config.interval_ms
        return (version // interval + 1) * interval

    def _begin_replay(self, base: LocalCheckpoint | None) -> None:
        self._changelog = self.changelog_class(self.config.producer, self._writer, base)
        self._changelog.owned_by(self.generation)
        self._read_from = base.offset if base else None

    def _record_header(self, kind: Kind, version: int) -> Header:
        self._changelog_seq += 1
        return Header(kind, self.config.producer, self.generation, version, self._changelog_seq)

    def _expect(self, call: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ProtocolError(
                f"task {self.config.task}: {call} was called while {self.phase.value}", hint="this is a bug in the host"
            )


def _ssp(entry: InputEntry) -> SSP:
    return SSP(StreamId.parse(entry.stream), entry.partition)
