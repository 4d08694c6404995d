"""Choose the version that a task commits next, and the label of the frames that it sends. Pure.

Versions are milliseconds of the shared clock. A timer-driven task commits at multiples of the checkpoint interval, so
tasks with equal intervals choose equal labels. A command-driven task commits versions that its upstream tasks have
closed.

A *cut* is a version that every task commits exactly, instead of passing over it. At a cut, every task has processed
exactly the frames labelled up to it, so nothing is in flight between tasks, and their commits fit together.
"""

from __future__ import annotations

from headrace.core.frame import END_VERSION


class Cadence:
    """The clock and the cut of one task. ``clock`` is the beginning of the present interval; ``cut`` may be None."""

    def __init__(self, interval_ms: int) -> None:
        self.clock = 0
        self.cut: int | None = None
        self._interval = interval_ms

    def tick(self, now_ms: int) -> None:
        """Set the wall clock. Labels are milliseconds, so they rise even if the next start has a longer interval."""
        self.clock = now_ms - now_ms % self._interval

    def first_label(self, version: int, *, timer_driven: bool) -> int:
        """Return the label after a start from the commit of ``version``."""
        return self._timely(version) if timer_driven else version + 1

    def closed(self, version: int, closed: int, *, whole: bool = True) -> int:
        """Return the highest version through ``closed`` that a task at ``version`` may commit: not above the cut.

        It may commit the cut only if its commit is ``whole``: it leaves out no upstream task.
        """
        if self.cut is None or closed == END_VERSION or version >= self.cut:
            return closed
        return min(closed, self.cut if whole else self.cut - 1)

    def by_timer(self, label: int, highest: int) -> tuple[int, int]:
        """Return the version that a timer-driven task commits, and its next label; ``highest`` is the top in use."""
        version = max(label, highest)
        return version, self._timely(version)

    def _timely(self, version: int) -> int:
        above = (version // self._interval + 1) * self._interval
        label = max(above, self.clock)
        return self.cut if self.cut is not None and version < self.cut < label else label
