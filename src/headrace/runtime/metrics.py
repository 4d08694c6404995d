"""Counters and warnings of one task: the run loop adds to them and status pages read them, without a lock."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from headrace.core.clock import Clock, WallClock
from headrace.core.log import Throttle, logger
from headrace.core.recent_warnings import RecentWarnings

_log = logger(__name__)

_LOGGED = {
    "late": "messages came too late and had no effect",
    "rollbacks": "the task rolls back to its last commit, because a task upstream did",
    "timers_dropped": "timers that were set while the app ended will not fire",
}
"""Counters that are also logged at info, as nothing else says what they count."""


COUNTERS = frozenset(
    {
        "backfilled", "cache_hits", "cache_misses", "call_failures", "call_ms", "call_retries", "call_timeouts",
        "calls", "calls_in_flight", "commits_asked_for", "dead_lettered", "duplicates", "failed_skipped", "late",
        "lost", "rollbacks", "silenced", "skipped", "timers_dropped", "timers_fired",
    }
)  # fmt: skip
"""The counters that tasks have without a low-level task's own, which are called ``<id of the step>.<name>``."""


class Counters(Protocol):
    """Where an operator counts what would otherwise be invisible."""

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the task."""
        ...


class TaskMetrics:
    """What a task has done since it started."""

    def __init__(self, task: str | None = None, clock: Clock | None = None) -> None:
        self.rows_in = 0
        self.rows_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.batches = 0
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.warnings = RecentWarnings(clock or WallClock(), task=task)
        self._task = task
        self._throttle = Throttle(_log)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a named counter (``late``, ``skipped``, ``dead_lettered``, ...)."""
        if by:
            self.counters[name] += by
            if name in _LOGGED:
                self._throttle.info(_LOGGED[name], by=by, task=self._task)
