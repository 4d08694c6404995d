"""The durable records of the exactly-once protocol, and what a task takes over from a savepoint.

There are five formats, each with its own format number; a reader refuses a number it doesn't know. SEP-10 defines
the fields. This table says where each of them is:

==============================================  ===============================================================
SEP-10                                          here
==============================================  ===============================================================
Change Log Topic Message: Generation            frame header ``generation``
Change Log Topic Message: Key, Value            ``Change.change``: bytes that the named store writes and reads
Commit: CheckpointMetadata.Generation           ``CommitRecord.generation`` (and the frame header's)
Commit: CheckpointOutputSeq.Topic               ``OutputSeq.stream``
Commit: PartitionAndSeq.Partition, Seq          ``OutputSeq.partition``, ``OutputSeq.seq``
Commit: TopicPartitionMetadata.Topic            ``InputEntry.stream``
Commit: PartitionMetadata.PartitionId, Offset   ``InputEntry.partition``, ``InputEntry.offset``
Commit: ParentCheckpointMetadata.ProducerId     ``ParentEntry.producer``
Commit: ParentCheckpointMetadata.Generation     ``ParentEntry.generation``
Commit: ParentCheckpointMetadata                ``ParentEntry.version``: the version through which the parent
  .CheckpointVersion                            is complete
Commit: ParentCheckpointMetadata.Seq            ``ParentEntry.seq``: what this commit covers of the parent
Commit: ParentCheckpointMetadata                ``ParentEntry.resume_offset``: where this parent's frames that
  .ResumeOffset (RecoveryOffset)                the commit doesn't cover begin
Abort: Generation                               ``AbortRecord.generation`` (and the frame header's)
RocksDB checkpoint: Offset, Generation,         ``LocalCheckpoint.offset``, ``.generation``, ``.version``
  CheckpointVersion
==============================================  ===============================================================

All these frames have SEP-10's message header: MessageType is ``kind``, ProducerId ``producer``, Generation
``generation``, CheckpointVersion ``version`` and Seq ``seq``. In a changelog ``seq`` counts the records of a
generation from 1.

A savepoint has a folder for each task, with the task's database (``DATABASE_FOLDER``) and the commit to which the
database corresponds (``COMMIT_FILE``). That file is written last, so a folder without it is a draft.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.errors import FrameError
from headrace.core.files import UNREADABLE, decode_record
from headrace.core.frame import END_VERSION, Bytes
from headrace.core.ids import SSP, Offset

COMMIT_FORMAT = 4
ABORT_FORMAT = 1
CHANGE_FORMAT = 1
LOCAL_FORMAT = 1
READER_FORMAT = 2

LOCAL_KEY = b"\x00headrace.protocol"
"""The key of the local checkpoint in a task's RocksDB. The stores' own keys never begin with a 0 byte."""
_LOCAL = struct.Struct(">bqiq")
_CHANGE_HEAD = struct.Struct(">bH")


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the JSON bodies: field names are camelCase."""


class OutputSeq(_Body, frozen=True, kw_only=True):
    """The seq of the last frame written to one output partition at the commit, by ``generation``.

    ``landmark`` identifies, in a form of the system, a record that was written with this frame, or after it.
    """

    stream: str
    partition: int
    seq: int
    generation: int
    landmark: str | UnsetType = UNSET


class ParentEntry(_Body, frozen=True, kw_only=True):
    """An upstream task in an input partition: covered up to (``generation``, ``seq``), complete through ``version``."""

    producer: int
    generation: int
    version: int
    seq: int
    resume_offset: Offset | None


class InputEntry(_Body, frozen=True, kw_only=True):
    """One intermediate input partition, read from ``offset`` (None: oldest); ``landmark``: the record before it."""

    stream: str
    partition: int
    offset: Offset | None
    parents: tuple[ParentEntry, ...]
    landmark: str | UnsetType = UNSET


class Covered(_Body, frozen=True, kw_only=True):
    """The last frame of a producer that a reader has released or dropped, and its highest ``committed`` seq."""

    producer: int
    generation: int
    seq: int
    committed: int = 0


