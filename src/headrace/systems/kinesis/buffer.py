"""Records of one shard that were fetched and not handed out yet. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headrace.systems.base import Unread
from headrace.systems.kinesis.shard_position import Position


@dataclass(slots=True)
class Fetched:
    """User records of one shard that follow one another, column by column.

    ``end`` is the position after the last of them. It may be further than that: what was dropped has no row.
    ``subs`` are their places in their aggregates; None if no record is an aggregate. ``unread`` is what has no row.
    """

    data: list[bytes]
    keys: list[str]
    sequences: list[int]
    arrived_ms: list[int]
    end: Position
    subs: list[int] | None = None
    unread: Sequence[Unread] = ()

    def __len__(self) -> int:
        return len(self.data)

    def position_after(self, rows: int) -> Position:
        """Return the shard's position after this many rows were returned."""
        if rows == len(self.data):
            return self.end
        sequence = self.sequences[rows - 1]
        if self.subs is None or self.sequences[rows] != sequence:
            return Position(sequence)
        return Position(sequence, self.subs[rows - 1])

    def part(self, start: int, stop: int) -> Fetched:
        """The rows from ``start`` up to ``stop``, which is after ``start``."""
        if start == 0 and stop == len(self.data):
            return self
        span = slice(start, stop)
        subs = None if self.subs is None else self.subs[span]
        end = self.position_after(stop)
        unread = self.unread if stop == len(self.data) else ()
        return Fetched(self.data[span], self.keys[span], self.sequences[span], self.arrived_ms[span], end, subs, unread)


def joined(parts: Sequence[Fetched]) -> Fetched:
    """Combine consecutive parts into one for a poll, which doesn't need the boundaries."""
    if len(parts) == 1:
        return parts[0]
    whole = Fetched([], [], [], [], parts[-1].end, unread=[unread for part in parts for unread in part.unread])
    for part in parts:
        whole.data += part.data
        whole.keys += part.keys
        whole.sequences += part.sequences
        whole.arrived_ms += part.arrived_ms
    return whole


@dataclass(slots=True)
class Buffer:
    """The queue of one shard."""

    bytes: int = 0
    rows: int = 0
    _queue: deque[tuple[Fetched, list[int]]] = field(default_factory=deque)
    """With the bytes up to the end of each row."""
    _taken: int = 0
    """How many rows of the first piece were handed out."""

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, fetched: Fetched) -> None:
        """Append records; also none, if only the position moves."""
        ends = list(accumulate(map(len, fetched.data)))
        self._queue.append((fetched, ends))
        self.rows += len(ends)
        self.bytes += ends[-1] if ends else 0

    def take(self, max_bytes: int) -> Fetched:
        """Take up to ``max_bytes`` from the front, but at least one row if there is any. There must be something."""
        parts: list[Fetched] = []
        room = max_bytes
        while self._queue and (room > 0 or not parts):
            fetched, ends = self._queue[0]
            start = self._taken
            before = ends[start - 1] if start else 0
            stop = bisect_right(ends, before + room, lo=start)
            if stop == start and ends:
                if any(map(len, parts)):
                    break
                stop += 1  # at least one, however large it is
            size = ends[stop - 1] - before if stop else 0
            parts.append(fetched.part(start, stop))
            room -= size
            self.bytes -= size
            self.rows -= stop - start
            if stop < len(ends):
                self._taken = stop
                break
            self._queue.popleft()
            self._taken = 0
        return joined(parts)

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the records arrived."""
        for number, (fetched, _) in enumerate(self._queue):
            if fetched.data:
                return fetched.arrived_ms[0 if number else self._taken]
        return None
