"""What a task reports to the tasks downstream, in-band: its watermark, whether it is idle, and its end.

Each goes to every partition of every intermediate stream that the stage writes. Watermarks are held back for a few
milliseconds, so that a trickle of messages doesn't become a flood of control messages.
"""

from __future__ import annotations

from headrace.core.frame import EndOfStream, Watermark
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.outputs.outlet import Outlet
from headrace.runtime.task_scope import TaskScope
from headrace.runtime.timing import Every

WATERMARK_INTERVAL_MS = 10


class Announcer:
    """Announces the progress of one task, for one attempt: an attempt begins with nothing announced."""

    def __init__(self, scope: TaskScope, outlet: Outlet, now_ms: float) -> None:
        self._outlet = outlet
        self._task = str(scope.name)
        self._task_count = scope.task_count
        self._streams = [stream.spec.id for stream in scope.downstream]
        self._announced: tuple[int, bool] = (NEVER, False)
        self._every = Every(WATERMARK_INTERVAL_MS, now_ms)

    def news(self, watermark: int, *, idle: bool) -> bool:
        """Whether there is something that has not been announced."""
        return bool(self._streams) and (watermark, idle) != self._announced

    @property
    def next_ms(self) -> float:
        """When news may be announced."""
        return self._every.next_ms

    def announce(self, watermark: int, *, idle: bool, now_ms: float) -> None:
        """Write the watermark downstream, if it is news and it is time."""
        if not self.news(watermark, idle=idle) or not self._every.due(now_ms):
            return
        self._announced = (watermark, idle)
        message = Watermark(task_name=self._task, task_count=self._task_count, timestamp=watermark, idle=idle)
        for stream in self._streams:
            self._outlet.control(stream, message)

    def end(self) -> None:
        """Write that nothing will follow."""
        for stream in self._streams:
            self._outlet.control(
                stream, EndOfStream(task_name=self._task, task_count=self._task_count, stream_id=stream)
            )
