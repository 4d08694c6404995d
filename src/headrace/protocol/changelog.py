"""Decide which records of a changelog count, so that only one incarnation of a task wins. Pure.

Any number of incarnations may append to a task's changelog, some of them dead or presumed dead. Their records may
arrive late and more than once. One rule turns the log into a single history:

    *a record counts iff its (generation, seq) is above that of every record before it.*

A generation starts with its abort record (seq 1). After it, no record of an older generation counts, so the older one
can commit nothing more. A commit happened iff it counts.

A power cut may lose records that weren't on the disk, but leave later ones. A generation is on the disk through its
last commit before it appends anything else. So if records are missing, the later records of their generation, up to one
commit, weren't on the disk either, and don't count either. Any record after that commit proves damage.
"""

from __future__ import annotations

from enum import Enum

from headrace.core.errors import FencedError, HeadraceError, ProtocolError
from headrace.core.frame import Bytes, Header, Kind
from headrace.core.ids import Offset, TaskName
from headrace.protocol.record import CommitRecord, LocalCheckpoint, decode_abort, decode_commit

ABORT_SEQ = 1


class ReplayStep(Enum):
    """What to do with a changelog record while state is replayed."""

    SKIP = "skip"
    """The record doesn't affect state, or doesn't count: ignore it."""
    HOLD = "hold"
    """A change: keep it until a commit or an abort follows."""
    APPLY = "apply"
    """A commit: apply the held changes in order, together with ``Changelog.local``, in one batch."""
    FORGET = "forget"
    """An abort: drop the held changes."""
    MISFIT = "misfit"
    """The local state doesn't belong to this changelog: throw it away and replay from an older base."""


class Changelog:
    """One task's changelog as read so far, record by record, from the commit ``base`` (None: from its beginning)."""

    def __init__(self, producer: int, writer: str, base: LocalCheckpoint | None) -> None:
        self.generation = 0
        self.seq = 0
        self.local = base
        self.record: CommitRecord | None = None
        self.second_writer: str | None = None
        self._producer = producer
        self._writer = writer
        self._base = base
        self._own_generation = 0
        self._stray: Header | None = None
        """The last record of this generation after a gap."""

    def owned_by(self, generation: int) -> None:
        self._own_generation = generation

    def take(self, offset: Offset, header: Header, body: Bytes) -> ReplayStep:
        if header.producer != self._producer:
            raise ProtocolError(
                f"the changelog record at offset {offset} is from producer {header.producer}, "
                f"but this is the changelog of producer {self._producer}",
                hint="two apps share a changelog stream: give one of them another app id",
            )
        if self._base is not None:
            return self._take_base(offset, header, body)
        if header.kind is Kind.ABORT:
            self._detect_second_writer(header, body)
        if not self._counts(offset, header):
            return ReplayStep.SKIP
        self.generation, self.seq = header.generation, header.seq
        match header.kind:
            case Kind.CHANGE:
                return ReplayStep.HOLD
            case Kind.ABORT:
                return ReplayStep.FORGET
            case Kind.COMMIT:
                self._adopt(offset, decode_commit(body))
                return ReplayStep.APPLY
            case _:
                raise ProtocolError(
                    f"the changelog record at offset {offset} is a {header.kind.name} frame, which belongs in a stream",
                    hint="another program writes to this changelog",
                )

    @property
    def replaced(self) -> bool:
        return self.generation > self._own_generation or self.second_writer is not None

    def stop_reason(self, task: TaskName) -> HeadraceError:
        own = self._own_generation
        if self.second_writer is not None:
            return ProtocolError(
                f"task {task}: generation {own} was issued twice, also to writer {self.second_writer}",
                hint="the app's metadata (metadata.db in its home) was lost, or is older than its streams: restore it "
                "from a backup. A metadata store of your own must issue generations by compare-and-set",
            )
        hint = "ignore this: the newer generation has taken over"
        return FencedError(f"task {task}: generation {own} was replaced by generation {self.generation}", hint=hint)

    def _take_base(self, offset: Offset, header: Header, body: Bytes) -> ReplayStep:
        base, self._base = self._base, None
        found = (offset, header.generation, header.version)
        if header.kind is not Kind.COMMIT or base is None or found != (base.offset, base.generation, base.version):
            return ReplayStep.MISFIT
        self.generation, self.seq = header.generation, header.seq
        self.record = decode_commit(body)
        return ReplayStep.SKIP

    def _counts(self, offset: Offset, header: Header) -> bool:
        if (header.generation, header.seq) <= (self.generation, self.seq):
            return False
        begins = header.generation > self.generation
        expected = ABORT_SEQ if begins else self.seq + 1
        if header.seq == expected and (not begins or header.kind is Kind.ABORT):
            self._stray = None
            return True
        if not begins and self._strays(header):
            return False
        if self.generation == 0:
            what = f"the changelog starts at offset {offset} in the middle of generation {header.generation}"
            raise ProtocolError(what, hint="its beginning was trimmed after a snapshot; restore from that snapshot")
        raise ProtocolError(
            f"the changelog record at offset {offset} is {header.kind.name} ({header.generation}, #{header.seq}) "
            f"after ({self.generation}, #{self.seq}): records are missing",
            hint="the changelog was damaged, or another program writes to it",
        )

    def _strays(self, header: Header) -> bool:
        """Return whether a record after a gap may have been appended when nothing since the gap was on the disk yet."""
        last = self._stray
        if last is not None and header.seq <= last.seq:
            return True
        if last is not None and last.kind is Kind.COMMIT:
            return False
        self._stray = header
        return True

    def _adopt(self, offset: Offset, record: CommitRecord) -> None:
        if self.record is not None and record.version <= self.record.version:
            raise ProtocolError(
                f"the commit at changelog offset {offset} has version {record.version}, "
                f"but the commit before it has {self.record.version}",
                hint="versions must rise: this is a bug in the task that wrote the changelog",
            )
        self.record = record
        self.local = LocalCheckpoint(offset, record.generation, record.version)

    def _detect_second_writer(self, header: Header, body: Bytes) -> None:
        if header.generation == self._own_generation:
            writer = decode_abort(body).writer
            if writer != self._writer:
                self.second_writer = writer
