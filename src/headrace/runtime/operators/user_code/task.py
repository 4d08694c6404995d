"""A low-level task: calls the user's instance, keeps its stores and timers, gathers what it sends.

``api/tasks.py`` has the contract. Here: messages become records column by column, a few thousand at a time; what a call
sends is gathered for each output and leaves as one DataFrame when a batch, a round of timers or a watermark has been
dealt with, in order for each output. The instance is a copy made for this task; a task that begins anew gets another.

Per message there is the user's own call and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.specs import Node
from headrace.api.steps import TASK_OUTPUT, TaskStep
from headrace.api.tasks import STORES, Out, Task, Timer, TimerAxis, overrides
from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    HeadraceError,
    UsageError,
    UserFunctionError,
)
from headrace.core.ids import TaskName
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Counters, Operator
from headrace.runtime.operators.user_code.failure_policy import FailurePolicy, RowFailure
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.runtime.operators.user_code.task_context import Sent, TaskPort
from headrace.runtime.operators.user_code.timers import TIME_MAX, Timers, named
from headrace.runtime.tables.expiry import Sweeper
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.records import RecordStore

ROWS_AT_ONCE = 8192


class TaskOperator(Operator):
    """A low-level task of one task of the stage."""

    def __init__(self, node: Node, spec: TaskStep, counters: Counters) -> None:
        super().__init__(node)
        self._spec = spec
        self._counters = counters
        self._task: Task = copy.deepcopy(spec.task)
        self._by_batch = overrides(self._task, Task.process_batch)
        self._hears_time = overrides(self._task, Task.on_watermark)
        self._records = {
            store.attribute: RecordStore(KeyValueStore(store.id, ttl_ms=store.ttl_ms), store.key.columns, store.value)
            for store in spec.stores
        }
        self._sweeper = Sweeper(self._records[s.attribute].store for s in spec.stores if s.ttl_ms is not None)
        # No store of the user's has such an id: theirs begin with a letter or a digit.
        self.timers = Timers(f"{node.id}.__timers")
        self.event_time = NEVER
        self._sides = [TaskInput(self, name, columns) for name, columns in spec.inputs]
        self._port = TaskPort(self, spec, self._task, counters)
        self._policy = FailurePolicy(self, spec.on_error, counters)
        stores = [self.timers.store, *(records.store for records in self._records.values())]
        self._trial: list[KeyValueStore | Sent] = [*stores, *self._port.sent.values()]
        self._begun = False
        self._task.__dict__[STORES] = self._records

    # -- life

    @override
    def begin(self, task: TaskName, watermark: int) -> None:
        for records in self._records.values():
            records.check()
        self.event_time = watermark
        self._port.name = task
        self._begun = True
        with self._calling("init"):
            self._task.init(self._port.context)

    @override
    def close(self) -> None:
        if self._begun:
            self._begun = False
            with self._calling("close"):
                self._task.close()

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self.timers.store, *(records.store for records in self._records.values()))

    @override
    def sizes(self) -> Mapping[str, int]:
        return {store.id: self._records[store.attribute].entries() for store in self._spec.stores}

    @override
    def side(self, number: int) -> Operator:
        return self._sides[number]

    # -- what comes in

    def take(self, name: str, rows: pl.DataFrame, to_records: Callable[[pl.DataFrame], list[Any]]) -> None:
        """Process rows of an input."""
        self.batches += 1
        self.rows += rows.height
        failures: list[RowFailure] = []
        for number, part in enumerate(rows.iter_slices(ROWS_AT_ONCE)):
            first = number * ROWS_AT_ONCE
            if self._by_batch:
                with self._calling("process_batch", input_=name):
                    error = self._tried(self._task.process_batch, part)
                if error is not None:
                    failures += [RowFailure(first + row, error) for row in range(part.height)]
            else:
                records = to_records(part)
                with self._calling("process", input_=name):
                    failures += [RowFailure(first + row, error) for row, error in self._each(records)]
            self._fire("event", self.event_time)
            self._hand_out()
        method = "process_batch" if self._by_batch else "process"
        self._policy.rows(f"{method} of the task {type(self._task).__name__}", rows, failures)

    def _each(self, records: Sequence[Any]) -> Iterator[tuple[int, Exception]]:
        """Process messages; yields those that failed, unless the first one is the last."""
        process, port = self._task.process, self._port
        if self._policy.stops:
            for record in records:
                process(record, port)
            return
        for row, record in enumerate(records):
            error = self._tried(process, record)
            if error is not None:
                yield row, error

    def _tried(self, call: Callable[[Any, Out], None], given: Any) -> Exception | None:
        """Call the user's code; what it raised, after taking back all that the call has done. By policy just raise."""
        if self._policy.stops:
            call(given, self._port)
            return None
        asked = self._port.wants_commit, self._port.wants_shutdown
        for part in self._trial:
            part.begin_trial()
        failed: Exception | None = None
        try:
            call(given, self._port)
        except Exception as error:
            if isinstance(error, HeadraceError) and not _is_users(error):
                raise
            failed = error
            self._port.wants_commit, self._port.wants_shutdown = asked
        for part in self._trial:
            part.end_trial(keep=failed is None)
        return failed

    @override
    def on_watermark(self, watermark: int) -> None:
        self.event_time = watermark
        self._fire("event", watermark)
        if self._hears_time:
            with self._calling("on_watermark"):
                self._task.on_watermark(watermark, self._port)
            self._fire("event", watermark)
        self._hand_out()

    @override
    def due_ms(self) -> int | None:
        moments = (self.timers.earliest("processing"), self._sweeper.due_ms())
        return min((due for due in moments if due is not None), default=None)

    @override
    def on_time(self, now_ms: int) -> None:
        self._fire("processing", now_ms)
        self._fire("event", self.event_time)
        self._hand_out()
        self._sweeper.on_time(now_ms)

    @override
    def on_end(self) -> None:
        self._port.ending = True
        self._fire("event", TIME_MAX)
        self._fire("processing", TIME_MAX)
        with self._calling("on_end_of_stream"):
            self._task.on_end_of_stream(self._port)
        self._hand_out()

    # -- what it asks of its host

    @property
    def wants_commit(self) -> bool:
        """It asks that what it has done be committed soon."""
        return self._port.wants_commit

    @property
    def wants_shutdown(self) -> bool:
        """It asks that the app be drained."""
        return self._port.wants_shutdown

    def committed(self) -> None:
        """What it has done so far is committed."""
        self._port.wants_commit = False

    # -- inside

    def _fire(self, axis: TimerAxis, through: int) -> None:
        """Call the timers that are due, in the order of times."""
        while self._fire_some(axis, through) == ROWS_AT_ONCE:
            self._hand_out()

    def _fire_some(self, axis: TimerAxis, through: int) -> int:
        fired = 0
        if (earliest := self.timers.earliest(axis)) is None or earliest > through:
            return fired
        with self._calling("on_timer"):
            while fired < ROWS_AT_ONCE and (due := self.timers.pop(axis, through)) is not None:
                time, identity = due
                name, key = named(identity)
                self._port.firing = (axis, time)
                self._task.on_timer(Timer(key, time, name, axis), self._port)
                fired += 1
        self._counters.count("timers_fired", fired)
        return fired

    def _hand_out(self) -> None:
        """Hand on what was sent."""
        for output, rows in self._taken():
            self.emit_aside(f"{TASK_OUTPUT}{output}", rows)

    def _taken(self) -> Iterator[tuple[str, pl.DataFrame]]:
        for sent in self._port.sent.values():
            if not sent.waiting:
                continue
            try:
                rows = sent.take()
            except DataError as error:
                raise self.misfitted(error, f"what is sent to {sent.output!r}") from error
            yield sent.output, rows

    @contextmanager
    def _calling(self, method: str, input_: str = "") -> Iterator[None]:
        """Around a call of the user's code."""
        if self.now_ms is not None:
            self._sweeper.tell_time(self.now_ms)
        self._port.open(input_, may_send=method not in ("init", "close"))
        try:
            yield
        except HeadraceError as error:
            if not _is_users(error):
                raise
            what = self.described(f"{method} of the task {type(self._task).__name__}")
            text = f"{what} failed{users_line(error)}: {error.message}{self.at_work_on()}"
            raise UserFunctionError(text, hint=error.hint) from error
        except Exception as error:
            raise self.failed(error, f"{method} of the task {type(self._task).__name__}", users_line(error)) from error
        finally:
            self._port.shut()
            self._port.firing = None


def _is_users(error: HeadraceError) -> bool:
    """Whether it comes of how the task uses what it is given, and not of the disk."""
    return isinstance(error, UsageError | DeclarationError | DataError) and not isinstance(error, CorruptLogError)


class TaskInput(Operator):
    """One input of a low-level task."""

    def __init__(self, task: TaskOperator, name: str, columns: Any) -> None:
        super().__init__(task.node)
        self._task = task
        self._name = name
        self._columns = columns

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._task.take(self._name, rows, self._columns.to_records)
