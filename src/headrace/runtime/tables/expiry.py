"""When to look for what has expired: in small steps, a few times a second. On the run-loop thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

SWEEP_INTERVAL_MS = 250
SWEEP_ROWS = 4096
"""How many rows a step of the walk looks at: some milliseconds, a few times a second."""


class Expiring(Protocol):
    """A store whose rows expire by the time that it is told."""

    def advance(self, now_ms: int) -> None:
        """Say what time it is."""
        ...

    def sweep(self, now_ms: int, budget: int) -> int:
        """Remove what has expired among the next ``budget`` rows; how many it was."""
        ...


class Sweeper:
    """Tells stores the time, and walks through them."""

    def __init__(self, stores: Iterable[Expiring]) -> None:
        self._stores = tuple(stores)
        self._at = 0

    def tell_time(self, now_ms: int) -> None:
        """Say what the wall clock shows."""
        for store in self._stores:
            store.advance(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) to look again; None: nothing ever expires."""
        return self._at if self._stores else None

    def on_time(self, now_ms: int) -> None:
        """Remove some of what has expired, if it is time. A clock that was set back doesn't put that off."""
        if not self._stores or now_ms < self._at <= now_ms + SWEEP_INTERVAL_MS:
            return
        self._at = now_ms + SWEEP_INTERVAL_MS
        for store in self._stores:
            store.sweep(now_ms, SWEEP_ROWS)
