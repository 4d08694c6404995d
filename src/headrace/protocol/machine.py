"""The protocol machine of one task, with the methods that the tables name. Pure. ``protocol`` explains it.

Versions are milliseconds of the shared clock. A timer-driven task commits at multiples of the checkpoint interval,
so tasks with equal intervals choose equal labels.

A startpoint is applied exactly once, because the commit record names the last one applied to each source partition.
An order that the record names is *covered*: it is only released, and the coordinator deletes it. An order that no
record names is *due*: each start and each rollback applies it again, until a commit counts. So it doesn't matter when
a task dies, or whether the coordinator learns that an order was released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import ProtocolError
from headrace.core.frame import END_VERSION, Bytes, ControlMessage, Header, Kind, Restore
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.protocol import instructions
from headrace.protocol.changelog import ABORT_SEQ, Changelog, ReplayStep
from headrace.protocol.frame_judge import FrameJudge
from headrace.protocol.frame_stamper import FrameStamper
from headrace.protocol.instructions import Instruction
from headrace.protocol.protocol import Decision, Phase, Step
from headrace.protocol.record import AbortRecord, CommitRecord, LocalCheckpoint, SourceEntry
from headrace.systems.startpoints import Order

_Result = TypeVar("_Result")


class Cadence:
    """The clock and the cut of one task. ``clock`` is the beginning of the present interval; ``cut`` may be None."""

    def __init__(self, interval_ms: int) -> None:
        self.clock = 0
        self.cut: int | None = None
        self._interval = interval_ms

    def tick(self, now_ms: int) -> None:
        """Set the wall clock. Labels are milliseconds, so they rise even if the next start has a longer interval."""
        self.clock = now_ms - now_ms % self._interval

    def closed(self, version: int, closed: int, *, whole: bool = True) -> int:
        """The highest version through ``closed`` that may follow: not above the cut, and the cut only if ``whole``."""
        if self.cut is None or closed == END_VERSION or version >= self.cut:
            return closed
        return min(closed, self.cut if whole else self.cut - 1)

    def timely(self, version: int) -> int:
        above = (version // self._interval + 1) * self._interval
        label = max(above, self.clock)
        return self.cut if self.cut is not None and version < self.cut < label else label


class TaskOrders:
    """The orders of one task, from a start or rollback to the next: those to apply, and those that a commit covers."""

    def __init__(self) -> None:
        self.due: tuple[Order, ...] = ()
        self.covered: tuple[Order, ...] = ()
        self._applied: dict[tuple[str, int], str] = {}

    def begin(self, orders: Iterable[Order]) -> None:
        self.due, self.covered = tuple(orders), ()

    def adopt(self, record: CommitRecord | None) -> None:
        sources = record.sources if record is not None else ()
        self._applied = {(entry.stream, entry.partition): entry.startpoint for entry in sources if entry.startpoint}
        granted = self.due
        self.covered = tuple(order for order in granted if self._covers(order))
        self.due = tuple(order for order in granted if not self._covers(order))
        self._applied |= {(order.stream, order.partition): order.startpoint.id for order in self.due}

    def stamp(self, sources: Iterable[SourceEntry]) -> tuple[SourceEntry, ...]:
        applied = ((entry, self._applied.get((entry.stream, entry.partition), "")) for entry in sources)
        return tuple(msgspec.structs.replace(entry, startpoint=id_) if id_ else entry for entry, id_ in applied)

    def committed(self) -> None:
        self.covered, self.due = (*self.covered, *self.due), ()

    def released(self) -> None:
        self.covered = ()

    def _covers(self, order: Order) -> bool:
        return self._applied.get((order.stream, order.partition)) == order.startpoint.id


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """The part of the plan that the machine needs.

    ``inputs`` are the intermediate input partitions with all producers that write them, ``outputs`` the framed streams
    with their partition counts; ``own`` is the only one that it writes of some. ``founded``: a first commit to take
    over.
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
    """The state of one task's protocol. Tables and parts are class attributes, so that tests can break the protocol."""

    judge_class = FrameJudge
    stamper_class = FrameStamper
    changelog_class = Changelog
    orders_class = TaskOrders
    cadence_class = Cadence

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

    # -- instructions -------------------------------------------------------------------------------------
    def take_generation(self) -> Instruction:
        return instructions.TakeGeneration()

    def append_abort(self) -> Instruction:
        """Append the first record of a generation, which fences off older generations."""
        record = AbortRecord(generation=self.generation, writer=self._writer)
        return instructions.AppendAbort(self._record_header(Kind.ABORT, self.version), record)

    def read_changelog(self) -> Instruction:
        """At a start, read from the base through the own abort; at a commit, continue through the own commit."""
        return instructions.ReadChangelog(self._read_from, self._read_to)

    def resume(self) -> Instruction:
        return instructions.Resume(self._changelog.record, self._judge.positions(), self._orders.due)

    def found(self) -> Instruction:
        return instructions.Found()

    def send_restores(self) -> Instruction:
        """Announce the committed seq to every downstream partition, and choose the label until the next commit."""
        if self.ended():
            self.label = END_VERSION
        else:
            self.label = self._cadence.timely(self.version) if self._timer_driven else self.version + 1
        self._stamper.label = self.label
        return instructions.SendControl(self._stamper.restores(self.version, self.label))

    def scan_ahead(self) -> Instruction:
        """Learn which frames are void before processing any of them."""
        return instructions.ScanAhead(self._judge.positions())

    def feed(self) -> Instruction:
        return instructions.Feed(self._feeding, self._judge.held(self._feeding))

    def finish(self) -> Instruction:
        return instructions.Finish()

    def flush_outputs(self) -> Instruction:
        """Wait until outputs are acknowledged: a commit, or the end, must not cover frames that may still be lost."""
        return instructions.FlushOutputs()

    def append_changes(self) -> Instruction:
        return instructions.AppendChanges(self._commit_version)

    def append_commit(self) -> Instruction:
        """Append the commit record, the single step that decides whether the version happened."""
        return instructions.AppendCommit(self._commit_version, self._next_version)

    def write_local(self) -> Instruction:
        """Update local state, which always follows the changelog."""
        local = self._changelog.local
        if local is None:
            raise ProtocolError(f"task {self.config.task}: no commit to write")
        return instructions.WriteLocal(local)

    def send_checkpoints(self) -> Instruction:
        return instructions.SendControl(self._stamper.checkpoints(self._commit_version, self._next_version))

    def report(self) -> Instruction:
        record = self._changelog.record
        inputs = record.inputs if record else ()
        return instructions.Report(
            self.version, tuple((SSP.of(entry.stream, entry.partition), entry.offset) for entry in inputs)
        )

    def release_orders(self) -> Instruction:
        return instructions.ReleaseOrders(self._orders.covered)

    def keep(self) -> Instruction:
        """Keep the state of the cut, which the local database holds regardless of later frames."""
        return instructions.Keep(self.version)

    def end(self) -> Instruction:
        return instructions.End()

    def stop(self) -> Instruction:
        return instructions.Stop(self._changelog.stop_reason(self.config.task))

    # -- guards -------------------------------------------------------------------------------------------
    def always(self) -> bool:
        return True

    def fenced(self) -> bool:
        return self._changelog.replaced

    def ended(self) -> bool:
        return self._next_version == END_VERSION

    def founding(self) -> bool:
        return self._founding

    def keep_due(self) -> bool:
        """Whether the last commit is the cut and whole, and the host hasn't kept it yet."""
        return self.version == self._cadence.cut and not self.cut_kept and self.whole

    def covered(self) -> bool:
        return bool(self._orders.covered)

    def restart_due(self) -> bool:
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

        The label is above it if the task was timer-driven before; labels don't fall, so it waits until they have closed
        that.
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
        lowest = self._judge.lowest_buffered
        self._feeding = -1 if lowest is None else lowest

    def decide_command(self) -> None:
        closed = self._closed_through
        self._commit_version, self._next_version = closed, closed + 1

    def decide_timer(self) -> None:
        """Choose the highest label in use as the version to commit, and the next label by the clock."""
        self._commit_version = max(self.label, self._judge.highest_label)
        self._next_version = self._cadence.timely(self._commit_version)

    def decide_final(self) -> None:
        """Choose a final version that is not below any label or parent's version that it includes."""
        judge = self._judge
        self._commit_version = max(self.version + 1, self.label, judge.highest_label, judge.parents_version)
        self._next_version = END_VERSION

    def fed(self) -> None:
        self._judge.feed(self._feeding)

    def finished(self) -> None:
        """Note that end-of-stream was sent. The record says so, so that no restart fires windows or sends it again."""
        self.end_of_stream_sent = True

    def adopt_record(self) -> None:
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
        if self._founding:
            self._sealed = None
            self._adopt(self._changelog.record)

    def resumed(self) -> None:
        self._founding = False

    def kept(self) -> None:
        self._kept = self._cadence.cut  # the version of a task that has ended is lower

    def released(self) -> None:
        self._orders.released()

    def committed(self) -> None:
        self._orders.committed()
        self.version = self._commit_version
        self.label = self._stamper.label = self._next_version
        self._sealed = None
        self._judge.commit(self.version)

    def _record_header(self, kind: Kind, version: int) -> Header:
        self._changelog_seq += 1
        return Header(kind, self.config.producer, self.generation, version, self._changelog_seq)