class ReaderPosition(_Body, frozen=True, kw_only=True):
    """Where a read_committed reader resumes (see there). Store it in one transaction with the results."""

    format: int = READER_FORMAT
    offset: Offset | None
    whole: bool = False
    covered: tuple[Covered, ...] = ()
    plain_before: Offset | UnsetType = UNSET

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: Bytes) -> ReaderPosition:
        return _decoded("reader position", _READER_DECODER, data, READER_FORMAT)


class Detour(_Body, frozen=True, kw_only=True):
    """What follows a past range that is read again: at ``until`` reading goes back to where the other fields say."""

    until: Offset
    offset: Offset
    whole: bool = False
    covered: tuple[Covered, ...] = ()
    plain_before: Offset | UnsetType = UNSET
    since_ms: int | UnsetType = UNSET
    landmark: str | UnsetType = UNSET

    @classmethod
    def of(cls, until: Offset, saved: SourceEntry | None, first: Offset) -> Detour:
        """The detour that ends at ``until`` and leads back to a saved position (also one on a detour), or ``first``."""
        if saved is not None and saved.detour is not UNSET:
            return msgspec.structs.replace(saved.detour, until=until)
        if saved is None or saved.offset is None:
            return cls(until=until, offset=first)
        return cls(
            until=until,
            offset=saved.offset,
            whole=saved.whole,
            covered=saved.covered,
            plain_before=saved.plain_before,
            since_ms=saved.since_ms,
            landmark=saved.landmark,
        )


class SourceEntry(_Body, frozen=True, kw_only=True):
    """The position in one source partition. The fields from ``offset`` on are those of a ``ReaderPosition``.

    ``startpoint`` is the id of the startpoint that was applied to it last. ``shards``: the positions in the shards of a
    slot. ``since_ms``: messages with an older event time are left out, because a backfill has read them from elsewhere.
    """

    stream: str
    partition: int
    offset: Offset | None
    whole: bool = False
    covered: tuple[Covered, ...] = ()
    plain_before: Offset | UnsetType = UNSET
    startpoint: str | UnsetType = UNSET
    shards: dict[str, str] | UnsetType = UNSET
    since_ms: int | UnsetType = UNSET
    landmark: str | UnsetType = UNSET
    detour: Detour | UnsetType = UNSET

    @classmethod
    def at(
        cls,
        ssp: SSP,
        position: Offset | ReaderPosition | Detour,
        *,
        since_ms: int | UnsetType = UNSET,
        detour: Detour | UnsetType = UNSET,
    ) -> Self:
        stream, partition = str(ssp.stream), ssp.partition
        if isinstance(position, Offset):
            return cls(stream=stream, partition=partition, offset=position, since_ms=since_ms, detour=detour)
        return cls(
            stream=stream,
            partition=partition,
            offset=position.offset,
            whole=position.whole,
            covered=position.covered,
            plain_before=position.plain_before,
            since_ms=position.since_ms if isinstance(position, Detour) else since_ms,
            detour=detour,
        )

    def reader_at(self, offset: Offset) -> ReaderPosition:
        return ReaderPosition(offset=offset, whole=self.whole, covered=self.covered, plain_before=self.plain_before)


class CommitRecord(_Body, frozen=True, kw_only=True):
    """Everything that a restart needs: the body of a commit frame. ``parents_version``: the highest announced to it."""

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

    @property
    def ended(self) -> bool:
        return self.next_version == END_VERSION


class AbortRecord(_Body, frozen=True, kw_only=True):
    """The record with which ``generation`` takes over. ``writer`` is unique: two with one generation are detected."""

    format: int = ABORT_FORMAT
    generation: int
    writer: str


class LocalCheckpoint(msgspec.Struct, frozen=True):
    """The commit to which the local RocksDB corresponds; its frame is at ``offset`` of the changelog.

    A restart reads this frame first: it has the record, and proves that the state belongs to this changelog.
    """

    offset: Offset
    generation: int
    version: int

    def encode(self) -> bytes:
        """Return 21 bytes: format int8, offset int64, generation int32, version int64; big-endian."""
        return _LOCAL.pack(LOCAL_FORMAT, self.offset, self.generation, self.version)

    @classmethod
    def decode(cls, data: Bytes) -> LocalCheckpoint:
        if len(data) != _LOCAL.size:
            raise FrameError(f"a local checkpoint has {_LOCAL.size} bytes, this one has {len(data)}")
        number, offset, generation, version = _LOCAL.unpack(data)
        _check_format("local checkpoint", number, LOCAL_FORMAT)
        return cls(offset, generation, version)


