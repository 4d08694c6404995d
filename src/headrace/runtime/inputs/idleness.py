"""Finds source partitions that have been idle for their timeout: they no longer hold back what they feed.

The host reports what is processed, and asks from time to time; times are monotonic. Pure, except that it marks the
task's partitions as idle.
"""

from __future__ import annotations

from headrace.core.ids import SSP
from headrace.runtime.inputs.chooser import Chooser
from headrace.runtime.task import Task


class Idleness:
    """The idleness of one task's partitions, during one attempt."""

    def __init__(self, task: Task, now_ms: float) -> None:
        self._task = task
        self._heard_ms: dict[SSP, float] = dict.fromkeys(task.specs, now_ms)

    def heard(self, ssp: SSP, now_ms: float) -> None:
        """Messages of this partition are being processed."""
        self._heard_ms[ssp] = now_ms

    def notice(self, chooser: Chooser, now_ms: float) -> None:
        """Mark idle partitions. One with messages that wait to be processed (full steps, slow readers) isn't idle."""
        for ssp, timeout in self._task.timeouts.items():
            if self._silent(ssp):
                continue
            if chooser.waits(ssp):
                self._heard_ms[ssp] = now_ms
            elif now_ms - self._heard_ms[ssp] >= timeout:
                self._task.idle(ssp)

    def due_ms(self) -> float | None:
        """When the next partition will be idle, if no message of it arrives; None: none can be."""
        timeouts, heard = self._task.timeouts, self._heard_ms
        return min((heard[ssp] + ms for ssp, ms in timeouts.items() if not self._silent(ssp)), default=None)

    def _silent(self, ssp: SSP) -> bool:
        """It is known to send nothing: it is idle already, or has ended."""
        progress = self._task.times[ssp].progress
        return progress.idle or progress.ended
