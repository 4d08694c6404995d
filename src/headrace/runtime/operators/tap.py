"""Sample the incoming rows of a step, for a user who peeks.

The run loop gives it batches; another thread reads what was taken, and throws the tap away.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

ROWS_A_BATCH = 5


class Tap:
    """Takes the first rows of the next batches: ``rows`` of them, until ``until_ms``."""

    def __init__(self, rows: int, until_ms: float, now_ms: Callable[[], float]) -> None:
        self._rows = rows
        self._until_ms = until_ms
        self._now_ms = now_ms
        self._taken: tuple[pl.DataFrame, ...] = ()

    @property
    def taken(self) -> tuple[pl.DataFrame, ...]:
        """What was taken so far."""
        return self._taken

    @property
    def missing(self) -> int:
        """How many rows it still wants."""
        return self._rows - sum(rows.height for rows in self._taken)

    def take(self, rows: pl.DataFrame) -> bool:
        """Take some of these rows; returns whether it wants more."""
        if self._now_ms() >= self._until_ms or self.missing <= 0:
            return False
        self._taken = (*self._taken, rows.head(min(ROWS_A_BATCH, self.missing)))
        return self.missing > 0
