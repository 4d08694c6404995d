"""Fetched records, and the feed of a partition's records that wait for a poll. Pure; the caller has the lock."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.core.ids import Offset
from headrace.serdes.headers import Headers


@dataclass(slots=True)
class Fetched:
    """Records of one partition, in order. ``next`` is where reading goes on after them, beyond gaps.

    ``keys``, ``times`` (ms since the epoch) and ``headers`` are empty unless they are wanted. ``size`` is in bytes.
    Without records only the position moves. ``lost``: how many offsets before ``next`` were deleted unread.
    """

    offsets: Sequence[Offset]
    values: list[bytes | None]
    next: Offset
    size: int = 0
    keys: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    lost: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dense(self) -> bool:
        """Whether there are no gaps between the records."""
        return not self.values or self.offsets[-1] - self.offsets[0] + 1 == len(self.values)

    def before(self, end: Offset) -> Fetched:
        """The records before an offset."""
        if self.next <= end:
            return self
        n = bisect_left(self.offsets, end)
        return replace(
            self,
            offsets=self.offsets[:n],
            values=self.values[:n],
            next=end,
            keys=self.keys[:n],
            times=self.times[:n],
            headers=self.headers[:n],
        )

    def first_at(self, time_ms: int) -> Offset | None:
        """Return the offset of the first record with this timestamp or a later one; None if there is none."""
        index = next((i for i, time in enumerate(self.times) if time >= time_ms), None)
        return None if index is None else self.offsets[index]


def together(pieces: Sequence[Fetched]) -> Fetched:
    """Pieces that follow one another as one, at least one. None of them may have ``lost``."""
    if len(pieces) == 1:
        return pieces[0]
    offsets: list[Offset] = []
    whole = Fetched(offsets, [], pieces[-1].next, sum(piece.size for piece in pieces))
    for piece in pieces:
        offsets.extend(piece.offsets)
        whole.values.extend(piece.values)
        whole.keys.extend(piece.keys)
        whole.times.extend(piece.times)
        whole.headers.extend(piece.headers)
    return whole


class Feed:
    """What was fetched of one partition from ``position`` on, and wasn't handed out."""

    def __init__(self, partition: int, position: Offset) -> None:
        self.partition = partition
        self.fetched_to = position
        """Where fetching goes on."""
        self.end: Offset | None = None
        """Where the partition ended when its end was reached last."""
        self.bytes = 0
        self.error: Exception | None = None
        self.closed = False
        self.paused = False
        self._waiting: deque[Fetched] = deque()

    def put(self, fetched: Fetched) -> None:
        """Take in what was fetched."""
        self._waiting.append(fetched)
        self.bytes += fetched.size
        self.fetched_to = fetched.next

    def ended(self, offset: Offset) -> None:
        """The end of the partition was reached: everything before ``offset`` was fetched."""
        self.end = offset
        if offset > self.fetched_to:
            self.put(Fetched([], [], offset))

    @property
    def at_end(self) -> bool:
        """Whether everything was fetched up to the last known end."""
        return self.end == self.fetched_to

    @property
    def waiting(self) -> bool:
        """There is something to take."""
        return bool(self._waiting)

    def take(self, max_bytes: int) -> Fetched | None:
        """Take up to so many bytes, but at least one piece; None if there is nothing. What is lost comes alone."""
        pieces: list[Fetched] = []
        room = max_bytes
        while self._waiting and (room > 0 or not pieces) and not (pieces and self._waiting[0].lost):
            piece = self._waiting.popleft()
            pieces.append(piece)
            room -= piece.size
            if piece.lost:
                break
        if not pieces:
            return None
        self.bytes -= max_bytes - room
        return together(pieces)