T = TableMethods

_AFTER_A_COMMIT = ((T.ended, Phase.OVER), (T.restart_due, Phase.DOWN), (T.always, Phase.RUNNING))
STEPS = (
    # start and rollback
    Step(Phase.DOWN, T.take_generation, ((T.always, Phase.FENCING),)),
    Step(Phase.FENCING, T.append_abort, ((T.always, Phase.REPLAYING),)),
    Step(
        Phase.REPLAYING,
        T.read_changelog,
        ((T.fenced, Phase.STOPPED), (T.founding, Phase.FOUNDING), (T.always, Phase.RESUMING)),
        T.adopt_record,
    ),
    Step(Phase.FOUNDING, T.found, ((T.always, Phase.APPENDING),)),
    Step(Phase.RESUMING, T.resume, ((T.always, Phase.ANNOUNCING),), T.resumed),
    Step(Phase.ANNOUNCING, T.send_restores, ((T.ended, Phase.CONFIRMING), (T.always, Phase.SCANNING))),
    Step(Phase.SCANNING, T.scan_ahead, ((T.always, Phase.RUNNING),)),
    # running
    Step(Phase.KEEPING, T.keep, ((T.always, Phase.RUNNING),), T.kept),
    Step(Phase.FEEDING, T.feed, ((T.always, Phase.RUNNING),), T.fed),
    Step(Phase.FINISHING, T.finish, ((T.always, Phase.RUNNING),), T.finished),
    # commit
    Step(Phase.FLUSHING, T.flush_outputs, ((T.always, Phase.APPENDING),)),
    Step(Phase.APPENDING, T.append_changes, ((T.always, Phase.COMMITTING),)),
    Step(Phase.COMMITTING, T.append_commit, ((T.always, Phase.CHECKING),)),
    Step(Phase.CHECKING, T.read_changelog, ((T.fenced, Phase.STOPPED), (T.always, Phase.STORING)), T.check_commit),
    Step(Phase.STORING, T.write_local, ((T.founding, Phase.RESUMING), (T.always, Phase.CLOSING)), T.stored),
    Step(Phase.CLOSING, T.send_checkpoints, ((T.ended, Phase.CONFIRMING), (T.always, Phase.REPORTING)), T.committed),
    Step(Phase.CONFIRMING, T.flush_outputs, ((T.always, Phase.REPORTING),)),
    Step(Phase.REPORTING, T.report, ((T.covered, Phase.RELEASING), *_AFTER_A_COMMIT)),
    Step(Phase.RELEASING, T.release_orders, _AFTER_A_COMMIT, T.released),
    # the two ends
    Step(Phase.OVER, T.end, ()),
    Step(Phase.STOPPED, T.stop, ()),
)

