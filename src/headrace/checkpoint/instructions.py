"""What the protocol answers: a verdict on every frame, and the instructions that a task's host performs.

Plain data. What each asks of the host is said here; in which order they come, in ``protocol``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.checkpoint.record import AbortRecord, CommitRecord, LocalCheckpoint
from headrace.core.errors import HeadraceError
from headrace.core.frame import ControlMessage, Header
from headrace.core.ids import SSP, Offset, StreamId

# -- answers to one received frame ------------------------------------------------------------------


class Verdict(Enum):
    """What becomes of a frame."""

    PROCESS = "process"
    """A user, watermark or end-of-stream frame whose turn it is: hand it to the operators."""

    BUFFER = "buffer"
    """An early arrival: append it to the message buffer of its label (``header.version``)."""

    DROP = "drop"
    """A duplicate, or void: forget it."""

    TAKEN = "taken"
    """A control frame that the protocol has dealt with."""

    ROLLBACK = "rollback"
    """Something processed has become void: drop everything uncommitted; ``next_step`` says how to go on."""


@dataclass(frozen=True, slots=True)
class Forget:
    """A restore frame was taken: drop the producer's buffered frames of this partition with a seq above ``seq``."""

    ssp: SSP
    producer: int
    seq: int


# -- instructions: start and rollback ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeGeneration:
    """Drop overlay, message buffers and what waits to be received; get a new generation and call ``start``.

    The generation comes from the metadata store by compare-and-set, and only for the incarnation that the
    coordinator holds current. When it is refused the task stops, for good.
    """


@dataclass(frozen=True, slots=True)
class AppendAbort:
    """Append this to the changelog and wait; ``performed`` with the acknowledged offset (behind it)."""

    header: Header
    record: AbortRecord


@dataclass(frozen=True, slots=True)
class ReadChangelog:
    """Read the changelog from ``start`` (None: its oldest record) up to ``end``, each record into ``changelog``."""

    start: Offset | None
    end: Offset


@dataclass(frozen=True, slots=True)
class Resume:
    """Take up the record: bookkeeping, timers, source positions; seek each input partition to its offset.

    ``record`` is None when nothing was ever committed. An offset of None is the oldest frame.
    """

    record: CommitRecord | None
    inputs: tuple[tuple[SSP, Offset | None], ...]


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """A control frame and where it goes."""

    stream: StreamId
    partition: int
    header: Header
    message: ControlMessage


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send these frames, behind everything sent before. No need to wait."""

    frames: tuple[ControlFrame, ...]


@dataclass(frozen=True, slots=True)
class ScanAhead:
    """Read the headers from these offsets to what is now the end of each partition; ``learn`` every restore frame.

    It moves no position: the frames are received afterwards, from the same offsets.
    """

    inputs: tuple[tuple[SSP, Offset | None], ...]


# -- instructions: running --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feed:
    """Process the frames in the buffer of this label, in order, and delete the buffer. They aren't received again."""

    label: int


@dataclass(frozen=True, slots=True)
class Finish:
    """All inputs have ended: fire the windows that are open, then send end-of-stream to every output partition."""


# -- instructions: commit ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlushOutputs:
    """Wait until everything sent to any output is acknowledged."""


@dataclass(frozen=True, slots=True)
class AppendChanges:
    """Append what has changed in the stores since the last commit, each frame stamped by ``stamp_change``."""

    version: int


@dataclass(frozen=True, slots=True)
class AppendCommit:
    """``seal`` the commit record, append it and wait; ``performed`` with the acknowledged offset (behind it)."""

    version: int
    next_version: int


@dataclass(frozen=True, slots=True)
class WriteLocal:
    """Write the changes of this version and ``local.encode()`` under ``LOCAL_KEY`` to RocksDB, as one batch."""

    local: LocalCheckpoint


@dataclass(frozen=True, slots=True)
class Report:
    """Publish how far each input is needed no more: what lies below these offsets may be trimmed."""

    version: int
    inputs: tuple[tuple[SSP, Offset | None], ...]


@dataclass(frozen=True, slots=True)
class End:
    """The task is over: nothing to do, ever again."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The task has lost its right to go on, and has changed nothing since. Raise ``error``; perform nothing more."""

    error: HeadraceError


Instruction = (
    TakeGeneration
    | AppendAbort
    | ReadChangelog
    | Resume
    | SendControl
    | ScanAhead
    | Feed
    | Finish
    | FlushOutputs
    | AppendChanges
    | AppendCommit
    | WriteLocal
    | Report
    | End
    | Stop
)
