"""What the exactly-once protocol makes durable: the bodies of changelog frames, the local checkpoint,
a reader's position.

Five formats, each with a format number of its own; a reader refuses a number it doesn't know. SEP-10 gave
the fields; this is where each of them lives:

==============================================  ===============================================================
SEP-10                                          here
==============================================  ===============================================================
Change Log Topic Message: Generation            frame header ``generation``
Change Log Topic Message: Key, Value            ``Change.change``: bytes that the named store wrote and reads
Commit: CheckpointMetadata.Generation           ``CommitRecord.generation`` (and the frame header's)
Commit: CheckpointOutputSeq.Topic               ``OutputSeq.stream``
Commit: PartitionAndSeq.Partition, Seq          ``OutputSeq.partition``, ``OutputSeq.seq``
Commit: TopicPartitionMetadata.Topic            ``InputEntry.stream``
Commit: PartitionMetadata.PartitionId, Offset   ``InputEntry.partition``, ``InputEntry.offset``
Commit: ParentCheckpointMetadata.ProducerId     ``ParentEntry.producer``
Commit: ParentCheckpointMetadata.Generation     ``ParentEntry.generation``
Commit: ParentCheckpointMetadata                ``ParentEntry.version``: through which version the parent
  .CheckpointVersion                            is known to be complete
Commit: ParentCheckpointMetadata.Seq            ``ParentEntry.seq``: what this commit covers of the parent
Commit: ParentCheckpointMetadata                ``ParentEntry.resume_offset``: where what is not covered of
  .ResumeOffset (RecoveryOffset)                this one parent begins
Abort: Generation                               ``AbortRecord.generation`` (and the frame header's)
RocksDB checkpoint: Offset, Generation,         ``LocalCheckpoint.offset``, ``.generation``, ``.version``
  CheckpointVersion
==============================================  ===============================================================

The headers of all these frames are SEP-10's message header: MessageType is ``kind``, ProducerId ``producer``,
Generation, CheckpointVersion ``version``, Seq. In a changelog ``seq`` counts the records of a generation from 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.errors import FrameError
from headrace.core.frame import END_VERSION, Bytes
from headrace.core.ids import Offset

COMMIT_FORMAT = 1
ABORT_FORMAT = 1
CHANGE_FORMAT = 1
LOCAL_FORMAT = 1
READER_FORMAT = 1

LOCAL_KEY = b"\x00headrace.checkpoint"
"""The key under which a task's local checkpoint stands in its RocksDB; stores' own keys never begin with 0."""

_LOCAL = struct.Struct(">bqiq")
_CHANGE_HEAD = struct.Struct(">bH")


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the JSON bodies share."""


class OutputSeq(_Body, frozen=True, kw_only=True):
    """How many frames the task had written to one output partition when it committed."""

    stream: str
    partition: int
    seq: int


class ParentEntry(_Body, frozen=True, kw_only=True):
    """One upstream task as seen from one input partition.

    All its frames up to (``generation``, ``seq``) are part of this commit or of an earlier one.
    """

    producer: int
    generation: int
    version: int
    seq: int
    resume_offset: Offset | None


class InputEntry(_Body, frozen=True, kw_only=True):
    """One intermediate input partition: where to read on, None meaning from the oldest frame."""

    stream: str
    partition: int
    offset: Offset | None
    parents: tuple[ParentEntry, ...]


class Covered(_Body, frozen=True, kw_only=True):
    """What a read_committed reader has dealt with of one producer."""

    producer: int
    generation: int
    seq: int


class ReaderPosition(_Body, frozen=True, kw_only=True):
    """Where a read_committed reader begins again: for whoever keeps it in one transaction with the results.

    ``whole``: it began at the very beginning of the stream (see ``reading``). ``plain_before``: plain frames that stand
    before it have been handed out, though ``offset`` lies further back.
    """

    format: int = READER_FORMAT
    offset: Offset | None
    whole: bool = False
    covered: tuple[Covered, ...] = ()
    plain_before: Offset | UnsetType = UNSET

    def encode(self) -> bytes:
        """JSON."""
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: Bytes) -> ReaderPosition:
        """Read what ``encode`` wrote; raises ``FrameError``."""
        try:
            position = _READER_DECODER.decode(data)
        except msgspec.MsgspecError as error:
            raise FrameError(f"unreadable reader position: {error}: {bytes(data[:200])!r}") from error
        _check_format("reader position", position.format, READER_FORMAT)
        return position


class SourceEntry(_Body, frozen=True, kw_only=True):
    """The position in one source partition; what comes behind ``offset`` is as in a ``ReaderPosition``."""

    stream: str
    partition: int
    offset: Offset | None
    whole: bool = False
    covered: tuple[Covered, ...] = ()
    plain_before: Offset | UnsetType = UNSET


