"""Entries that expire: when each was written stands in front of its value, and a walk in small steps removes the old.

A value lives for ``ttl_ms`` of the time that ``advance`` states; no clock is read here. There is no index by time:
it would cost a second entry for each. What a read meets is checked, and the sweep goes round through all keys, as
many at a time as its caller allows. It remembers where it is and the oldest time it has met; while nothing that is
left can be due, it doesn't look. A store that is written all the time is walked once in an eighth of the time to live
at most, so an entry takes room for a little longer than it can be read.

Pure: times in, decisions out; nothing blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from headrace.core.errors import DeclarationError, UsageError

_TIME = struct.Struct(">Q")
_FOREVER = b"\xff" * _TIME.size
_ROUNDS_IN_A_LIFE = 8


class Stamps:
    """What stands in front of values: milliseconds, big-endian, so that bytes compare as times do."""

    size = _TIME.size

    def __init__(self, ttl_ms: int) -> None:
        if ttl_ms < 1:
            raise DeclarationError(f"a time to live of {ttl_ms} ms", hint="leave ttl out to keep entries for ever")
        self.ttl_ms = ttl_ms
        self._now: int | None = None

    def advance(self, now_ms: int) -> None:
        """Say what time it is. One before an earlier one changes nothing; one before 1970 is taken for 1970."""
        self._now = max(0, now_ms) if self._now is None else max(self._now, now_ms)

    @property
    def now(self) -> int:
        """The latest time said."""
        if self._now is None:
            raise UsageError("a store with a time to live wasn't told the time", hint="call advance(now_ms) first")
        return self._now

    def put_on(self, values: Iterable[bytes], *, lasting: bool = False) -> list[bytes]:
        """The values as they are stored, written now (``lasting``: never to expire)."""
        stamp = _FOREVER if lasting else _TIME.pack(self.now)
        return [stamp + value for value in values]

    def alive_from(self) -> bytes:
        """Stored values below this have expired. Before the first ``advance`` none has."""
        return _TIME.pack(0 if self._now is None else max(0, self._now - self.ttl_ms + 1))

    def take_off(self, stored: Sequence[bytes | None]) -> list[bytes | None]:
        """The values that are alive, without their stamps."""
        alive, size = self.alive_from(), self.size
        return [value[size:] if value is not None and value >= alive else None for value in stored]


class Sweep:
    """Where the walk through all keys is, and when the next one begins."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._due = 0
        self._oldest = _FOREVER
        self._began: int | None = None
        self.cursor = b""

    def is_due(self) -> bool:
        """Whether anything can have expired since the last walk."""
        return self._began is not None or self._stamps.now >= self._due

    def look_at(self, entries: Iterator[tuple[bytes, bytes]], budget: int) -> list[bytes]:
        """Which of the next ``budget`` entries, from ``cursor`` on, have expired."""
        if self._began is None:
            self._began = self._stamps.now
        alive = self._stamps.alive_from()
        expired: list[bytes] = []
        for looked, (key, value) in enumerate(entries):
            if looked == budget:
                self.cursor = key
                return expired
            if value < alive:
                expired.append(key)
            elif value < self._oldest:
                self._oldest = value[: Stamps.size]
        self._finish(self._began)
        return expired

    def _finish(self, began: int) -> None:
        # What was put behind the walker's back is no older than the walk.
        oldest = min(_TIME.unpack(self._oldest)[0], began)
        ttl = self._stamps.ttl_ms
        self._due = max(oldest + ttl, self._stamps.now + ttl // _ROUNDS_IN_A_LIFE)
        self._began, self._oldest, self.cursor = None, _FOREVER, b""
