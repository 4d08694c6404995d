"""Entries that expire: each value is stored after the time when it was put, and a sweep removes old entries.

A value expires ``ttl_ms`` after it was put, in the time that ``advance`` sets; no clock is read here. There is no index
by time, which would cost a second entry for each one. Instead every read checks the values that it returns, and the
sweep walks through all keys in a circle, as many at a time as its caller allows. The sweep remembers its position, and
the oldest time that it has met. While no remaining entry can have expired, it rests. It walks through a store at most
once in an eighth of the time to live, so an expired entry takes space a little longer than it can be read.

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
    """The stamps before values: big-endian milliseconds, so that bytes compare as times do.

    With a time to live of 10 ms and the time 25, values with a stamp below 16 have expired.
    """

    size = _TIME.size

    def __init__(self, ttl_ms: int) -> None:
        if ttl_ms < 1:
            raise DeclarationError(
                f"the time to live is {ttl_ms} ms, but must be at least 1", hint="leave out ttl to keep entries forever"
            )
        self.ttl_ms = ttl_ms
        self._now: int | None = None

    def advance(self, now_ms: int) -> None:
        """Set the time. It never goes back, and times before 1970 count as 1970."""
        self._now = max(0, now_ms) if self._now is None else max(self._now, now_ms)

    def is_at(self, now_ms: int) -> bool:
        """Whether ``advance`` to this time has no effect."""
        return self._now is not None and now_ms <= self._now

    @property
    def now(self) -> int:
        """The latest time that was set."""
        if self._now is None:
            raise UsageError(
                "a store has a time to live, but its clock was never set", hint="call advance(now_ms) first"
            )
        return self._now

    def stamp(self, values: Iterable[bytes], *, lasting: bool = False) -> list[bytes]:
        """Return the stored form of values that are put now. ``lasting`` values never expire."""
        stamp = _FOREVER if lasting else _TIME.pack(self.now)
        return [stamp + value for value in values]

    def alive_from(self) -> bytes:
        """Return the least stored value that hasn't expired. Before the first ``advance`` none has."""
        return _TIME.pack(0 if self._now is None else max(0, self._now - self.ttl_ms + 1))

    def strip(self, stored: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the values without their stamps, and None for expired ones."""
        alive, size = self.alive_from(), self.size
        return [value[size:] if value is not None and value >= alive else None for value in stored]


class Sweep:
    """The position of the walk through all keys, and when the next walk starts."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._due = 0
        self._oldest = _FOREVER
        self._began: int | None = None
        self.cursor = b""

    def is_due(self) -> bool:
        """Whether a walk is in progress, or an entry can have expired since the last one."""
        return self._began is not None or self._stamps.now >= self._due

    def expired_among(self, entries: Iterator[tuple[bytes, bytes]], budget: int) -> list[bytes]:
        """Return the expired keys among the next ``budget`` entries. ``entries`` starts at ``cursor``."""
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
        # Entries put before the cursor during the walk were not seen, but are no older than the walk's start.
        oldest = min(_TIME.unpack(self._oldest)[0], began)
        ttl = self._stamps.ttl_ms
        self._due = max(oldest + ttl, self._stamps.now + ttl // _ROUNDS_IN_A_LIFE)
        self._began, self._oldest, self.cursor = None, _FOREVER, b""