class Change(msgspec.Struct, frozen=True):
    """The body of a change frame: the name of a store, and the change that ``StateStore.apply`` repeats."""

    store: str
    change: Bytes

    def encode(self) -> bytes:
        """Return ``format int8 | length of the name uint16 | name | change``, big-endian."""
        name = self.store.encode()
        return _CHANGE_HEAD.pack(CHANGE_FORMAT, len(name)) + name + bytes(self.change)

    @classmethod
    def decode(cls, data: Bytes) -> Change:
        view = memoryview(data)
        if len(view) < _CHANGE_HEAD.size:
            raise FrameError(f"a change has at least {_CHANGE_HEAD.size} bytes, this one has {len(view)}")
        number, length = _CHANGE_HEAD.unpack_from(view)
        _check_format("change", number, CHANGE_FORMAT)
        end = _CHANGE_HEAD.size + length
        if len(view) < end:
            raise FrameError(f"a change has a store name of {length} bytes, but only {len(view) - 3} follow")
        try:
            return cls(str(view[_CHANGE_HEAD.size : end], "utf-8"), view[end:])
        except UnicodeDecodeError as error:
            raise FrameError(f"a change has a store name that isn't UTF-8: {error}") from error


_Record = TypeVar("_Record", ReaderPosition, CommitRecord, AbortRecord)
_ENCODER = msgspec.json.Encoder()
_COMMIT_DECODER = msgspec.json.Decoder(CommitRecord)
_ABORT_DECODER = msgspec.json.Decoder(AbortRecord)
_READER_DECODER = msgspec.json.Decoder(ReaderPosition)


def encode_record(record: CommitRecord | AbortRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_commit(body: Bytes) -> CommitRecord:
    return _decoded("commit record", _COMMIT_DECODER, body, COMMIT_FORMAT)


def decode_abort(body: Bytes) -> AbortRecord:
    return _decoded("abort record", _ABORT_DECODER, body, ABORT_FORMAT)


def _decoded(what: str, decoder: msgspec.json.Decoder[_Record], data: Bytes, known: int) -> _Record:
    try:
        record = decoder.decode(data)
    except UNREADABLE as error:
        raise FrameError(f"unreadable {what}: {error}: {bytes(data[:200])!r}") from error
    _check_format(what, record.format, known)
    return record


def _check_format(what: str, found: int, known: int) -> None:
    if found != known:
        hint = "a newer version wrote it; upgrade readers before writers"
        raise FrameError(f"{what} of format {found}; this version of Headrace reads {known}", hint=hint)


COMMIT_FILE = "commit.json"
DATABASE_FOLDER = "db"
FORMAT = 1


class Cut(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Commit exactly ``version`` in all tasks of an app, and keep the state below ``folder``. ``last``: then pause."""

    id: str
    version: int
    folder: str
    last: bool = False


class KeptCommit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The commit of a task in a savepoint: its record, and its offset in the changelog."""

    format: int = FORMAT
    task: str
    offset: Offset
    record: CommitRecord

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> KeptCommit:
        what = "the commit in a savepoint"
        return decode_record(
            _DECODER, data, what, FORMAT, lambda kept: f"the commit of task {kept.task} in a savepoint"
        )


_DECODER = msgspec.json.Decoder(KeptCommit)


@dataclass(frozen=True, slots=True)
class Donor:
    """A task in a savepoint: its number, and the folder with its commit and its database."""

    number: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Founding:
    """How a task with an empty changelog begins: with ``record`` as its first commit, and state of ``donors``.

    If ``shares`` is None, it gets all of it; otherwise these give for each store the columns that divide its rows among
    ``tasks`` tasks. Of stores that are ``copied``, it gets all rows of the first donor. ``silent_until`` is the app's
    former position in each source partition, up to which it reads silently; None if the partition had ended.
    """

    record: CommitRecord
    donors: tuple[Donor, ...] = ()
    shares: Mapping[str, Sequence[str]] | None = None
    copied: frozenset[str] = frozenset()
    tasks: int = 1
    silent_until: Mapping[tuple[str, int], Offset | None] = field(default_factory=dict)
