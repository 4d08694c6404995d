"""Which records of a changelog count: the fence that lets one incarnation of a task win, as pure state.

Any number of incarnations may append to a task's changelog, some of them dead or believed dead, and what they
appended may land late and more than once. One rule makes a single history of it:

    *a record counts iff its (generation, seq) is above that of every record before it.*

A generation begins with its abort record (seq 1), so that nothing of an older generation counts behind it,
and what the older one had not committed by then never will be. A commit happened iff it counts.

``Changelog`` is fed every record in order. While a task starts it says what to do with each (``ReplayStep``);
afterwards a committing task feeds what landed since, to see whether its commit counts and whether a newer
generation has taken over.
"""

from __future__ import annotations

from enum import Enum

from headrace.checkpoint.record import CommitRecord, LocalCheckpoint, decode_abort, decode_commit
from headrace.core.errors import FencedError, HeadraceError, ProtocolError
from headrace.core.frame import Bytes, Header, Kind
from headrace.core.ids import Offset, TaskName

ABORT_SEQ = 1
"""A generation's first record is its abort."""


class ReplayStep(Enum):
    """What to do with a changelog record while state is being restored."""

    SKIP = "skip"
    """It says nothing about state, or doesn't count."""

    HOLD = "hold"
    """A change: keep it until its fate is known."""

    APPLY = "apply"
    """A commit: apply what is held, in order, together with ``Changelog.local`` in one batch."""

    FORGET = "forget"
    """A fence: drop what is held."""

    MISFIT = "misfit"
    """The local state isn't this changelog's: throw it away and begin again from an older base."""


class Changelog:
    """One task's changelog as read so far, from ``base`` (None: from its very beginning)."""

    def __init__(self, producer: int, writer: str, base: LocalCheckpoint | None) -> None:
        self.generation = 0
        self.seq = 0
        self.local = base
        self.record: CommitRecord | None = None
        self.duplicate: str | None = None
        self._producer = producer
        self._writer = writer
        self._base = base
        self._own_generation = 0

    def owned_by(self, generation: int) -> None:
        """From now on the reader is this generation: an abort of it by another writer is looked out for."""
        self._own_generation = generation

    def take(self, offset: Offset, header: Header, body: Bytes) -> ReplayStep:
        """Judge the next record."""
        if header.producer != self._producer:
            raise ProtocolError(
                f"changelog record at offset {offset} is of producer {header.producer}, "
                f"but this is the changelog of producer {self._producer}",
                hint="two apps share a changelog stream; give one of them another app id",
            )
        if self._base is not None:
            return self._take_base(offset, header, body)
        if header.kind is Kind.ABORT:
            self._look_for_duplicate(header, body)
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
                raise ProtocolError(f"changelog record at offset {offset} is a {header.kind.name} frame")

    @property
    def lost(self) -> bool:
        """The owner has lost its right: a newer generation counts, or a second writer has the own one."""
        return self.generation > self._own_generation or self.duplicate is not None

    def verdict(self, task: TaskName) -> HeadraceError:
        """Why the owner stops."""
        own = self._own_generation
        if self.duplicate is not None:
            return ProtocolError(
                f"task {task}: generation {own} was given twice, also to writer {self.duplicate}",
                hint="the metadata store must issue generations by compare-and-set",
            )
        return FencedError(
            f"task {task}: generation {own} was replaced by generation {self.generation}",
            hint="nothing to do: the newer one has taken over",
        )

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
            return True
        if self.generation == 0:
            raise ProtocolError(
                f"the changelog begins at offset {offset} in the midst of generation {header.generation}",
                hint="it was trimmed behind a snapshot; restore from that snapshot",
            )
        raise ProtocolError(
            f"changelog record at offset {offset} is {header.kind.name} ({header.generation}, #{header.seq}) "
            f"after ({self.generation}, #{self.seq})",
            hint="records are missing: the changelog was damaged or is written by something else",
        )

    def _adopt(self, offset: Offset, record: CommitRecord) -> None:
        if self.record is not None and record.version <= self.record.version:
            raise ProtocolError(
                f"the commit at changelog offset {offset} is of version {record.version}, "
                f"the one before it of {self.record.version}"
            )
        self.record = record
        self.local = LocalCheckpoint(offset, record.generation, record.version)

    def _look_for_duplicate(self, header: Header, body: Bytes) -> None:
        if header.generation == self._own_generation:
            writer = decode_abort(body).writer
            if writer != self._writer:
                self.duplicate = writer
