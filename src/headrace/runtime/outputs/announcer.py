"""What a task reports to the tasks downstream, in-band: its watermarks, where it is idle, and its ends.

Each intermediate stream that the stage writes receives the progress of what feeds it, in all its partitions. Watermarks
and ends are held back for a few milliseconds, so that a trickle of messages doesn't become a flood of control messages.
In wide shuffles they are held back for longer (``frame_pace``). Only that a stream isn't idle any more is said at once,
before its next rows: readers go on without an idle task, and must not go on past rows that they have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.core.errors import DeploymentError
from headrace.core.frame import EndOfStream, Watermark
from headrace.runtime.event_time.watermark import NOTHING, UNHEARD, Progress
from headrace.runtime.frame_pace import watermark_interval_ms
from headrace.runtime.outputs.outlet import Outlet
from headrace.runtime.task_scope import TaskScope
from headrace.runtime.timing import Every


class Announcer:
    """Announces the progress of one task's streams, for one attempt.

    An attempt begins with nothing announced but the ends that are committed: nothing follows an end.
    """

    def __init__(self, scope: TaskScope, outlet: Outlet, now_ms: float) -> None:
        self._outlet = outlet
        self._task = str(scope.name)
        self._task_count = scope.task_count
        self._announced: dict[str, Progress | None] = {stream.spec.id: UNHEARD for stream in scope.downstream}
        """The last announcement to the streams that haven't ended; None if this generation doesn't know it."""
        self._names = {stream.spec.id: str(stream.spec.stream) for stream in scope.downstream}
        self._ended: list[str] = []
        self._every = Every(watermark_interval_ms(scope.frames_beside), now_ms)

    @property
    def ended(self) -> list[str]:
        """The streams whose end has been written, sorted, by the names under which they are kept."""
        return sorted(self._names[stream] for stream in self._ended)

    def resume(self, ended: Iterable[str], progress: Mapping[str, Progress]) -> None:
        """The last commit covers the ends of these streams.

        Earlier announcements aren't known. A task that was idle then may be waiting for one now, without any row.
        """
        known = set(ended)
        self._announced = dict.fromkeys(self._announced)
        for stream in self._announced:
            self._outlet.before_rows[stream] = self._message(progress.get(stream, NOTHING).woken())
        for stream in [id_ for id_, name in self._names.items() if name in known]:
            if not progress.get(stream, NOTHING).ended:
                raise DeploymentError(
                    f"task {self._task} has written the end of stream {stream!r}, and this version of the app would "
                    "write more",
                    hint="give the step that writes the stream another id, or the app another name",
                )
            del self._announced[stream], self._outlet.before_rows[stream]
            self._ended.append(stream)

    @property
    def open(self) -> list[str]:
        """The streams whose end hasn't been written."""
        return sorted(self._announced)

    def news(self, progress: Mapping[str, Progress]) -> bool:
        """Whether there is something that has not been announced."""
        return any(self._is_news(stream, progress.get(stream, NOTHING)) for stream in self._announced)

    def _is_news(self, stream: str, now: Progress) -> bool:
        # Before rows, a stream is said to be awake, so that it is idle has to be said again after them.
        return now != self._announced[stream] or (now.idle and stream in self._outlet.written)

    @property
    def next_ms(self) -> float:
        """When news may be announced."""
        return self._every.next_ms

    def announce(self, progress: Mapping[str, Progress], now_ms: float) -> None:
        """Write what is news downstream, if it is time."""
        if not self.news(progress) or not self._every.due(now_ms):
            return
        for stream in list(self._announced):
            now = progress.get(stream, NOTHING)
            if now.ended:
                self._end(stream)
            elif self._is_news(stream, now):
                self._tell(stream, now)

    def _tell(self, stream: str, now: Progress) -> None:
        self._announced[stream] = now
        self._outlet.written.discard(stream)
        self._outlet.before_rows.pop(stream, None)
        if now.idle:
            self._outlet.before_rows[stream] = self._message(now.woken())
        self._outlet.control(stream, self._message(now))

    def _message(self, now: Progress) -> Watermark:
        return Watermark(
            task_name=self._task,
            task_count=self._task_count,
            timestamp=now.watermark,
            idle=now.idle,
            heard=dict(now.heard),
            own=dict(now.own),
        )

    def end(self) -> None:
        """The task has ended: write to all streams that nothing will follow, unless they know."""
        for stream in list(self._announced):
            self._end(stream)

    def _end(self, stream: str) -> None:
        del self._announced[stream]
        self._ended.append(stream)
        message = EndOfStream(task_name=self._task, task_count=self._task_count, stream_id=stream)
        self._outlet.control(stream, message)
