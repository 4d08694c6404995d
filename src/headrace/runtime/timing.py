"""When something periodic is due, on a clock that the caller reads."""

from __future__ import annotations


class Every:
    """Due once per interval; ``due`` says so at most once for each."""

    __slots__ = ("interval_ms", "next_ms")

    def __init__(self, interval_ms: float, start_ms: float) -> None:
        self.interval_ms = interval_ms
        self.next_ms = start_ms + interval_ms

    def due(self, now_ms: float) -> bool:
        """Whether it is time; then the next time is an interval from now."""
        if now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + self.interval_ms
        return True


TICK_INTERVAL_MS = 10


class Ticks:
    """When to show the protocol the wall clock: now and then, and as soon as another checkpoint interval begins."""

    def __init__(self, interval_ms: int, now_ms: float) -> None:
        self._interval_ms = interval_ms
        self._every = Every(TICK_INTERVAL_MS, now_ms)
        self._shown = 0

    def due(self, clock_ms: int, now_ms: float) -> bool:
        """Return whether the clock is to be shown now (``now_ms``, monotonic)."""
        interval = clock_ms // self._interval_ms
        if not self._every.due(now_ms) and interval == self._shown:
            return False
        self._shown = interval
        return True

    def left_ms(self, clock_ms: int) -> int:
        """Return how long the interval that was shown last still lasts; 0 if another one has begun."""
        interval, into = divmod(clock_ms, self._interval_ms)
        return 0 if interval != self._shown else self._interval_ms - into
