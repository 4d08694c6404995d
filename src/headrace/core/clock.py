"""Time as a contract, so that tests and the simulator can own it."""

from __future__ import annotations

import time
from typing import Protocol

from typing_extensions import override


class Clock(Protocol):
    """Milliseconds: wall time for labels and timers, monotonic time for waits."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""
        ...


class WallClock(Clock):
    """The machine's clock."""

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000


class ManualClock(Clock):
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._behind_ms = 0

    @override
    def now_ms(self) -> int:
        return self._now_ms - self._behind_ms

    @override
    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def set_back(self, ms: int) -> None:
        """Show a wall time so much earlier from now on, as when somebody sets the clock; time doesn't go back."""
        self._behind_ms += ms

    def advance(self, ms: int) -> None:
        """Move time forward."""
        if ms < 0:
            raise ValueError("time doesn't go back")
        self._now_ms += ms
