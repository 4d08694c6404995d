"""The ``context`` and ``out`` arguments of a low-level task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FrameType
from typing import Any, Protocol

from typing_extensions import override

from headrace.api.operators.task import TaskStep
from headrace.api.tasks import Records, Task, TaskContext, TimerAxis, overrides
from headrace.core.errors import DataError, UsageError
from headrace.core.ids import TaskName
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.user_code.sent import Sent
from headrace.runtime.operators.user_code.timers import TIME_MAX, Timers, identity_of

_EPOCH = datetime(1970, 1, 1)  # naive datetimes are UTC here, as in Polars
_MS = timedelta(milliseconds=1)
_AXES = ("event", "processing")


class TaskTime(Protocol):
    """What time it is for a task."""

    event_time: int
    """The watermark; ``NEVER`` if none has arrived."""
    now_ms: int | None
    """The wall clock."""


class TaskPort(TaskContext):
    """The ``Out`` of all calls of one task; ``init`` gets it as its ``TaskContext``."""

    def __init__(self, spec: TaskStep, task: Task, timers: Timers, time: TaskTime, counters: Counters) -> None:
        self._timers = timers
        self._time = time
        self._timed = spec.timed
        self._has_on_timer = overrides(task, Task.on_timer)
        self._counters = counters
        self.name = TaskName("", 0)
        self.ending = False
        self.records: Mapping[str, Records] = {}
        """The tables, by the names that the task uses."""
        self.firing: tuple[TimerAxis, int] | None = None
        """The axis and time of the timer that is firing."""
        self.sent: Mapping[str, Sent] = {name: Sent(name, schema) for name, schema in spec.outputs}
        self.input = ""
        self.overdue = False
        """A timer was set that event time has passed already."""
        self.wants_commit = False
        self.wants_shutdown = False
        self._open = False
        self._appending: Mapping[str, Callable[[dict[str, Any]], bool]] = {}
        """``Sent.append`` of the outputs, while a call may send."""

    @property
    @override
    def task(self) -> str:
        return str(self.name)

    @property
    @override
    def partition(self) -> int:
        return self.name.number

    @property
    @override
    def tables(self) -> Mapping[str, Records]:
        return self.records

    @property
    @override
    def watermark(self) -> int | None:
        time = self._time.event_time
        return None if time == NEVER else time

    @property
    @override
    def now_ms(self) -> int:
        return self._time.now_ms or 0

    @override
    def set_timer(self, key: Any, at: int | datetime, *, name: str = "", axis: TimerAxis = "event") -> None:
        time = _milliseconds(at) if isinstance(at, datetime) else at
        self._check_timer(time, axis)
        identity = identity_of(key, name)
        if self.ending:
            self._counters.count("timers_dropped")
            return
        if self.firing is not None and self.firing[0] == axis and time <= self.firing[1]:
            raise UsageError(
                f"on_timer sets a timer for {time}, which is not after its own time, {self.firing[1]}",
                hint="do the work now, or set the timer for a later time",
            )
        self._timers.set(axis, identity, time)
        if axis == "event" and time <= self._time.event_time:
            self.overdue = True

    @override
    def delete_timer(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> None:
        _check_axis(axis)
        self._timers.delete(axis, identity_of(key, name))

    @override
    def timer_at(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> int | None:
        _check_axis(axis)
        return self._timers.time_of(axis, identity_of(key, name))

    def _check_timer(self, time: object, axis: TimerAxis) -> None:
        _check_axis(axis)
        if type(time) is not int or not 0 <= time <= TIME_MAX:
            raise UsageError(
                f"a timer can't be set for {time!r:.80}",
                hint="give milliseconds since the epoch (an int of at least 0) or a datetime",
            )
        if not self._has_on_timer:
            raise UsageError("the task sets a timer and has no on_timer", hint="write on_timer(self, timer, out)")
        if axis == "event" and not self._timed:
            raise UsageError(
                "an event-time timer would never fire: not all inputs of the task have an event time",
                hint='declare it, app.input(..., event_time="ts"), or write axis="processing"',
            )

    # -- calls and their rows

    def open(self, input_: str, *, may_send: bool) -> None:
        """A call begins."""
        self.input = input_
        self._open = may_send
        self._appending = {name: sent.append for name, sent in self.sent.items()} if may_send else {}

    def shut(self) -> None:
        """The call has returned."""
        self.open("", may_send=False)

    def send(self, output: str, rows: Any) -> None:
        """Send a row or a DataFrame of rows to an output."""
        append = self._appending.get(output)
        if append is None:
            raise self._unsendable(output)
        if type(rows) is dict:
            try:
                if append(rows):
                    return
            except KeyError:
                pass  # the error is raised below
            else:
                self._tell(output, self.sent[output].doubt, sys._getframe(1))
                return
        self._tell(output, partial(self.sent[output].add, rows), sys._getframe(1))

    def _tell(self, output: str, sent: Callable[[FrameType], None], sender: FrameType) -> None:
        try:
            sent(sender)
        except DataError as error:
            raise DataError(f"the rows sent to {output!r} don't fit: {error.message}", hint=error.hint) from error

    def _unsendable(self, output: str) -> UsageError:
        if not self._open:
            return UsageError(
                f"something is sent to {output!r} outside of a call that may send",
                hint="send in process, on_timer, on_watermark or on_end_of_stream, before they return",
            )
        return UsageError(
            f"the task has no output {output!r}",
            hint=f"it is declared with outputs={{...}}: {', '.join(self.sent) or 'none'}",
        )

    def commit(self) -> None:
        """Ask for a commit."""
        self._check_open("commit")
        if not self.wants_commit:
            self.wants_commit = True
            self._counters.count("commits_asked_for")

    def shutdown(self) -> None:
        """Ask for the app to be drained."""
        self._check_open("shutdown")
        self.wants_shutdown = True

    def _check_open(self, what: str) -> None:
        if not self._open:
            raise UsageError(f"{what} is asked for outside of a call", hint="ask in process, on_timer or on_watermark")


def _check_axis(axis: object) -> None:
    if axis not in _AXES:
        raise UsageError(f"axis={axis!r} is not one of the choices", hint='write axis="event" or axis="processing"')


def _milliseconds(at: datetime) -> int:
    naive = at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    return (naive - _EPOCH) // _MS
