"""The clock as a parameter, so that tests and the simulator can control time."""

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
        """Milliseconds since an arbitrary moment; they never decrease."""
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
    """A clock that stands still until it is moved."""

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
        """Show an earlier wall time from now on, as when the clock is set. Monotonic time isn't affected."""
        self._behind_ms += ms

    def wait(self, ms: int) -> None:
        """Let monotonic time pass while the wall clock stands still."""
        self.advance(ms)
        self.set_back(ms)

    def advance(self, ms: int) -> None:
        """Move time forward."""
        if ms < 0:
            raise ValueError("time doesn't go back")
        self._now_ms += ms
