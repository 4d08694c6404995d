"""Which source partitions of a task have said nothing for their stated timeout: they hold no window back then.

Whoever hosts the task says what has been heard, and asks now and then; times are monotonic. Pure but for what it tells
the task.
"""

from __future__ import annotations

from headrace.core.ids import SSP
from headrace.runtime.inputs.chooser import Chooser
from headrace.runtime.task import Task


class Idleness:
    """Of one task, from one of its beginnings on."""

    def __init__(self, task: Task, now_ms: float) -> None:
        self._task = task
        self._heard_ms: dict[SSP, float] = dict.fromkeys(task.specs, now_ms)

    def heard(self, ssp: SSP, now_ms: float) -> None:
        """Something of this partition is being processed."""
        self._heard_ms[ssp] = now_ms

    def notice(self, chooser: Chooser, now_ms: float) -> None:
        """Tell the task who is silent. What waits for its turn isn't: full steps and readers behind silence nobody."""
        for ssp, timeout in self._task.timeouts.items():
            if self._task.times[ssp].idle or self._task.times[ssp].closed:
                continue
            if chooser.waits(ssp):
                self._heard_ms[ssp] = now_ms
            elif now_ms - self._heard_ms[ssp] >= timeout:
                self._task.idle(ssp)

    def due_ms(self) -> float | None:
        """When the next partition will have been silent for long enough; None: none can be."""
        times, heard = self._task.times, self._heard_ms
        spoken = (ssp for ssp in self._task.timeouts if not times[ssp].idle and not times[ssp].closed)
        return min((heard[ssp] + self._task.timeouts[ssp] for ssp in spoken), default=None)
