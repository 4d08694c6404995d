"""One task, run by the rules: ``protocol`` tells how it works, holds the tables and the host's contract."""

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
    """What the plan says of a task.

    ``inputs``: for each intermediate input partition the producers that write it (all of them: of every stage).
    ``outputs``: for each framed stream it writes the number of partitions; intermediate and output streams alike.
    """

    task: TaskName
    task_count: int
    producer: int
    inputs: Mapping[SSP, Collection[int]] = field(default_factory=dict)
    outputs: Mapping[StreamId, int] = field(default_factory=dict)
    interval_ms: int = 1000
    exactly_once: bool = True


class ProtocolMachine:
    """One incarnation of a task. ``version`` is C; ``label`` what outgoing frames carry.

    The classes of its parts and the tables are attributes, so that a test can run a broken protocol.
    """

    receiving_class = FrameJudge
    sending_class = FrameStamper
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
        self._receiving = self.receiving_class(config.inputs, config.exactly_once)
        self._sending = self.sending_class(
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
        self._target = -1
        self._next = 0
        self._sealed: tuple[Header, CommitRecord] | None = None
        self._steps = {step.phase: step for step in self.steps}

    # -- events -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """What the clock shows. It may jump either way."""
        self._clock = now_ms // self.config.interval_ms
        self._woken = True

    def start(self, generation: int, base: LocalCheckpoint | None) -> None:
        """Begin, or begin again, as ``generation``; ``base`` is what the local state says it corresponds to."""
        if self.phase is not Phase.DOWN or generation <= self.generation:
            raise ProtocolError(
                f"task {self.config.task}: generation {generation} can't start while generation "
                f"{self.generation} is {self.phase.value}"
            )
        self.generation = generation
        self._sending.generation = generation
        self._changelog_seq = 0
        self._inputs_ended = False
        self._sealed = None
        self.phase, self._current = Phase.FENCING, None
        self._begin_replay(base)

    def rebase(self, base: LocalCheckpoint | None) -> None:
        """The base doesn't fit the changelog, or lies below its oldest record: read from another one instead."""
        self._expect(Phase.REPLAYING)
        self._current = None
        self._begin_replay(base)

    def changelog(self, offset: Offset, header: Header, body: Bytes) -> ReplayStep:
        """A record that ``ReadChangelog`` asked for; the answer concerns state while replaying only."""
        self._expect(Phase.REPLAYING, Phase.CHECKING)
        return self._changelog.take(offset, header, body)

    def performed(self, end: Offset | None = None) -> None:
        """The current instruction is done; ``end`` is the acknowledged offset where the instruction asks for it."""
        step = self._steps.get(self.phase)
        if step is None or self._current is None or not step.then or self.phase is Phase.DOWN:
            raise ProtocolError(f"task {self.config.task}: nothing was asked for ({self.phase.value})")
        if end is not None:
            self._read_to = end
        elif self.phase in {Phase.FENCING, Phase.COMMITTING}:
            raise ProtocolError(f"task {self.config.task}: the acknowledged offset is missing ({self.phase.value})")
        getattr(self, step.effect)()
        self._enter(step)

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """A restore frame that ``ScanAhead`` found."""
        self._expect(Phase.SCANNING)
        self._receiving.learn(ssp, header, restore)

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> Verdict | Forget:
        """The next frame of an intermediate input stands at ``offset``; the one behind it will stand at ``after``.

        ``control`` is the message of a checkpoint or restore frame; others are the operators' matter.
        """
        if self.phase is not Phase.RUNNING or self._woken or self._receiving.due:
            raise ProtocolError(
                f"task {self.config.task}: a frame was received while there is something to perform "
                f"({self.phase.value})"
            )
        verdict = self._receiving.receive(ssp, offset, after, header, control)
        if verdict is Verdict.ROLLBACK:
            self.rollbacks += 1
            self.phase = Phase.DOWN
        return verdict

    def inputs_ended(self) -> None:
        """Every source has ended, every end-of-stream has been processed."""
        self._inputs_ended = self._woken = True

    def abandon(self) -> None:
        """Something went wrong outside: give up what isn't committed, and begin again."""
        if self.phase not in {Phase.OVER, Phase.STOPPED}:
            self.phase, self._current = Phase.DOWN, None

    # -- answers ------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """There may be something to perform."""
        return self._woken or self._receiving.due or self.phase is not Phase.RUNNING

    def next_step(self) -> Instruction | None:
        """What to perform now; the same until it is performed. None: receive."""
        if self.phase is Phase.RUNNING:
            if not (self._woken or self._receiving.due):
                return None
            self._decide()
            if self.phase is Phase.RUNNING:
                self._woken = self._receiving.due = False
                return None
        if self._current is None:
            instruction: Instruction = getattr(self, self._steps[self.phase].gives)()
            self._current = instruction
        return self._current

    def stamp(self, stream: StreamId, partition: int, kind: Kind = Kind.USER) -> Header:
        """The header of an outgoing user, watermark or end-of-stream frame."""
        self._expect(Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.FLUSHING)
        return self._sending.stamp(stream, partition, kind)

    def stamp_change(self) -> Header:
        """The header of a change frame. Changes may be appended at any time while the task runs."""
        self._expect(Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.APPENDING)
        return self._record_header(Kind.CHANGE, self.label)

    def seal(
        self,
        *,
        sources: tuple[SourceEntry, ...] = (),
        bookkeeping: bytes = b"null",
        timers: bytes = b"null",
    ) -> tuple[Header, CommitRecord]:
        """The commit frame that ``AppendCommit`` asks for. The host gives what is its own part of the record."""
        self._expect(Phase.COMMITTING)
        if self._sealed is not None:
            raise ProtocolError(f"task {self.config.task}: version {self._target} is sealed already")
        record = CommitRecord(
            generation=self.generation,
            version=self._target,
            next_version=self._next,
            outputs=self._sending.save(),
            inputs=self._receiving.save(self._target),
            sources=sources,
            parents_version=self._receiving.parents_version,
            end_of_stream_sent=self.end_of_stream_sent,
            bookkeeping=msgspec.Raw(bookkeeping),
            timers=msgspec.Raw(timers),
        )
        self._sealed = self._record_header(Kind.COMMIT, self._target), record
        return self._sealed

    @property
    def local(self) -> LocalCheckpoint | None:
        """The last commit that counts, as read so far: what belongs into the batch that applies it."""
        return self._changelog.local

    def holding_up(self) -> list[tuple[SSP, int]]:
        """Whom the next version waits for: input partitions and producers that have not closed it."""
        return self._receiving.holding_up()

    # -- instructions -------------------------------------------------------------------------------------

    def take_generation(self) -> Instruction:
        """See ``TakeGeneration``."""
        return TakeGeneration()

    def append_abort(self) -> Instruction:
        """The fence: first record of a generation."""
        record = AbortRecord(generation=self.generation, writer=self._writer)
        return AppendAbort(self._record_header(Kind.ABORT, self.version), record)

    def read_changelog(self) -> Instruction:
        """Through the own abort, or what came since the last reading through the own commit."""
        return ReadChangelog(self._read_from, self._read_to)

    def resume(self) -> Instruction:
        """Take up the record."""
        return Resume(self._changelog.record, self._receiving.positions())

    def send_restores(self) -> Instruction:
        """Tell every downstream partition what holds. The label is chosen here, until the next commit."""
        self.label = self._first_label()
        self._sending.label = self.label
        record = self._changelog.record
        return SendControl(self._sending.restores(self.version, record.generation if record else 0, self.label))

    def scan_ahead(self) -> Instruction:
        """Learn what is void before processing any of it."""
        return ScanAhead(self._receiving.positions())

    def feed(self) -> Instruction:
        """Empty the lowest message buffer."""
        return Feed(self._feeding)

    def finish(self) -> Instruction:
        """Fire what is open, send end-of-stream."""
        return Finish()

    def flush_outputs(self) -> Instruction:
        """Nothing may be committed, or called over, that others might never see."""
        return FlushOutputs()

    def append_changes(self) -> Instruction:
        """The changes go before the commit that makes them count."""
        return AppendChanges(self._target)

    def append_commit(self) -> Instruction:
        """The moment of truth."""
        return AppendCommit(self._target, self._next)

    def write_local(self) -> Instruction:
        """Local state follows the changelog, never the other way round."""
        local = self._changelog.local
        if local is None:
            raise ProtocolError(f"task {self.config.task}: no commit to write")
        return WriteLocal(local)

    def send_checkpoints(self) -> Instruction:
        """Only a commit that counts is announced."""
        return SendControl(self._sending.checkpoints(self._target, self._next))

    def report(self) -> Instruction:
        """What the commit covers is needed no more."""
        record = self._changelog.record
        inputs = record.inputs if record else ()
        return Report(self.version, tuple((_ssp(entry), entry.offset) for entry in inputs))

    def end(self) -> Instruction:
        """Over."""
        return End()

    def stop(self) -> Instruction:
        """Another incarnation has the right to this task."""
        return Stop(self._changelog.verdict(self.config.task))

    # -- guards -------------------------------------------------------------------------------------------

    def always(self) -> bool:
        """The last alternative."""
        return True

    def fenced(self) -> bool:
        """A newer generation, or a second writer of the own one, has been seen."""
        return self._changelog.lost

    def ended(self) -> bool:
        """The final commit is made."""
        return self._next == END_VERSION

    def buffer_due(self) -> bool:
        """Early arrivals whose time has come: before the commit of M, and those of M + 1 right behind it."""
        lowest = self._receiving.lowest_buffered
        return lowest is not None and lowest <= max(self._receiving.threshold, self._receiving.closed_through)

    def finish_due(self) -> bool:
        """Once in the life of a task, through all its incarnations."""
        return self._inputs_ended and not self.end_of_stream_sent

    def final_due(self) -> bool:
        """Nothing will come any more, and nothing that came can be taken back."""
        return self.end_of_stream_sent and self._inputs_ended and self._timer_driven

    def version_closed(self) -> bool:
        """All upstream tasks have closed the next version, maybe several."""
        return self.version < self._receiving.closed_through < END_VERSION

    def clock_passed(self) -> bool:
        """The interval is over; an idle task commits too, for others wait for it."""
        return self._timer_driven and self._clock > self.label

    @property
    def _timer_driven(self) -> bool:
        return self._receiving.closed_through == END_VERSION

    # -- decisions and effects --------------------------------------------------------------------------------

    def nothing(self) -> None:
        """No effect."""

    def decide_feed(self) -> None:
        """Feed in the order of labels."""
        lowest = self._receiving.lowest_buffered
        self._feeding = -1 if lowest is None else lowest

    def decide_command(self) -> None:
        """Commit what is closed."""
        closed = self._receiving.closed_through
        self._target, self._next = closed, closed + 1

    def decide_timer(self) -> None:
        """Commit what was labelled, and choose the next label by the clock."""
        self._target = max(self.label, self._receiving.highest_label)
        self._next = max(self._target + 1, self._clock)

    def decide_final(self) -> None:
        """The last version is not below anything that it is made from."""
        receiving = self._receiving
        self._target = max(self.version + 1, self.label, receiving.highest_label, receiving.parents_version)
        self._next = END_VERSION

    def fed(self) -> None:
        """The buffer was processed."""
        self._receiving.feed(self._feeding)

    def finished(self) -> None:
        """Goes into the record: a restart must not fire or send it again."""
        self.end_of_stream_sent = True

    def adopt_record(self) -> None:
        """Go on from the last commit that counts."""
        self._read_from = self._read_to
        if self.fenced():
            return
        if self._changelog.generation != self.generation:
            raise ProtocolError(
                f"task {self.config.task}: the changelog was not read through the own abort",
                hint="local state from behind the changelog's end is of another changelog; throw it away, rebase",
            )
        if self._changelog.seq != ABORT_SEQ:
            raise ProtocolError(
                f"task {self.config.task}: generation {self.generation}, which it was given, has been used before",
                hint="the app's metadata (metadata.db in its home) was lost, or is older than its streams: restore it "
                "from a backup, or begin anew with another home",
            )
        record = self._changelog.record
        self.version = record.version if record else -1
        self._next = record.next_version if record else 0
        self.end_of_stream_sent = self._inputs_ended = bool(record and record.end_of_stream_sent)
        self._sending.load(record.outputs if record else ())
        self._receiving.load(record.inputs if record else (), self.version, record.parents_version if record else -1)

    def check_commit(self) -> None:
        """The commit happened iff it counts."""
        self._read_from = self._read_to
        local = self._changelog.local
        found = (local.generation, local.version) if local else None
        if not self.fenced() and found != (self.generation, self._target):
            raise ProtocolError(f"task {self.config.task}: the own commit was not found in the changelog")

    def committed(self) -> None:
        """The version is a fact; the next one begins."""
        self.version = self._target
        self.label = self._sending.label = self._next
        self._sealed = None
        self._receiving.commit(self.version)

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
        return max(self.version + 1, self._clock) if self._timer_driven else self.version + 1

    def _begin_replay(self, base: LocalCheckpoint | None) -> None:
        self._changelog = self.changelog_class(self.config.producer, self._writer, base)
        self._changelog.owned_by(self.generation)
        self._read_from = base.offset if base else None

    def _record_header(self, kind: Kind, version: int) -> Header:
        self._changelog_seq += 1
        return Header(kind, self.config.producer, self.generation, version, self._changelog_seq)

    def _expect(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ProtocolError(f"task {self.config.task}: not while {self.phase.value}")


def _ssp(entry: InputEntry) -> SSP:
    return SSP(StreamId.parse(entry.stream), entry.partition)
