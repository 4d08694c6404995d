"""The methods that the tables of ``protocol`` name: one task's instructions, guards, decisions and effects. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headrace.checkpoint.cadence import Cadence
from headrace.checkpoint.changelog import ABORT_SEQ, Changelog
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
    Found,
    Instruction,
    Keep,
    ReadChangelog,
    ReleaseOrders,
    Report,
    Resume,
    ScanAhead,
    SendControl,
    Stop,
    TakeGeneration,
    WriteLocal,
)
from headrace.checkpoint.protocol import DECISIONS, STEPS, Phase
from headrace.checkpoint.record import AbortRecord, CommitRecord, InputEntry
from headrace.checkpoint.task_orders import TaskOrders
from headrace.core.errors import ProtocolError
from headrace.core.frame import END_VERSION, Header, Kind
from headrace.core.ids import SSP, Offset, StreamId, TaskName


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """The part of the plan that the machine needs.

    ``inputs`` maps each intermediate input partition to all producers that write it, of every upstream stage.
    ``outputs`` maps each framed stream that the task writes, intermediate or output, to its number of partitions. For
    outputs of which it writes only one partition, ``own`` gives that partition.
    ``founded`` is the first commit of a task of a new timeline, taken over from a savepoint.
    """

    task: TaskName
    task_count: int
    producer: int
    inputs: Mapping[SSP, Collection[int]] = field(default_factory=dict)
    outputs: Mapping[StreamId, int] = field(default_factory=dict)
    own: Mapping[StreamId, int] = field(default_factory=dict)
    interval_ms: int = 1000
    exactly_once: bool = True
    founded: CommitRecord | None = None


class TableMethods:
    """The state of one task's protocol, and the methods that the rows of the tables name.

    The tables and the classes of the parts are class attributes, so that tests can run a broken protocol.
    """

    judge_class = FrameJudge
    stamper_class = FrameStamper
    changelog_class = Changelog
    orders_class = TaskOrders
    cadence_class = Cadence
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
            config.task, config.task_count, config.producer, config.outputs, config.exactly_once, config.own
        )
        self._changelog = self.changelog_class(config.producer, writer, None)
        self._orders = self.orders_class()
        self._cadence = self.cadence_class(config.interval_ms)
        self._kept: int | None = None
        self._restart_soon = False
        self._founding = False
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

    # -- instructions -------------------------------------------------------------------------------------

    def take_generation(self) -> Instruction:
        """Start over with a new generation."""
        return TakeGeneration()

    def append_abort(self) -> Instruction:
        """Append the abort record, the first record of a generation, which fences off older generations."""
        record = AbortRecord(generation=self.generation, writer=self._writer)
        return AppendAbort(self._record_header(Kind.ABORT, self.version), record)

    def read_changelog(self) -> Instruction:
        """At a start, read from the base through the own abort; at a commit, continue through the own commit."""
        return ReadChangelog(self._read_from, self._read_to)

    def resume(self) -> Instruction:
        """Restore the host's part of the last commit."""
        return Resume(self._changelog.record, self._judge.positions(), self._orders.due)

    def found(self) -> Instruction:
        """Take over the savepoint's state as the first commit."""
        return Found()

    def send_restores(self) -> Instruction:
        """Announce the committed seq to every downstream partition, and choose the label until the next commit."""
        self.label = self._first_label()
        self._stamper.label = self.label
        return SendControl(self._stamper.restores(self.version, self.label))

    def scan_ahead(self) -> Instruction:
        """Learn which frames are void before processing any of them."""
        return ScanAhead(self._judge.positions())

    def feed(self) -> Instruction:
        """Process the buffered frames of the lowest label."""
        return Feed(self._feeding, self._judge.held(self._feeding))

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
        """Append the commit record, the single step that decides whether the version happened."""
        return AppendCommit(self._commit_version, self._next_version)

    def write_local(self) -> Instruction:
        """Update local state, which always follows the changelog."""
        local = self._changelog.local
        if local is None:
            raise ProtocolError(f"task {self.config.task}: no commit to write")
        return WriteLocal(local)

    def send_checkpoints(self) -> Instruction:
        """Announce the commit downstream, now that it is known to count."""
        return SendControl(self._stamper.checkpoints(self._commit_version, self._next_version))

    def report(self) -> Instruction:
        """Report the input frames that the commit covers, which are no longer needed."""
        record = self._changelog.record
        inputs = record.inputs if record else ()
        return Report(self.version, tuple((_ssp(entry), entry.offset) for entry in inputs))

    def release_orders(self) -> Instruction:
        """Tell the coordinator which startpoints a commit covers, so that it may delete them."""
        return ReleaseOrders(self._orders.covered)

    def keep(self) -> Instruction:
        """Keep the state of the cut, which the local database holds regardless of later frames."""
        return Keep(self.version)

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
        """Whether the changelog shows a newer generation, or a second writer with this task's generation."""
        return self._changelog.replaced

    def ended(self) -> bool:
        """Whether the last commit was the final one."""
        return self._next_version == END_VERSION

    def founding(self) -> bool:
        """Whether the task still has to take over a savepoint's state, or is committing it."""
        return self._founding

    def keep_due(self) -> bool:
        """Whether the last commit is the cut, contains all that belongs to it, and the host hasn't kept it yet."""
        return self.version == self._cadence.cut and not self.cut_kept and self.whole

    def covered(self) -> bool:
        """Whether a commit covers startpoints that the coordinator still has."""
        return bool(self._orders.covered)

    def restart_due(self) -> bool:
        """Whether the task must start over after a commit."""
        return self._restart_soon

    def buffer_due(self) -> bool:
        """Whether a buffered label is in turn: labels up to M before the commit of M, and M + 1 right after it."""
        lowest = self._judge.lowest_buffered
        return lowest is not None and lowest <= max(self._judge.threshold, self._closed_through)

    def finish_due(self) -> bool:
        """Whether all inputs have ended. This happens once in the life of a task, across all incarnations."""
        return self._inputs_ended and not self.end_of_stream_sent

    def final_due(self) -> bool:
        """Whether nothing more will arrive, and nothing that arrived can become void."""
        return self.end_of_stream_sent and self._inputs_ended and self._timer_driven

    def version_closed(self) -> bool:
        """Whether all upstream tasks that aren't set aside have closed the next version, or several.

        The task's own label is the next version, except if it was timer-driven until its upstream tasks changed to
        exactly-once. It has announced that label, so it waits until they have closed it, because labels don't fall.
        """
        return self.label <= self._closed_through < END_VERSION

    def clock_passed(self) -> bool:
        """Whether the interval is over. An idle task commits too, because downstream tasks wait for its versions."""
        return self._timer_driven and self._cadence.clock > self.label

    @property
    def cut_missed(self) -> bool:
        """Whether the task has passed over the cut, so that its state wouldn't match the state of others."""
        cut = self._cadence.cut
        passed = cut is not None and (self.version > cut or (self.version == cut and not self.whole))
        return passed and not self.cut_kept

    @property
    def cut_kept(self) -> bool:
        """Whether the host has kept the state of the cut. A task that ended before the cut has no later state."""
        cut, kept = self._cadence.cut, self._kept
        if cut is None or kept is None:
            return False
        return kept == cut or (self.phase is Phase.OVER and kept == self.version < cut)

    @property
    def _closed_through(self) -> int:
        """Return M, but not above a cut, and below it while an upstream task is set aside: a cut needs all."""
        judge = self._judge
        return self._cadence.closed(self.version, judge.committable, whole=judge.waits_for_all)

    @property
    def whole(self) -> bool:
        """Whether the last commit contains all that upstream tasks had sent up to its version."""
        record = self._changelog.record
        entries = record.inputs if record else ()
        return all(parent.version >= self.version for entry in entries for parent in entry.parents)

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
        closed = self._closed_through
        self._commit_version, self._next_version = closed, closed + 1

    def decide_timer(self) -> None:
        """Choose the highest label in use as the version to commit, and the next label by the clock."""
        self._commit_version, self._next_version = self._cadence.by_timer(self.label, self._judge.highest_label)

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
                hint="a base past the end belongs to another changelog: the host must discard it and call rebase",
            )
        if self._changelog.seq != ABORT_SEQ:
            raise ProtocolError(
                f"task {self.config.task}: generation {self.generation} was already used",
                hint="the app's metadata (metadata.db in its home) was lost, or is older than its streams: restore it "
                "from a backup, or start over with another home",
            )
        self._adopt(self._changelog.record)
        founded = self.config.founded
        self._founding = founded is not None and self._changelog.record is None
        if founded is not None and self._founding:
            self._commit_version, self._next_version = founded.version, founded.next_version

    def _adopt(self, record: CommitRecord | None) -> None:
        self._orders.adopt(record)
        self.version = record.version if record else -1
        self._next_version = record.next_version if record else 0
        self.end_of_stream_sent = self._inputs_ended = bool(record and record.end_of_stream_sent)
        self._stamper.load(record.outputs if record else ())
        self._judge.load(record.inputs if record else (), self.version, record.parents_version if record else -1)

    def check_commit(self) -> None:
        """Check that the own commit counts, because only then did it happen."""
        self._read_from = self._read_to
        local = self._changelog.local
        found = (local.generation, local.version) if local else None
        if not self.fenced() and found != (self.generation, self._commit_version):
            raise ProtocolError(f"task {self.config.task}: didn't find its own commit in the changelog")

    def stored(self) -> None:
        """Continue from the state that was taken over, which is committed and in the local database."""
        if self._founding:
            self._sealed = None
            self._adopt(self._changelog.record)

    def resumed(self) -> None:
        """Note that the host has its part of the last commit."""
        self._founding = False

    def kept(self) -> None:
        """Note that the host has kept the state of the cut."""
        self._kept = self._cadence.cut  # the version of a task that has ended is lower

    def released(self) -> None:
        """Note that the coordinator knows the covered startpoints."""
        self._orders.released()

    def committed(self) -> None:
        """Start the next version."""
        self._orders.committed()
        self.version = self._commit_version
        self.label = self._stamper.label = self._next_version
        self._sealed = None
        self._judge.commit(self.version)

    def _first_label(self) -> int:
        return END_VERSION if self.ended() else self._cadence.first_label(self.version, timer_driven=self._timer_driven)

    def _record_header(self, kind: Kind, version: int) -> Header:
        self._changelog_seq += 1
        return Header(kind, self.config.producer, self.generation, version, self._changelog_seq)


def _ssp(entry: InputEntry) -> SSP:
    return SSP(StreamId.parse(entry.stream), entry.partition)
