"""Find source partitions and shards of slots that have been idle for their timeout, so that they hold nothing back.

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
        self._heard_ms: dict[tuple[SSP, str], float] = {(ssp, ""): now_ms for ssp in task.specs}

    def heard(self, ssp: SSP, now_ms: float, shard: str = "") -> None:
        """Messages of this partition, or of this shard of a slot, are being processed."""
        self._heard_ms[ssp, shard] = now_ms

    def notice(self, chooser: Chooser, now_ms: float) -> None:
        """Mark idle partitions. One with messages that wait to be processed (full steps, slow readers) isn't idle."""
        for ssp, timeout in self._task.timeouts.items():
            for shard in self._task.times[ssp].sending:
                heard = self._heard_ms.setdefault((ssp, shard), now_ms)
                if chooser.waits(ssp):
                    self._heard_ms[ssp, shard] = now_ms
                elif now_ms - heard >= timeout:
                    self._task.idle(ssp, shard)

    def due_ms(self) -> float | None:
        """When the next partition will be idle, if no message of it arrives; None: none can be."""
        heard, times = self._heard_ms, self._task.times
        sending = ((ssp, shard, ms) for ssp, ms in self._task.timeouts.items() for shard in times[ssp].sending)
        # A shard that wasn't noticed yet is noticed in the next turn.
        return min((heard[ssp, shard] + ms for ssp, shard, ms in sending if (ssp, shard) in heard), default=None)
