"""What a task tells the tasks downstream, in-band: its watermark, whether it is idle, and its end.

Each goes to every partition of every intermediate stream the stage writes. Watermarks are held back for a few
milliseconds, so that a trickle of messages doesn't become a flood of control messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.frame import EndOfStream, Watermark
from headrace.core.ids import TaskName
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.host.timing import Every
from headrace.runtime.outputs.outlet import Outlet

WATERMARK_INTERVAL_MS = 10


class Announcer:
    """The voice of one task."""

    def __init__(self, outlet: Outlet, task: TaskName, task_count: int, streams: Sequence[str], now_ms: float) -> None:
        self._outlet = outlet
        self._task = str(task)
        self._task_count = task_count
        self._streams = streams
        self._said: tuple[int, bool] = (NEVER, False)
        self._every = Every(WATERMARK_INTERVAL_MS, now_ms)

    def reset(self) -> None:
        """Forget what was said: the task begins again from its last commit."""
        self._said = (NEVER, False)

    def news(self, watermark: int, *, idle: bool) -> bool:
        """Whether there is something to say that has not been said."""
        return bool(self._streams) and (watermark, idle) != self._said

    @property
    def next_ms(self) -> float:
        """When news may be told."""
        return self._every.next_ms

    def tell(self, watermark: int, *, idle: bool, now_ms: float) -> None:
        """Say it, if there is news and it is time."""
        if not self.news(watermark, idle=idle) or not self._every.due(now_ms):
            return
        self._said = (watermark, idle)
        message = Watermark(task_name=self._task, task_count=self._task_count, timestamp=watermark, idle=idle)
        for stream in self._streams:
            self._outlet.control(stream, message)

    def end(self) -> None:
        """Say that nothing will follow."""
        for stream in self._streams:
            self._outlet.control(
                stream, EndOfStream(task_name=self._task, task_count=self._task_count, stream_id=stream)
            )
