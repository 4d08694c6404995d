"""The latest warnings of a task or a container: logged, counted, and kept for ``headrace status``."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from headrace.core.clock import Clock
from headrace.core.log import REPEAT_S, Field, Logger, is_milestone

KEPT = 5
"""How many different warnings are kept."""


class RecentWarning(msgspec.Struct, frozen=True, rename="camel"):
    """What was wrong, when it last happened (milliseconds since the epoch), and how often it has."""

    message: str
    at_ms: int
    times: int = 1


class RecentWarnings:
    """The latest different messages, the oldest first. Safe from any thread."""

    def __init__(self, clock: Clock, **fields: Field) -> None:
        """``fields`` say whose warnings these are; they are part of each log line."""
        self._clock = clock
        self._fields = fields
        self._lock = threading.Lock()
        self._kept: dict[str, RecentWarning] = {}
        self._logged_ms: dict[str, int] = {}
        self.total = 0
        """How many there were, repetitions included."""

    def add(self, log: Logger, message: str, **fields: Field) -> None:
        """Count and keep a warning. Log it the 1st, 10th, 100th, ... time, or if that was over a minute ago."""
        with self._lock:
            before = self._kept.pop(message, None)
            times = before.times + 1 if before is not None else 1
            now_ms = self._clock.now_ms()
            self._kept[message] = RecentWarning(message, now_ms, times)
            self.total += 1
            due = is_milestone(times - 1, times) or now_ms - self._logged_ms[message] >= REPEAT_S * 1000
            if due:
                self._logged_ms[message] = now_ms
            while len(self._kept) > KEPT:
                oldest = next(iter(self._kept))
                del self._kept[oldest], self._logged_ms[oldest]
        if due:
            log.warning(message, **self._fields, **fields, times=times if times > 1 else None)

    def latest(self) -> list[RecentWarning]:
        """The warnings that are kept, the oldest first."""
        with self._lock:
            return list(self._kept.values())

    def __iter__(self) -> Iterator[str]:
        return iter([one.message for one in self.latest()])

    def __getitem__(self, index: int) -> str:
        return list(self)[index]

    def __len__(self) -> int:
        return len(self._kept)