DECISIONS = (
    Decision(T.keep_due, T.nothing, Phase.KEEPING, "C is the cut, is whole, and isn't kept: keep the state"),
    Decision(T.buffer_due, T.decide_feed, Phase.FEEDING, "a buffered label <= max(T, M) isn't held: feed the lowest"),
    Decision(T.finish_due, T.nothing, Phase.FINISHING, "all inputs ended, end-of-stream not sent: finish"),
    Decision(T.final_due, T.decide_final, Phase.FLUSHING, "end-of-stream sent and M = END: final commit, next END"),
    Decision(T.version_closed, T.decide_command, Phase.FLUSHING, "L <= M < END: commit M, next M + 1"),
    Decision(
        T.clock_passed, T.decide_timer, Phase.FLUSHING, "M = END and clock > label: commit, next max(V + 1, clock)"
    ),
)


class ProtocolMachine(TableMethods):
    """One incarnation of a task. ``version`` is C; ``label`` is the label of outgoing frames."""

    steps = STEPS
    decisions = DECISIONS

    def __init__(self, config: MachineConfig, writer: str) -> None:
        super().__init__(config, writer)
        self._steps = {step.phase: step for step in self.steps}

    # -- events -------------------------------------------------------------------------------------------
    def tick(self, now_ms: int) -> None:
        """Set the wall clock. It may jump in either direction."""
        self._cadence.tick(now_ms)
        self._woken = True

    def start(self, generation: int, base: LocalCheckpoint | None, orders: Iterable[Order] = ()) -> None:
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
        self._restart_soon = False
        self._orders.begin(orders)
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
            raise ProtocolError(f"task {self.config.task}: there is no instruction to perform ({self.phase.value})")
        if end is not None:
            self._read_to = end
        elif self.phase in {Phase.FENCING, Phase.COMMITTING}:
            raise ProtocolError(f"task {self.config.task}: the acknowledged offset is missing ({self.phase.value})")
        if step.effect is not None:
            self._own(step.effect)()
        self._enter(step)

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        self._expect("learn", Phase.SCANNING)
        self._judge.learn(ssp, header, restore)

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> instructions.Verdict | instructions.Forget:
        """Judge the next frame of an intermediate input; ``control`` is that of a checkpoint or restore frame."""
        if self.phase is not Phase.RUNNING or self._woken or self._judge.due:
            raise ProtocolError(
                f"task {self.config.task}: received a frame before the instruction was performed ({self.phase.value})"
            )
        verdict = self._judge.receive(ssp, offset, after, header, control)
        if verdict is instructions.Verdict.ROLLBACK:
            self.rollbacks += 1
            self.phase = Phase.DOWN
        return verdict

    def set_aside(self) -> bool:
        """Stop waiting for late upstream tasks. Return False if nothing can be committed then. May roll back."""
        self._expect("set_aside", Phase.RUNNING)
        aside, undoes = self._judge.set_aside()
        if undoes:
            self.rollbacks += 1
            self.phase, self._current = Phase.DOWN, None
        self._woken = True
        return aside

    def inputs_ended(self) -> None:
        self._inputs_ended = self._woken = True

    def abandon(self) -> None:
        """Give up everything uncommitted and restart, after an external failure."""
        if self.phase not in {Phase.OVER, Phase.STOPPED}:
            self.phase, self._current = Phase.DOWN, None

    def cut(self, version: int | None) -> None:
        """Commit exactly this version when its time comes, and ask the host to keep it. None: no cut is wanted."""
        self._cadence.cut, self._kept = version, None
        self._woken = True

    def restart_soon(self) -> None:
        """Start over, with a new generation, right after the next commit: then few frames become void."""
        self._restart_soon = True

    # -- queries ------------------------------------------------------------------------------------------
    @property
    def due(self) -> bool:
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
            instruction: Instruction = self._own(self._steps[self.phase].instruction)()
            self._current = instruction
        return self._current

    def stamp(self, stream: StreamId, partition: int, kind: Kind = Kind.USER) -> Header:
        self._expect("stamp", Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.FLUSHING)
        return self._stamper.stamp(stream, partition, kind)

    def stamp_change(self) -> Header:
        """Return the header of a change frame. Changes may be appended at any time while the task runs."""
        self._expect("stamp_change", Phase.FOUNDING, Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.APPENDING)
        return self._record_header(Kind.CHANGE, self.label)

    def seal(
        self, *, sources: tuple[SourceEntry, ...] = (), bookkeeping: bytes = b"null"
    ) -> tuple[Header, CommitRecord]:
        """Return header and record of the commit frame that ``AppendCommit`` asks for, with the host's parts."""
        self._expect("seal", Phase.COMMITTING)
        if self._sealed is not None:
            raise ProtocolError(f"task {self.config.task}: version {self._commit_version} is already sealed")
        founded = self.config.founded if self._founding else None
        if founded is not None:
            record = msgspec.structs.replace(founded, generation=self.generation)
        else:
            record = self._record(sources, bookkeeping)
        self._sealed = self._record_header(Kind.COMMIT, self._commit_version), record
        return self._sealed

    def _record(self, sources: tuple[SourceEntry, ...], bookkeeping: bytes) -> CommitRecord:
        return CommitRecord(
            generation=self.generation,
            version=self._commit_version,
            next_version=self._next_version,
            outputs=self._stamper.save(),
            inputs=self._judge.save(self._commit_version),
            sources=self._orders.stamp(sources),
            parents_version=self._judge.parents_version,
            end_of_stream_sent=self.end_of_stream_sent,
            bookkeeping=msgspec.Raw(bookkeeping),
        )

    @property
    def record(self) -> CommitRecord | None:
        return self._changelog.record

    @property
    def local(self) -> LocalCheckpoint | None:
        """The last commit read so far that counts. It is written in the same batch as the changes it commits."""
        return self._changelog.local

    @property
    def lagging(self) -> bool:
        return self.phase is Phase.RUNNING and self._judge.lagging

    def late(self) -> list[tuple[SSP, int]]:
        return self._judge.late()

    def waiting_for(self) -> list[tuple[SSP, int]]:
        return self._judge.waiting_for()

    def early(self) -> dict[SSP, Offset]:
        return self._judge.early()

    def _own(self, method: Callable[[Any], _Result]) -> Callable[[], _Result]:
        """Return a method of the tables as this machine has it, which a test may have replaced."""
        own: Callable[[], _Result] = getattr(self, method.__name__)
        return own

    def _decide(self) -> None:
        for decision in self.decisions:
            if self._own(decision.when)():
                self._own(decision.then)()
                self.phase, self._current = decision.phase, None
                return

    def _enter(self, step: Step) -> None:
        self.phase = next(phase for guard, phase in step.then if self._own(guard)())
        self._current = None
        self._woken = True

    def _begin_replay(self, base: LocalCheckpoint | None) -> None:
        self._changelog = self.changelog_class(self.config.producer, self._writer, base)
        self._changelog.owned_by(self.generation)
        self._read_from = base.offset if base else None

    def _expect(self, call: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ProtocolError(
                f"task {self.config.task}: {call} was called while {self.phase.value}", hint="this is a bug in the host"
            )
