"""What the protocol returns, and what it knows of upstream tasks. Plain data.

The docstrings of instructions say what each one asks of the host; ``protocol`` says in which order they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

import msgspec
from typing_extensions import override

from headrace.core.errors import HeadraceError, ProtocolError
from headrace.core.frame import ControlMessage, Header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.protocol.record import AbortRecord, CommitRecord, LocalCheckpoint
from headrace.systems.startpoints import Order


class Verdict(Enum):
    """What to do with a frame."""

    PROCESS = "process"
    """A user, watermark or end-of-stream frame that is in turn: process it."""
    BUFFER = "buffer"
    """An early frame: append it to the version buffer under its label (``header.version``)."""
    DROP = "drop"
    """A duplicate or void frame: ignore it."""
    TAKEN = "taken"
    """A control frame that the machine has handled: nothing else to do."""
    ROLLBACK = "rollback"
    """A processed frame has become void: drop all uncommitted state, then perform ``next_step``."""


class Forget(msgspec.Struct, frozen=True):
    """A restore frame was taken: drop the producer's buffered frames of partition ``ssp`` with a higher seq."""

    ssp: SSP
    producer: int
    seq: int


# -- instructions: start and rollback ----------------------------------------------------------------
class TakeGeneration(msgspec.Struct, frozen=True):
    """Drop uncommitted state, early and unreceived frames; get a new generation, or stop. Then call ``start``."""


class AppendAbort(msgspec.Struct, frozen=True):
    """Append this record to the changelog, wait, and call ``performed`` with the offset after it."""

    header: Header
    record: AbortRecord


class ReadChangelog(msgspec.Struct, frozen=True):
    """Read the changelog from ``start`` (None: its oldest record) to ``end``; pass each record to ``changelog``."""

    start: Offset | None
    end: Offset


class Resume(msgspec.Struct, frozen=True):
    """Restore bookkeeping and positions from the record, if any; seek inputs (None: oldest). ``orders`` override."""

    record: CommitRecord | None
    inputs: tuple[tuple[SSP, Offset | None], ...]
    orders: tuple[Order, ...] = ()


class Found(msgspec.Struct, frozen=True):
    """Fill the stores, which are empty, with what the task takes over from a savepoint. A commit follows."""


class ControlFrame(msgspec.Struct, frozen=True):
    """A control frame and its destination."""

    stream: StreamId
    partition: int
    header: Header
    message: ControlMessage


class SendControl(msgspec.Struct, frozen=True):
    """Send these frames after everything sent before. There is no need to wait for acknowledgement."""

    frames: tuple[ControlFrame, ...]


class ScanAhead(msgspec.Struct, frozen=True):
    """Call ``learn`` for each restore frame from these offsets to the current end. Positions don't move."""

    inputs: tuple[tuple[SSP, Offset | None], ...]


# -- instructions: running --------------------------------------------------------------------------
class Feed(msgspec.Struct, frozen=True):
    """Process the buffered frames of this label in order, and remove them, but keep those of the producers ``held``."""

    label: int
    held: frozenset[tuple[SSP, int]] = frozenset()


class Finish(msgspec.Struct, frozen=True):
    """All inputs have ended: fire the open windows, then send end-of-stream to every output partition."""


class Keep(msgspec.Struct, frozen=True):
    """Keep a durable copy of the local state, which holds the commit of ``version``, and of the commit's record."""

    version: int


# -- instructions: commit ---------------------------------------------------------------------------
class FlushOutputs(msgspec.Struct, frozen=True):
    """Wait until everything sent to any output is acknowledged."""


class AppendChanges(msgspec.Struct, frozen=True):
    """Append the stores' changes since the last commit to the changelog; ``stamp_change`` stamps each frame."""

    version: int


class AppendCommit(msgspec.Struct, frozen=True):
    """``seal`` the commit record, append it, wait, and call ``performed`` with the offset after it."""

    version: int
    next_version: int


class WriteLocal(msgspec.Struct, frozen=True):
    """Write to RocksDB in one batch: the changes of this version, and ``local.encode()`` under ``LOCAL_KEY``."""

    local: LocalCheckpoint


class Report(msgspec.Struct, frozen=True):
    """Publish the offsets from which each input is still needed: frames below them may be trimmed."""

    version: int
    inputs: tuple[tuple[SSP, Offset | None], ...]


class ReleaseOrders(msgspec.Struct, frozen=True):
    """Tell the coordinator that a commit covers these orders, and wait until it knows."""

    orders: tuple[Order, ...]


class End(msgspec.Struct, frozen=True):
    """The task is over. No instruction follows."""


class Stop(msgspec.Struct, frozen=True):
    """This incarnation has lost its right to run, and has changed nothing since. Raise ``error``; do nothing more."""

    error: HeadraceError


Plain = (
    Found | Resume | SendControl | ScanAhead | Feed | Finish | Keep
    | FlushOutputs | AppendChanges | WriteLocal | Report | ReleaseOrders
)  # fmt: skip
"""The instructions that have no answer: the host performs them, and that is all."""
Instruction = Plain | TakeGeneration | AppendAbort | ReadChangelog | AppendCommit | End | Stop

_NO_LIMIT = 2**63


class EarlyFrame(msgspec.Struct, frozen=True):
    """A frame in the version buffer, under its label."""

    label: int
    generation: int
    seq: int
    offset: Offset


@dataclass(slots=True, eq=False, repr=False)
class Parent:
    """One upstream task as seen from one input partition. The head of ``frame_judge`` explains the fields."""

    partition: InputPartition
    producer: int
    closed: int
    fences: dict[int, int] = field(default_factory=dict)
    buffered: deque[EarlyFrame] = field(default_factory=deque)
    generation: int = 0
    seq: int = 0
    limit: int = _NO_LIMIT
    covered: int = 0
    done: int = 0
    label: int = -1
    aside: int | None = None

    def set_last(self, generation: int, seq: int) -> None:
        """Set the last frame taken, and ``limit``: the seq above which frames of its generation are void."""
        self.generation, self.seq = generation, seq
        self.limit = self.limit_of(generation)

    def limit_of(self, generation: int) -> int:
        """Return the lowest S of the fences of newer generations: frames of ``generation`` above it are void."""
        return min((seq for fence, seq in self.fences.items() if fence > generation), default=_NO_LIMIT)

    def fence(self, generation: int, seq: int) -> None:
        """Add the fence of a restore. The same restore again changes nothing."""
        known = self.fences.setdefault(generation, seq)
        if known != seq:
            raise ProtocolError(
                f"{self.partition.ssp}: producer {self.producer} sent two restores of generation {generation}, "
                f"one to seq {known}, one to {seq}",
                hint="two incarnations got the same generation: the metadata store must issue each one only once",
            )
        self.limit = self.limit_of(self.generation)

    def holds(self, label: int) -> bool:
        return self.aside is not None and label > self.closed

    @override
    def __str__(self) -> str:
        return f"{self.partition.ssp}, producer {self.producer}"

    @property
    def last(self) -> str:
        return f"({self.generation}, #{self.seq})"


class InputPartition:
    """One intermediate input partition. ``position`` is the next offset to receive; None means the oldest frame."""

    __slots__ = ("parents", "position", "ssp")

    def __init__(self, ssp: SSP, producers: Collection[int], closed: int) -> None:
        self.ssp = ssp
        self.position: Offset | None = None
        self.parents = {producer: Parent(self, producer, closed) for producer in producers}
