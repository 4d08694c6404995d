"""What the protocol returns: a verdict on every frame, and the instructions that a task's host performs.

Plain data. The docstrings here say what each one asks of the host; ``protocol`` says in which order they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.checkpoint.record import AbortRecord, CommitRecord, LocalCheckpoint
from headrace.core.errors import HeadraceError
from headrace.core.frame import ControlMessage, Header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.systems.startpoint import Order

# -- verdicts on a received frame -------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class Forget:
    """A restore frame was taken: drop the producer's buffered frames of partition ``ssp`` with a higher seq."""

    ssp: SSP
    producer: int
    seq: int


# -- instructions: start and rollback ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeGeneration:
    """Drop uncommitted state, the version buffer and unreceived frames; get a new generation and call ``start``.

    The metadata store issues the generation by compare-and-set, and only to the incarnation that the coordinator
    considers current. If it is refused, the task stops permanently.
    """


@dataclass(frozen=True, slots=True)
class AppendAbort:
    """Append this record to the changelog, wait, and call ``performed`` with the offset after it."""

    header: Header
    record: AbortRecord


@dataclass(frozen=True, slots=True)
class ReadChangelog:
    """Read the changelog from ``start`` (None: its oldest record) to ``end``; pass each record to ``changelog``."""

    start: Offset | None
    end: Offset


@dataclass(frozen=True, slots=True)
class Resume:
    """Restore bookkeeping and source positions from the record; seek each input partition to its offset.

    ``record`` is None if the task never committed. An offset of None means the oldest frame. ``orders`` are
    startpoints: they say where to read sources, whatever the record says.
    """

    record: CommitRecord | None
    inputs: tuple[tuple[SSP, Offset | None], ...]
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Fill the stores, which are empty, with what the task takes over from a savepoint. A commit follows."""


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A control frame and its destination."""

    stream: StreamId
    partition: int
    header: Header
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send these frames after everything sent before. There is no need to wait for acknowledgement."""

    frames: tuple[ControlFrame, ...]


@dataclass(frozen=True, slots=True)
class ScanAhead:
    """Read the headers from these offsets to the current end of each partition; call ``learn`` for each restore frame.

    Positions don't move: the frames are received afterwards from the same offsets.
    """

    inputs: tuple[tuple[SSP, Offset | None], ...]


# -- instructions: running --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feed:
    """Process the buffered frames of this label in order, and remove them. They aren't received again.

    But keep those of the (input partition, producer) pairs in ``held``.
    """

    label: int
    held: frozenset[tuple[SSP, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Finish:
    """All inputs have ended: fire the open windows, then send end-of-stream to every output partition."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a durable copy of the local state, which holds the commit of ``version``, and of the commit's record."""

    version: int


# -- instructions: commit ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlushOutputs:
    """Wait until everything sent to any output is acknowledged."""


@dataclass(frozen=True, slots=True)
class AppendChanges:
    """Append the stores' changes since the last commit to the changelog; ``stamp_change`` stamps each frame."""

    version: int


@dataclass(frozen=True, slots=True)
class AppendCommit:
    """``seal`` the commit record, append it, wait, and call ``performed`` with the offset after it."""

    version: int
    next_version: int


@dataclass(frozen=True, slots=True)
class WriteLocal:
    """Write to RocksDB in one batch: the changes of this version, and ``local.encode()`` under ``LOCAL_KEY``."""

    local: LocalCheckpoint


@dataclass(frozen=True, slots=True)
class Report:
    """Publish the offsets from which each input is still needed: frames below them may be trimmed."""

    version: int
    inputs: tuple[tuple[SSP, Offset | None], ...]


@dataclass(frozen=True, slots=True)
class ReleaseOrders:
    """Tell the coordinator that a commit covers these orders, and wait until it knows."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The task is over. No instruction follows."""


@dataclass(frozen=True, slots=True)
class Stop:
    """This incarnation has lost its right to run, and has changed nothing since. Raise ``error``; do nothing more."""

    error: HeadraceError


Instruction = (
    TakeGeneration
    | AppendAbort
    | ReadChangelog
    | Resume
    | Found
    | SendControl
    | ScanAhead
    | Feed
    | Finish
    | Keep
    | FlushOutputs
    | AppendChanges
    | AppendCommit
    | WriteLocal
    | Report
    | ReleaseOrders
    | End
    | Stop
)

Plain = (
    Found
    | Resume
    | SendControl
    | ScanAhead
    | Feed
    | Finish
    | FlushOutputs
    | AppendChanges
    | WriteLocal
    | Report
    | ReleaseOrders
    | Keep
)
"""The instructions of which nothing else is to be said than that they are performed."""
