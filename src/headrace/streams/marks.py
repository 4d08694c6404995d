"""Writes that can be continued: their frames say which write they belong to, and which row of its input comes next.

The producer of such a frame is a hash of the write's id, and its generation is the number of the input row after those
that the frame has. A repeated write reads both from the stream, so it knows what has been written even if no process
was there to be told: rows below a partition's number are in that partition, or belong elsewhere. The log appends whole
frames, those of one partition in order.
"""

from __future__ import annotations

from hashlib import blake2b

from headrace.core.errors import UsageError
from headrace.core.frame import UNVERSIONED, Header, Kind, encode
from headrace.core.ids import SSP, StreamId
from headrace.core.readable import readable
from headrace.streams.frames import UNWATCHED_WAIT_MS, WAIT_MS, FrameReader, OpenGate
from headrace.systems.base import Consumer, Edge, StreamInfo, System

_NUMBER_MAX = 2**31 - 1


class WriteMark:
    """The mark in the frames of one write, and the progress of earlier attempts in each partition."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        digest = blake2b(id_.encode(), digest_size=4).digest()
        self._producer = int.from_bytes(digest, "big") % _NUMBER_MAX + 1  # 0 is a write without an id
        self._reached: dict[int, int] = {}

    def find(self, system: System, stream: StreamId, info: StreamInfo) -> None:
        """Read the progress of this write from the stream. Raises ``UsageError`` if it can't be determined."""
        reader = FrameReader(system, stream, OpenGate(), _wait)
        for frames in reader.read({SSP(stream, number): Edge.OLDEST for number in range(info.partitions)}):
            for frame in frames:
                if frame.header.producer == self._producer and frame.header.version == UNVERSIONED:
                    reached = max(frame.header.generation, self.reached(frame.ssp.partition))
                    self._reached[frame.ssp.partition] = reached
        if self.furthest == _NUMBER_MAX:
            raise UsageError(
                f"write {self.id!r} to {stream} has more than {_NUMBER_MAX - 1:,} rows, and can't be continued",
                hint="write the rest of its input under another id",
            )

    @property
    def furthest(self) -> int:
        """The highest number that any partition has reached."""
        return max(self._reached.values(), default=0)

    def reached(self, partition: int) -> int:
        """The number of the first row that isn't in this partition yet, even if it belongs there."""
        return self._reached.get(partition, 0)

    def header(self, row_after: int) -> bytes:
        """Return the header of a frame; ``row_after`` is the number of the input row after those that it has."""
        return encode(Header(Kind.USER, self._producer, min(row_after, _NUMBER_MAX)))


def _wait(consumer: Consumer) -> bool:
    number = consumer.fileno()
    readable(number, UNWATCHED_WAIT_MS if number is None else WAIT_MS)
    return True
