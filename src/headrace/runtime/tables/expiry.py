"""Removes expired rows in small steps, a few times a second. On the run loop's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

SWEEP_INTERVAL_MS = 250
SWEEP_ROWS = 4096
"""The number of rows that a step examines: a few milliseconds of work."""


class Expiring(Protocol):
    """A store whose rows expire by a clock that is set from outside."""

    def advance(self, now_ms: int) -> None:
        """Set the clock."""
        ...

    def sweep(self, now_ms: int, budget: int) -> int:
        """Remove the expired rows among the next ``budget`` rows. Return how many were removed."""
        ...


class Sweeper:
    """Sets the clock of stores, and sweeps them."""

    def __init__(self, stores: Iterable[Expiring]) -> None:
        self._stores = tuple(stores)
        self._at = 0

    def tell_time(self, now_ms: int) -> None:
        """Set the wall clock."""
        for store in self._stores:
            store.advance(now_ms)

    def due_ms(self) -> int | None:
        """When (wall clock) to sweep again; None: nothing ever expires."""
        return self._at if self._stores else None

    def on_time(self, now_ms: int) -> None:
        """Remove some expired rows, if it is time. A clock that was set back doesn't delay that."""
        if not self._stores or now_ms < self._at <= now_ms + SWEEP_INTERVAL_MS:
            return
        self._at = now_ms + SWEEP_INTERVAL_MS
        for store in self._stores:
            store.sweep(now_ms, SWEEP_ROWS)
