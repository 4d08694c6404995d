"""Compute a stage's watermark, rate and lag from the latest reports of its tasks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.runners.coordination.messages import StageStatus, TaskStatus

_WINDOW_MS = 5000.0


class Rate:
    """Rows per second over the last seconds, from the sender's clock and counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, sent_ms: float, rows: int) -> None:
        """Add a report. One sample from before the window is kept, so that rare reports also give a rate."""
        self._samples.append((sent_ms, rows))
        while len(self._samples) > 2 and self._samples[1][0] <= sent_ms - _WINDOW_MS:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 until there are two reports."""
        if len(self._samples) < 2:
            return 0.0
        (first_ms, first_rows), (last_ms, last_rows) = self._samples[0], self._samples[-1]
        return (last_rows - first_rows) * 1000 / (last_ms - first_ms)


def stage_status(name: str, tasks: Sequence[tuple[TaskStatus, float]]) -> StageStatus:
    """Return the status of a stage from its tasks' statuses and their rows per second."""
    living = [status for status, _ in tasks if status.state != "finished"]
    # Finished tasks hold nothing back. If all have finished, the lowest of their watermarks counts.
    awake = [status for status in living if not status.idle]
    times = [status.watermark for status in awake or living or [status for status, _ in tasks]]
    lags = [status.lag for status in living]
    known = [time for time in times if time is not None]
    if living and not awake:
        watermark = max(known, default=None)  # readers of an idle stage also take the highest watermark
    else:
        watermark = min(known) if known and len(known) == len(times) else None
    return StageStatus(
        name=name,
        tasks=len(tasks),
        finished=len(tasks) - len(living),
        watermark=watermark,
        idle=len(living) - len(awake),
        rows_per_second=sum(rate for _, rate in tasks),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
    )