class CommitRecord(_Body, frozen=True, kw_only=True):
    """Everything that a restart needs: the body of a changelog's commit frame.

    ``parents_version`` is the highest version that any parent was heard to have committed.
    ``bookkeeping`` (watermarks, end-of-stream sets) and ``timers`` belong to the runtime: any JSON.
    """

    format: int = COMMIT_FORMAT
    generation: int
    version: int
    next_version: int
    outputs: tuple[OutputSeq, ...] = ()
    inputs: tuple[InputEntry, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    parents_version: int = -1
    end_of_stream_sent: bool = False
    bookkeeping: msgspec.Raw = msgspec.Raw(b"null")
    timers: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def ended(self) -> bool:
        """This was the task's final commit."""
        return self.next_version == END_VERSION


class AbortRecord(_Body, frozen=True, kw_only=True):
    """The fence: ``generation`` takes over, and what older ones left uncommitted is void.

    ``writer`` is drawn anew by each incarnation, so that two that were given one generation find out.
    """

    format: int = ABORT_FORMAT
    generation: int
    writer: str


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """What the local RocksDB corresponds to: the counted commit frame that stands at ``offset`` of the changelog.

    It points at the commit, not behind it: a restart reads that frame first, finds the record in it and the
    (generation, seq) to count on from, and has checked that this state belongs to this changelog.
    """

    offset: Offset
    generation: int
    version: int

    def encode(self) -> bytes:
        """21 bytes: format int8, offset int64, generation int32, version int64; big-endian."""
        return _LOCAL.pack(LOCAL_FORMAT, self.offset, self.generation, self.version)

    @classmethod
    def decode(cls, data: Bytes) -> LocalCheckpoint:
        """Read what ``encode`` wrote; raises ``FrameError``."""
        if len(data) != _LOCAL.size:
            raise FrameError(f"a local checkpoint has {_LOCAL.size} bytes, this has {len(data)}")
        number, offset, generation, version = _LOCAL.unpack(data)
        _check_format("local checkpoint", number, LOCAL_FORMAT)
        return cls(offset, generation, version)


@dataclass(frozen=True, slots=True)
class Change:
    """The body of a change frame: which store, and what it is to do again (``StateStore.apply``)."""

    store: str
    change: Bytes

    def encode(self) -> bytes:
        """format int8 | length of the name uint16 | name | change."""
        name = self.store.encode()
        return _CHANGE_HEAD.pack(CHANGE_FORMAT, len(name)) + name + bytes(self.change)

    @classmethod
    def decode(cls, data: Bytes) -> Change:
        """Read what ``encode`` wrote, without a copy of the change; raises ``FrameError``."""
        view = memoryview(data)
        if len(view) < _CHANGE_HEAD.size:
            raise FrameError(f"a change has at least {_CHANGE_HEAD.size} bytes, this has {len(view)}")
        number, length = _CHANGE_HEAD.unpack_from(view)
        _check_format("change", number, CHANGE_FORMAT)
        end = _CHANGE_HEAD.size + length
        if len(view) < end:
            raise FrameError(f"a change names a store in {length} bytes, but only {len(view) - 3} follow")
        try:
            return cls(str(view[_CHANGE_HEAD.size : end], "utf-8"), view[end:])
        except UnicodeDecodeError as error:
            raise FrameError(f"a change names a store in bytes that are not UTF-8: {error}") from error


_ENCODER = msgspec.json.Encoder()
_COMMIT_DECODER = msgspec.json.Decoder(CommitRecord)
_ABORT_DECODER = msgspec.json.Decoder(AbortRecord)
_READER_DECODER = msgspec.json.Decoder(ReaderPosition)


def encode_record(record: CommitRecord | AbortRecord) -> bytes:
    """The body of a commit or abort frame: JSON."""
    return _ENCODER.encode(record)


def decode_commit(body: Bytes) -> CommitRecord:
    """Read a commit frame's body; raises ``FrameError``."""
    try:
        record = _COMMIT_DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"unreadable commit record: {error}: {bytes(body[:200])!r}") from error
    _check_format("commit record", record.format, COMMIT_FORMAT)
    return record


def decode_abort(body: Bytes) -> AbortRecord:
    """Read an abort frame's body; raises ``FrameError``."""
    try:
        record = _ABORT_DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"unreadable abort record: {error}: {bytes(body[:200])!r}") from error
    _check_format("abort record", record.format, ABORT_FORMAT)
    return record


def _check_format(what: str, found: int, known: int) -> None:
    if found != known:
        raise FrameError(
            f"{what} of format {found}; this Headrace reads {known}",
            hint="upgrade the reader before the writer",
        )
