"""The ``context`` and ``out`` arguments of a low-level task.

``send`` takes the values out of a row at once. So later changes to the dict have no effect, and a missing column is
reported at the line that forgot it. Whether the values fit their columns is only known when the batch is built; until
then the line of each ``send`` is kept for the error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Protocol

import polars as pl
from typing_extensions import override

from headrace.api.operators.task import TaskStep
from headrace.api.tasks import Task, TaskContext, TimerAxis, overrides
from headrace.core.errors import DataError, UsageError
from headrace.core.ids import TaskName
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.user_code.timers import TIME_MAX, Timers, identity_of
from headrace.serdes.ipc import concat_rows
from headrace.serdes.schema import Schema

_EPOCH = datetime(1970, 1, 1)  # naive datetimes are UTC here, as in Polars
_MS = timedelta(milliseconds=1)
_QUICK: dict[type[pl.DataType], type] = {
    pl.Int64: int, pl.Float64: float, pl.String: str, pl.Boolean: bool, pl.Binary: bytes,
}  # fmt: skip
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_AXES = ("event", "processing")


class Sent:
    """What was sent to one output and has not been emitted."""

    def __init__(self, output: str, schema: Schema) -> None:
        self.output = output
        self._schema = schema
        self._rows: list[Sequence[Any]] = []
        self._places: list[CodeType | int] = []
        """For each row the code that has sent it and the instruction there: the number of the line takes longer."""
        self._frames: list[pl.DataFrame] = []
        self._before: tuple[list[pl.DataFrame], list[Sequence[Any]], list[CodeType | int]] | None = None
        kinds = [_QUICK.get(type(dtype)) for dtype in schema.columns.values()]
        self._kinds = None if None in kinds else kinds

    @property
    def waiting(self) -> bool:
        """Something was sent."""
        return bool(self._rows or self._frames)

    def add(self, rows: Any, sender: FrameType) -> None:
        """Add a row or a DataFrame."""
        if self._before is None and type(rows) is dict:
            try:
                self._rows.append(self._schema.dict_values(rows))
            except KeyError:
                pass  # the error is raised below
            else:
                places = self._places
                places.append(sender.f_code)
                places.append(sender.f_lasti)
                return
        if isinstance(rows, pl.DataFrame):
            self._freeze()
            fitting, mismatch = self._schema.conform(rows)
            if mismatch is not None:
                raise mismatch.error()
            if fitting.height:
                self._frames.append(fitting.clone())
            return
        values = self._schema.values_of(rows)
        if self._before is not None and not self._surely_fit(values):
            self._schema.from_values([values], lambda index: "a value")
        self._rows.append(values)
        self._places += (sender.f_code, sender.f_lasti)

    def take(self) -> pl.DataFrame:
        """Return everything, in order, and start empty."""
        self._freeze()
        frames, self._frames = self._frames, []
        return concat_rows(frames)

    def begin_trial(self) -> None:
        """Keep what is sent from now on apart, so that it can be undone; check at once whether it fits."""
        self._before = self._frames, self._rows, self._places
        self._frames, self._rows, self._places = [], [], []

    def end_trial(self, *, keep: bool) -> None:
        """Keep or drop what was sent since the trial began."""
        if self._before is None:
            return
        frames, rows, places = self._frames, self._rows, self._places
        (self._frames, self._rows, self._places), self._before = self._before, None
        if not keep:
            return
        if frames:
            self._freeze()
            self._frames += frames
        self._rows += rows
        self._places += places

    def _surely_fit(self, values: Sequence[Any]) -> bool:
        if self._kinds is None:
            return False
        for value, kind in zip(values, self._kinds, strict=True):
            if value is not None and type(value) is not kind:
                return False
            if isinstance(value, int) and not _INT64_MIN <= value <= _INT64_MAX:
                return False
        return True

    def _freeze(self) -> None:
        if not self._rows:
            return
        rows, places = self._rows, self._places
        self._rows, self._places = [], []
        self._frames.append(self._schema.from_values(rows, lambda index: f"sent at {_line(*places[2 * index :][:2])}"))


def _line(code: Any, instruction: Any) -> str:
    line = next(islice(code.co_positions(), instruction // 2, None))[0]
    return f"{code.co_filename}:{line}"


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
        self.firing: tuple[TimerAxis, int] | None = None
        """The axis and time of the timer that is firing."""
        self.sent: Mapping[str, Sent] = {name: Sent(name, schema) for name, schema in spec.outputs}
        self.input = ""
        self.wants_commit = False
        self.wants_shutdown = False
        self._open = False

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

    def shut(self) -> None:
        """The call has returned."""
        self.input = ""
        self._open = False

    def send(self, output: str, rows: Any) -> None:
        """Send a row or a DataFrame of rows to an output."""
        sent = self.sent.get(output)
        if sent is None or not self._open:
            raise self._unsendable(output)
        try:
            sent.add(rows, sys._getframe(1))
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
