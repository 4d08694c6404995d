"""The frames of a stream, from given positions on, until its end or for ever.

Without ``follow`` reading ends where the stream ended when it began. With it, it waits for more, and ends
with a sealed stream, with Ctrl-C, or when nobody reads the output any more. The wait is the only thing that
blocks.
"""

from __future__ import annotations

import select
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.cli.interrupt import Interrupt
from headrace.cli.place import Place
from headrace.core.errors import FrameError, UnavailableError, UsageError
from headrace.core.frame import ControlMessage, Header, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Consumer, Ended, Position, Records

_WAIT_MS = 500
_UNWATCHED_WAIT_MS = 50
_SILENCES_MAX = 20


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame and where it stands."""

    ssp: SSP
    offset: Offset
    after: Offset
    header: Header
    body: memoryview

    @property
    def where(self) -> str:
        """For errors."""
        return f"{self.ssp}, offset {self.offset}"


def control_of(frame: Frame) -> ControlMessage:
    """The frame's control message; raises ``FrameError`` with its place."""
    try:
        return decode_control(frame.header.kind, frame.body)
    except FrameError as error:
        raise FrameError(f"{frame.where}: {error.message}", hint=error.hint) from error


class Gate(Protocol):
    """Which frames are shown, and when. Frames may wait until it is known whether they are shown."""

    @property
    def held(self) -> int:
        """How many wait."""
        ...

    def admit(self, frame: Frame) -> Sequence[Frame]:
        """What is shown now that this frame has come: nothing, the frame, or some that were held until now."""
        ...


class OpenGate:
    """Shows every frame as it comes."""

    held = 0

    def admit(self, frame: Frame) -> Sequence[Frame]:
        """See ``Gate``."""
        return (frame,)


class FrameReader:
    """Reads the frames of one stream. ``output_fd`` is watched for a reader that goes away."""

    def __init__(
        self, place: Place, gate: Gate, interrupt: Interrupt, *, follow: bool = False, output_fd: int | None = None
    ) -> None:
        self._place = place
        self._gate = gate
        self._interrupt = interrupt
        self._follow = follow
        self._output_fd = output_fd
        self._ended: set[SSP] = set()

    def read(self, starts: Mapping[SSP, Position]) -> Generator[list[Frame]]:
        """What each look at the stream brings; never an empty list."""
        extents = self._place.admin().extents(self._place.stream.name)
        ends = {ssp: extents[ssp.partition].upcoming for ssp in starts}
        consumer = self._place.system.consumer()
        try:
            for ssp, position in starts.items():
                consumer.register(ssp, position)
            yield from self._poll_to_the_end(consumer, ends)
        finally:
            consumer.close()

    def _poll_to_the_end(self, consumer: Consumer, ends: Mapping[SSP, Offset]) -> Iterator[list[Frame]]:
        silences = 0
        while not self._interrupt.requested:
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
                    raise UsageError(f"{self._place.stream} is made of rows, not of frames: read its files instead")
            if frames:
                yield frames
            silences = 0 if polled else silences + 1
            if silences > _SILENCES_MAX and not self._follow:
                raise UnavailableError(f"{unread[0]}: nothing comes, though it goes on to offset {ends[unread[0]]}")
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
                raise FrameError(f"{records.ssp}, offset {offset}: {error.message}", hint=error.hint) from error
            yield from self._gate.admit(Frame(records.ssp, offset, after, header, body_of(payload)))

    def _wait(self, consumer: Consumer) -> bool:
        """Wait for more, or for an interrupt; False when nobody reads the output any more."""
        poll = select.poll()
        poll.register(self._interrupt.fd, select.POLLIN)
        source = consumer.fileno()
        if source is not None:
            poll.register(source, select.POLLIN)
        if self._output_fd is not None:
            # No event is asked for: an output that was closed reports itself.
            poll.register(self._output_fd, 0)
        ready = poll.poll(_UNWATCHED_WAIT_MS if source is None else _WAIT_MS)
        return all(fd != self._output_fd for fd, _ in ready)
