"""The frames of a stream, from given positions on, until its end or forever.

Without ``follow`` reading ends where the stream ended when reading began. With it the reader waits for more, and ends
with a sealed stream or when the caller has had enough. Only the caller's way to wait blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl
from typing_extensions import override

from headrace.checkpoint.read_committed import ReadCommitted
from headrace.checkpoint.record import ReaderPosition
from headrace.core.errors import FrameError, ProtocolError, UnavailableError, UsageError
from headrace.core.frame import ControlMessage, Header, Kind, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.serdes.ipc import WRITER_HINT, decode_rows
from headrace.systems.base import Consumer, Ended, Position, Records, System

WAIT_MS = 500
UNWATCHED_WAIT_MS = 50
"""The longest wait (ms), and the one for systems whose consumers have no descriptor to wait on."""

_EMPTY_POLLS_MAX = 20
_DAMAGED_HINT = "an app wrote the frame, so it was damaged later: headrace stream verify checks the files of a log"
_CONTROL = (Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE)

Wait = Callable[[Consumer], bool]
"""Wait for a consumer to have more, but not for long; False: stop reading."""
Damaged = Callable[[FrameError], None]
"""Called for each record that can't be read. Raises the error, or returns if the record is to be left out."""


def refuse(error: FrameError) -> None:
    """Raise the error: every record is needed."""
    raise error


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame and its place."""

    ssp: SSP
    offset: Offset
    after: Offset
    header: Header
    body: memoryview

    @property
    def where(self) -> str:
        """Its place, for errors."""
        return f"{self.ssp}, offset {self.offset}"


def rows_of(frame: Frame) -> pl.DataFrame:
    """The frame's rows; raises ``FrameError`` with its place, and with what its header says of its writer."""
    try:
        return decode_rows(frame.body)
    except FrameError as error:
        header, writer, hint = frame.header, "a writer outside of apps", error.hint
        if header.seq:  # only apps number their frames
            writer = f"a task of an app (producer {header.producer}, generation {header.generation})"
            hint = _DAMAGED_HINT if hint == WRITER_HINT else hint
        raise FrameError(f"{frame.where}, in a frame of {writer}: {error.message}", hint=hint) from error


def control_of(frame: Frame) -> ControlMessage:
    """The frame's control message; raises ``FrameError`` with its place."""
    try:
        return decode_control(frame.header.kind, frame.body)
    except FrameError as error:
        raise FrameError(f"{frame.where}: {error.message}", hint=error.hint) from error


class Gate(Protocol):
    """Decides which frames are shown. A frame may be held until that is known."""

    @property
    def held(self) -> int:
        """How many frames are held."""
        ...

    def admit(self, frame: Frame) -> Sequence[Frame]:
        """Take a frame; return the frames to show now: none, this one, or some that were held until now."""
        ...

    def position(self, ssp: SSP) -> ReaderPosition | None:
        """Where to resume once everything shown so far is processed; None if nothing has arrived."""
        ...


class OpenGate(Gate):
    """Shows every frame as it comes."""

    held = 0

    def __init__(self) -> None:
        self._after: dict[SSP, Offset] = {}

    @override
    def admit(self, frame: Frame) -> Sequence[Frame]:
        self._after[frame.ssp] = frame.after
        return (frame,)

    @override
    def position(self, ssp: SSP) -> ReaderPosition | None:
        return ReaderPosition(offset=self._after[ssp]) if ssp in self._after else None


class CommittedGate(Gate):
    """Shows a frame once its checkpoint is committed; drops frames that were taken back."""

    def __init__(self, positions: Mapping[SSP, ReaderPosition] | None = None) -> None:
        """``positions`` are an earlier gate's, from which to resume."""
        self._partitions: dict[SSP, ReadCommitted[Frame]] = {
            ssp: ReadCommitted(position) for ssp, position in (positions or {}).items()
        }

    @property
    @override
    def held(self) -> int:
        return sum(partition.held for partition in self._partitions.values())

    @override
    def admit(self, frame: Frame) -> Sequence[Frame]:
        partition = self._partitions.get(frame.ssp)
        if partition is None:
            partition = self._partitions[frame.ssp] = ReadCommitted()
        control = control_of(frame) if frame.header.kind in _CONTROL else None
        try:
            released = partition.receive(frame.offset, frame.after, frame.header, control, frame)
        except ProtocolError as error:
            raise ProtocolError(f"{frame.ssp}: {error.message}", hint=error.hint) from error
        return [each.frame for each in released]

    @override
    def position(self, ssp: SSP) -> ReaderPosition | None:
        partition = self._partitions.get(ssp)
        return None if partition is None else partition.position()


class FrameReader:
    """Reads the frames of one stream. ``enough`` ends it before a look; ``damaged`` gets errors of records."""

    def __init__(
        self,
        system: System,
        stream: StreamId,
        gate: Gate,
        wait: Wait,
        *,
        follow: bool = False,
        enough: Callable[[], bool] = lambda: False,
        damaged: Damaged = refuse,
    ) -> None:
        self._system = system
        self._stream = stream
        self._gate = gate
        self._wait = wait
        self._follow = follow
        self._enough = enough
        self._damaged = damaged
        self._ended: set[SSP] = set()

    def read(self, starts: Mapping[SSP, Position]) -> Generator[list[Frame]]:
        """For each poll that finds something the frames to show: none if all are held."""
        extents = self._system.admin().extents(self._stream.name)
        ends = {ssp: extents[ssp.partition].upcoming for ssp in starts}
        consumer = self._system.consumer()
        try:
            for ssp, position in starts.items():
                consumer.register(ssp, position)
            yield from self._poll_to_the_end(consumer, ends)
        finally:
            consumer.close()

    def _poll_to_the_end(self, consumer: Consumer, ends: Mapping[SSP, Offset]) -> Iterator[list[Frame]]:
        empty_polls = 0
        while not self._enough():
            unread = [ssp for ssp in ends if not self._is_over(ssp, consumer, ends[ssp])]
            if not unread:
                return
            polled = consumer.poll(unread)
            frames: list[Frame] = []
            for item in polled:
                if isinstance(item, Ended):
                    self._ended.add(item.ssp)
                elif isinstance(item, Records):
                    frames += self._admitted(item)
                else:
                    raise UsageError(f"{self._stream} consists of rows, not of frames: read its files instead")
            if polled:
                yield frames
            empty_polls = 0 if polled else empty_polls + 1
            if empty_polls > _EMPTY_POLLS_MAX and not self._follow:
                raise UnavailableError(
                    f"{unread[0]}: no record arrives, though the stream continues to offset {ends[unread[0]]}"
                )
            if not polled and not self._wait(consumer):
                return

    def _is_over(self, ssp: SSP, consumer: Consumer, end: Offset) -> bool:
        return ssp in self._ended or (not self._follow and consumer.position(ssp) >= end)

    def _admitted(self, records: Records) -> Iterator[Frame]:
        afters = [*records.offsets[1:], records.next]
        for offset, after, payload in zip(records.offsets, afters, records.payloads, strict=True):
            try:
                header = decode_header(payload)
            except FrameError as error:
                self._damaged(FrameError(f"{records.ssp}, offset {offset}: {error.message}", hint=error.hint))
                continue
            yield from self._gate.admit(Frame(records.ssp, offset, after, header, body_of(payload)))
