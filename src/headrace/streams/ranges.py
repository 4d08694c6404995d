"""Frames of a partition between two places, and results of batch jobs as frames.

A range shows the frames that become final by what is between its places: those that a checkpoint in it commits, even if
they are before it, and plain ones in it. So ranges that follow one another show each frame once, however often they are
read. Blocks only while a consumer is waited for, which the end of a range bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from headrace.api.specs import StreamSpec
from headrace.core.errors import PlanError, TrimmedOffsetError, UnavailableError, UsageError
from headrace.core.frame import Kind
from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.protocol.read_committed import ReadCommitted
from headrace.protocol.record import Covered, ReaderPosition
from headrace.rows.ipc import encode_rows
from headrace.rows.pieces import TIME, Piece
from headrace.streams.committed_writer import CommittedWriter, committed_writer_in
from headrace.streams.reader import EMPTY_POLLS_MAX, Frame, frames_of, receive, wait_for_more
from headrace.systems.base import Consumer, Edge, Ended, Records, System

_log = logger(__name__)
T = TypeVar("T")
Keep = Callable[[Frame], T]


@dataclass(frozen=True, slots=True)
class Place:
    """How far a partition was read: up to ``end``. ``position`` is where to read on from, which may be before it."""

    end: Offset
    position: ReaderPosition

    @classmethod
    def at(cls, offset: Offset) -> Place:
        """The place of a reader that begins at ``offset``, without knowing what is before it."""
        return cls(offset, ReaderPosition(offset=offset))


class RangeReader(Generic[T]):
    """Reads one partition from a place on, range after range. One thread uses it.

    ``keep`` returns what is kept of a user frame until it is shown. Without ``committed`` every frame is shown as it
    comes. ``lossy``: if frames were trimmed before they were read, go on at the oldest one and log it.
    """

    def __init__(
        self, system: System, ssp: SSP, start: Place, keep: Keep[T], *, committed: bool = True, lossy: bool = False
    ) -> None:
        self._system = system
        self._ssp = ssp
        self._keep = keep
        self._committed = committed
        self._lossy = lossy
        self._end = start.end
        self._next = start.end if start.position.offset is None or not committed else start.position.offset
        self._state: ReadCommitted[T | None] = ReadCommitted(start.position)
        self._shown_before_loss: dict[int, Covered] = {}

    @property
    def place(self) -> Place:
        """Where the next range begins."""
        if not self._committed:
            return Place(self._end, ReaderPosition(offset=self._end))
        position = self._state.position()
        if position.offset is None:
            position = msgspec.structs.replace(position, offset=self._next)
        return Place(self._end, position)

    def read(self, end: Offset) -> Generator[list[T]]:
        """Show the frames that begin between the place and ``end``: those that become final together, as one list.

        When it is exhausted, or closed after a list, the place has moved past everything shown.
        """
        if end <= self._end:
            return
        with closing(self._system.consumer()) as consumer:
            try:
                consumer.register(self._ssp, self._next)
            except TrimmedOffsetError as error:
                self._lose(consumer, end, error)
            yield from self._poll(consumer, end)

    def _poll(self, consumer: Consumer, end: Offset) -> Generator[list[T]]:
        empty_polls = 0
        while self._next < end:
            try:
                polled = consumer.poll([self._ssp])
            except TrimmedOffsetError as error:
                self._lose(consumer, end, error)
                continue
            for item in polled:
                if isinstance(item, Records):
                    yield from self._shown(item, end)
                elif isinstance(item, Ended):
                    self._passed(min(item.next, end))
                    self._require(end)
                    return
                else:
                    raise UsageError(f"{self._ssp} consists of rows, not of frames: read its files instead")
            empty_polls = 0 if polled else empty_polls + 1
            if empty_polls > EMPTY_POLLS_MAX:
                self._require(end)
            if not polled:
                wait_for_more(consumer)

    def _require(self, end: Offset) -> None:
        if self._next < end:
            what = f"{self._ssp}: no record comes after offset {self._next}, though the range continues to {end}"
            hint = "check that the home is the same folder on every machine, and that the stream wasn't replaced"
            raise UnavailableError(what, hint=hint)

    def _shown(self, records: Records, end: Offset) -> Generator[list[T]]:
        for frame in frames_of(records, before=end):
            shown = self._received(frame)
            self._passed(frame.after)
            if shown:
                yield shown
        self._passed(next((offset for offset in records.offsets if offset >= end), records.next))

    def _passed(self, offset: Offset) -> None:
        self._next = offset
        self._end = max(self._end, offset)

    def _received(self, frame: Frame) -> list[T]:
        is_user = frame.header.kind is Kind.USER
        if not self._committed:
            return [self._keep(frame)] if is_user else []
        before = self._shown_before_loss.get(frame.header.producer)
        if before is not None and (frame.header.generation, frame.header.seq) <= (before.generation, before.seq):
            return []
        released = receive(self._state, frame, self._keep(frame) if is_user else None)
        return [kept for kept in released if kept is not None]

    def _lose(self, consumer: Consumer, end: Offset, error: TrimmedOffsetError) -> None:
        """Go on at the oldest frame, as a reader that starts there; what was shown already isn't shown again."""
        extent = self._system.admin().extents(self._ssp.stream.name)[self._ssp.partition]
        lost = min(extent.oldest, end) - self._next
        if not self._lossy:
            raise TrimmedOffsetError(
                f"{self._ssp}: {lost} bytes from offset {self._next} on were trimmed before they were read; "
                f"the oldest offset is {extent.oldest}",
                hint="set failOnDataLoss to false to go on at the oldest; to lose nothing, trim later or read earlier",
            ) from error
        what, place = "frames were trimmed before they were read; goes on at the oldest", str(self._ssp)
        _log.warning(what, partition=place, offset=self._next, oldest=extent.oldest, bytes=lost)
        before = self.place.position
        self._shown_before_loss = {each.producer: each for each in before.covered}
        oldest = max(extent.oldest, self._next)
        self._state = ReadCommitted(ReaderPosition(offset=oldest, plain_before=before.plain_before))
        self._passed(min(oldest, end))
        if oldest < end:
            consumer.register(self._ssp, Edge.OLDEST)


class StreamOfResults:
    """One output."""

    def __init__(self, writer: CommittedWriter) -> None:
        self._writer = writer

    def publish(self, version: int, pieces: Sequence[Piece]) -> None:
        """Publish pieces as a version, unless it or a later one exists already."""
        self._writer.publish(version, ((piece.partition, encode_rows(piece.frame.drop(TIME))) for piece in pieces))

    def close(self) -> None:
        """Release it."""
        self._writer.close()


def stream_of_results(spec: StreamSpec, writer: str) -> StreamOfResults:
    """Open an output for a writer. Raises ``PlanError`` if it isn't in a log."""
    if spec.system.kind != "log":
        what = f"a batch job can't write output {spec.id!r} ({spec.location}) to a system of kind {spec.system.kind!r}"
        hint = "write it to a log, to files or to a table; or take it as a DataFrame: app.to_dataframe(...)"
        raise PlanError(what, hint=hint)
    return StreamOfResults(committed_writer_in(Path(spec.system.options["root"]), spec.stream, writer))
