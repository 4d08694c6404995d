"""The protocol machine of one task. ``protocol`` explains it, and holds its tables and the host's contract."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.checkpoint.changelog import ReplayStep
from headrace.checkpoint.instructions import (
    Forget,
    Instruction,
    Verdict,
)
from headrace.checkpoint.protocol import Phase, Step
from headrace.checkpoint.record import CommitRecord, LocalCheckpoint, SourceEntry
from headrace.checkpoint.table_methods import TableMethods
from headrace.core.errors import ProtocolError
from headrace.core.frame import Bytes, ControlMessage, Header, Kind, Restore
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.startpoint import Order


class ProtocolMachine(TableMethods):
    """One incarnation of a task. ``version`` is C; ``label`` is the label of outgoing frames."""

    # -- events -------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Set the wall clock. It may jump in either direction."""
        self._cadence.tick(now_ms)
        self._woken = True

    def start(self, generation: int, base: LocalCheckpoint | None, orders: Iterable[Order] = ()) -> None:
        """Start, or restart after a rollback, as ``generation``, with the startpoints that are still to be applied.

        ``base`` is the commit that the local state holds.
        """
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
                f"task {self.config.task}: received a frame before the instruction was performed ({self.phase.value})"
            )
        verdict = self._judge.receive(ssp, offset, after, header, control)
        if verdict is Verdict.ROLLBACK:
            self.rollbacks += 1
            self.phase = Phase.DOWN
        return verdict

    def set_aside(self) -> bool:
        """Stop waiting for the upstream tasks that are late. Return False if nothing can be committed without them.

        If that undoes frames that were processed, the task rolls back, as after ``Verdict.ROLLBACK``.
        """
        self._expect("set_aside", Phase.RUNNING)
        aside, undoes = self._judge.set_aside()
        if undoes:
            self.rollbacks += 1
            self.phase, self._current = Phase.DOWN, None
        self._woken = True
        return aside

    def inputs_ended(self) -> None:
        """Note that every source has ended and every end-of-stream has been processed."""
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
        self._expect("stamp_change", Phase.FOUNDING, Phase.RUNNING, Phase.FEEDING, Phase.FINISHING, Phase.APPENDING)
        return self._record_header(Kind.CHANGE, self.label)

    def seal(
        self,
        *,
        sources: tuple[SourceEntry, ...] = (),
        bookkeeping: bytes = b"null",
    ) -> tuple[Header, CommitRecord]:
        """Return header and record of the commit frame that ``AppendCommit`` asks for.

        ``sources`` and ``bookkeeping`` are the host's parts of the record; the latter is any JSON.
        """
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
        """The record of that commit."""
        return self._changelog.record

    @property
    def local(self) -> LocalCheckpoint | None:
        """The last commit read so far that counts. It is written in the same batch as the changes it commits."""
        return self._changelog.local

    @property
    def lagging(self) -> bool:
        """Whether upstream tasks are late with a version that others have closed."""
        return self.phase is Phase.RUNNING and self._judge.lagging

    def late(self) -> list[tuple[SSP, int]]:
        """Return the (input partition, producer) pairs that the next commit waits for, of those not set aside."""
        return self._judge.late()

    def waiting_for(self) -> list[tuple[SSP, int]]:
        """Return the (input partition, producer) pairs that haven't closed the next version, set aside or not."""
        return self._judge.waiting_for()

    def early(self) -> dict[SSP, Offset]:
        """Return the offset of the first frame in the version buffer, of each input partition that has any.

        Frames of upstream tasks that are set aside don't count: they may be held for long.
        """
        return self._judge.early()

    # -- inside ---------------------------------------------------------------------------------------------

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

    def _begin_replay(self, base: LocalCheckpoint | None) -> None:
        self._changelog = self.changelog_class(self.config.producer, self._writer, base)
        self._changelog.owned_by(self.generation)
        self._read_from = base.offset if base else None

    def _expect(self, call: str, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ProtocolError(
                f"task {self.config.task}: {call} was called while {self.phase.value}", hint="this is a bug in the host"
            )
