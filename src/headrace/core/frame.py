"""The frame: the record of every intermediate stream, framed output and changelog.

A frame is a 25-byte big-endian header and a body::

    kind int8 | producer int32 | generation int32 | version int64 | seq int64 | body

Pure: bytes in, values out. The body of a user frame is opaque here (``rows`` reads it). The body of a control frame
is JSON and has a format ``version`` of its own, 1. Anything unknown is refused with an error that says what was found;
the caller adds where.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from headrace.core.errors import FrameError
from headrace.core.files import UNREADABLE

HEADER = struct.Struct(">biiqq")
HEADER_SIZE = HEADER.size
CONTROL_VERSION = 1

END_VERSION = 2**63 - 1
UNVERSIONED = -1
"""The version of a frame that belongs to no checkpoint (of a plain writer or an at-least-once app)."""
Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a frame carries. Kinds 0 to 4 are found in streams, 16 to 18 in changelogs."""

    USER = 0
    WATERMARK = 1
    END_OF_STREAM = 2
    CHECKPOINT = 3
    RESTORE = 4
    CHANGE = 16
    COMMIT = 17
    ABORT = 18


_KINDS = {int(kind): kind for kind in Kind}


class Header(msgspec.Struct, frozen=True):
    """Who wrote a frame, in which generation and for which version; ``seq`` numbers its frames in the partition."""

    kind: Kind
    producer: int = 0
    generation: int = 0
    version: int = UNVERSIONED
    seq: int = 0


class _Control(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of all control messages. ``version`` is the format of the body."""

    version: int = CONTROL_VERSION
    task_name: str
    task_count: int


class Watermark(_Control, frozen=True, kw_only=True, omit_defaults=True):
    """The task will send nothing older than ``timestamp`` (event time, ms).

    ``idle``: its inputs have sent nothing for their idle timeout, and it keeps nothing that a later watermark would
    emit. Until its next watermark it holds no reader back, as long as the other tasks have heard the same. ``heard``
    and ``own`` say of each source that can fall idle the watermark with which it is idle, null while it isn't, or the
    highest integer once it has ended: ``own`` of partitions that the task reads itself, ``heard`` of sources behind its
    inputs.
    """

    version: int = msgspec.field(default_factory=lambda: CONTROL_VERSION)
    timestamp: int
    idle: bool = False
    heard: dict[str, int | None] = {}
    own: dict[str, int | None] = {}


class EndOfStream(_Control, frozen=True, kw_only=True):
    """The task writes nothing more to this stream."""

    stream_id: str


class Checkpoint(_Control, frozen=True, kw_only=True):
    """The task has committed the header's version; its next frames carry ``next_version`` or above."""

    next_version: int


class Restore(_Control, frozen=True, kw_only=True, omit_defaults=True):
    """A new generation starts. Frames up to ``seq`` are committed, as of the header's version; later ones are void.

    ``committed_by`` is the generation that made that commit, or the last one that had this output, if any. A reader
    that starts in the middle of the stream needs it to distinguish committed frames from late copies of void ones.
    """

    version: int = msgspec.field(default_factory=lambda: CONTROL_VERSION)
    seq: int
    next_version: int
    committed_by: int = 0


ControlMessage = Watermark | EndOfStream | Checkpoint | Restore

_BODY: dict[Kind, type[Watermark] | type[EndOfStream] | type[Checkpoint] | type[Restore]] = {
    Kind.WATERMARK: Watermark,
    Kind.END_OF_STREAM: EndOfStream,
    Kind.CHECKPOINT: Checkpoint,
    Kind.RESTORE: Restore,
}
_KIND: dict[type[ControlMessage], Kind] = {body: kind for kind, body in _BODY.items()}
_DECODERS = {kind: msgspec.json.Decoder(body) for kind, body in _BODY.items()}
_ENCODER = msgspec.json.Encoder()


def kind_of(message: ControlMessage) -> Kind:
    return _KIND[type(message)]


def encode(header: Header, body: Bytes = b"") -> bytes:
    return HEADER.pack(header.kind, header.producer, header.generation, header.version, header.seq) + bytes(body)


def encode_control(header: Header, message: ControlMessage) -> bytes:
    if header.kind is not _KIND[type(message)]:
        raise ValueError(f"a {type(message).__name__} doesn't belong in a frame of kind {header.kind.name}")
    return encode(header, _ENCODER.encode(message))


def decode_header(data: Bytes) -> Header:
    if len(data) < HEADER_SIZE:
        raise FrameError(f"a frame has at least {HEADER_SIZE} bytes, this one has {len(data)}")
    number, producer, generation, version, seq = HEADER.unpack_from(data)
    kind = _KINDS.get(number)
    if kind is None:
        known = ", ".join(f"{k.value} {k.name.lower()}" for k in Kind)
        hint = "the stream was written by something else, or by a newer version of Headrace; check the stream's name"
        raise FrameError(f"unknown frame kind {number} (known: {known})", hint=hint)
    return Header(kind, producer, generation, version, seq)


def body_of(data: Bytes) -> memoryview:
    return memoryview(data)[HEADER_SIZE:]


def decode_control(kind: Kind, body: Bytes) -> ControlMessage:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise FrameError(f"a frame of kind {kind.name} carries no control message")
    try:
        message = decoder.decode(body)
    except UNREADABLE as error:
        raise FrameError(f"unreadable {kind.name} message: {error}: {bytes(body[:200])!r}") from error
    if message.version != CONTROL_VERSION:
        what = f"{kind.name} message of format {message.version}; this version of Headrace reads {CONTROL_VERSION}"
        raise FrameError(what, hint="upgrade the reader before the writer")
    return message
