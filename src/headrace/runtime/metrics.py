"""Counters of one task: plain numbers that the run loop adds to and status pages read, without a lock."""

from __future__ import annotations

from collections import defaultdict


class TaskMetrics:
    """What a task has done since it started."""

    def __init__(self) -> None:
        self.rows_in = 0
        self.rows_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.batches = 0
        self.counters: defaultdict[str, int] = defaultdict(int)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a named counter (``late``, ``skipped``, ``dead_lettered``, ...)."""
        if by:
            self.counters[name] += by
