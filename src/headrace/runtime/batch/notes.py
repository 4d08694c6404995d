"""Notes: messages between the parts of a batch job and to the driver, as pieces without rows.

They travel among the pieces. A partition's reader or writer reports its progress (``Said``), which tasks downstream get
before any rows. The others are for the driver, and tasks downstream pass them on: the state that each task leaves for a
live run (``Left``), and the number of messages that it has set aside. So the driver gets only the notes of attempts
whose results count. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.checkpoint.record import CommitRecord, SourceEntry
from headrace.runtime.event_time.watermark import NEVER, Progress
from headrace.serdes.pieces import Piece

LEFT, COUNTED = ":left", ":counted"
"""In place of a stream: the piece is a ``Left``, or has counters. No stream's id has a colon."""

FOR_DRIVER = (LEFT, COUNTED)


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a partition.

    Of a source: ``entry`` is where to read on. Of an intermediate stream: what its writer ``task``, of ``tasks``, says.
    """

    progress: Progress
    entry: SourceEntry | None = None
    task: str = ""
    tasks: int = 0


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a task leaves at a seam: its first commit in the live run. Its state is in ``folder``."""

    task: str
    folder: str
    record: CommitRecord


def note_of(said: Said, stream: str, partition: int, writer: str) -> Piece:
    """What is said of a partition of a stream, as a piece that comes before all others."""
    return _note(stream, partition, writer, msgspec.json.encode(said))


def note_of_left(left: Left) -> Piece:
    """What a task leaves, as a piece."""
    return _note(LEFT, 0, left.task, msgspec.json.encode(left))


def note_of_counts(counters: Mapping[str, int], writer: str) -> Piece:
    """The counters of a task, or of the reader of a partition, as a piece."""
    return _note(COUNTED, 0, writer, msgspec.json.encode(counters))


def said_in(piece: Piece) -> Said:
    """What ``note_of`` has put into a piece."""
    return _SAID.decode(piece.body)


def left_in(piece: Piece) -> Left:
    """What ``note_of_left`` has put into a piece."""
    return _LEFT.decode(piece.body)


def counts_in(piece: Piece) -> Mapping[str, int]:
    """What ``note_of_counts`` has put into a piece."""
    return _COUNTED.decode(piece.body)


def is_note(piece: Piece) -> bool:
    """Whether a piece has no rows, but says something."""
    return not piece.rows


def _note(stream: str, partition: int, writer: str, body: bytes) -> Piece:
    return Piece(stream, partition, NEVER, NEVER, 0, writer, 0, body)


_SAID = msgspec.json.Decoder(Said)
_LEFT = msgspec.json.Decoder(Left)
_COUNTED = msgspec.json.Decoder(dict[str, int])
