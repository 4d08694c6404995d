"""Where a batch job stops and a live run goes on: what tasks are told there of their inputs, and what they leave.

A backfill reads a part of each input. Its tasks don't end when they have processed it. Event time stops where it would
be in a live task that has read so far: at the lowest of the partitions' watermarks, less the lateness. So windows that
are open stay open. Each task leaves its state and its commit, as for a savepoint.

Two kinds of *notes* travel among the pieces, as pieces without rows. A partition's reader or writer says how far it has
come (``Said``); readers downstream get that before the rows. And each task says what it leaves (``Left``): tasks
downstream pass that on to the driver. So the driver gets the notes of those attempts whose results count. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import polars as pl

from headrace.api.specs import StreamSpec
from headrace.checkpoint.record import CommitRecord, SourceEntry
from headrace.core.ids import SSP
from headrace.runtime.event_time.columns import time_ms
from headrace.runtime.event_time.watermark import NEVER, Progress
from headrace.serdes.pieces import Piece

LEFT = ":left"
"""In place of a stream: the piece is a ``Left``. No stream's id has a colon."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition has come at the seam.

    Of a source: ``entry`` is where to read on. Of an intermediate stream: what its writer ``task``, of ``tasks``, says.
    """

    progress: Progress
    entry: SourceEntry | None = None
    task: str = ""
    tasks: int = 0


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a task leaves: its first commit in the live run. Its state is in ``folder``."""

    task: str
    folder: str
    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Seam:
    """A seam. Tasks commit ``version`` there, and leave their state below ``folder``, which all of them can reach.

    ``given`` are the source partitions that aren't read, because their history comes from elsewhere.
    """

    version: int
    folder: str
    given: Mapping[SSP, Said] = field(default_factory=dict)

    def before(self, ssp: SSP, spec: StreamSpec, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows of the history of a partition that aren't read live."""
        time, said = spec.event_time, self.given.get(ssp)
        if time is None or spec.schema is None or said is None:
            return rows
        return rows.filter(time_ms(time, spec.schema.columns[time.column]) < said.progress.watermark)


def note_of(said: Said, stream: str, partition: int, writer: str) -> Piece:
    """What is said of a partition of a stream, as a piece that comes before all others."""
    return _note(stream, partition, writer, msgspec.json.encode(said))


def note_of_left(left: Left) -> Piece:
    """What a task leaves, as a piece."""
    return _note(LEFT, 0, left.task, msgspec.json.encode(left))


def said_in(piece: Piece) -> Said:
    """What ``note_of`` has put into a piece."""
    return _SAID.decode(piece.body)


def left_in(piece: Piece) -> Left:
    """What ``note_of_left`` has put into a piece."""
    return _LEFT.decode(piece.body)


def is_note(piece: Piece) -> bool:
    """Whether a piece has no rows, but says something."""
    return not piece.rows


def _note(stream: str, partition: int, writer: str, body: bytes) -> Piece:
    return Piece(stream, partition, NEVER, NEVER, 0, writer, 0, body)


_SAID = msgspec.json.Decoder(Said)
_LEFT = msgspec.json.Decoder(Left)
