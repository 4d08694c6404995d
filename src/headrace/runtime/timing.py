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
