"""A low-level task: call the user's instance, keep its stores and timers, and collect the rows that it sends.

The contract is in ``api/tasks.py``. Messages become records column by column, a few thousand at a time. What the calls
send is collected by output. It leaves as one DataFrame, in the order of sending, after a batch, a round of timers or a
watermark. The instance is a copy made for this task; a restarted task gets another.

The only Python per message is the user's own call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import length_hint
from types import SimpleNamespace
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.operators.streams import TASK_OUTPUT
from headrace.api.operators.task import TaskStep
from headrace.api.specs import Node
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
from headrace.runtime.at_work import Done
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import RAISED, Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.user_code.failure_policy import FailurePolicy, RowFailure
from headrace.runtime.operators.user_code.results import WrongResult, mean_nothing
from headrace.runtime.operators.user_code.sent import Sent
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.runtime.operators.user_code.table_records import TableRecords
from headrace.runtime.operators.user_code.task_context import TaskPort
from headrace.runtime.operators.user_code.timers import TIME_MAX, Timers, named
from headrace.runtime.tables.expiry import Sweeper
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.records import RecordStore

ROWS_AT_ONCE = 8192


class TaskOperator(Operator):
    """A low-level task, as one task of the stage runs it."""

    def __init__(self, node: Node, spec: TaskStep, context: BuildContext) -> None:
        super().__init__(node)
        self._spec = spec
        self._counters = context.counters
        self._task: Task = copy.deepcopy(spec.task)
        self._by_batch = overrides(self._task, Task.process_batch)
        self._has_on_watermark = overrides(self._task, Task.on_watermark)
        self._records = {
            store.attribute: RecordStore(KeyValueStore(store.id, ttl_ms=store.ttl_ms), store.key.columns, store.value)
            for store in spec.stores
        }
        self._sweeper = Sweeper(self._records[s.attribute].store for s in spec.stores if s.ttl_ms is not None)
        # No store of the user's can have this id: theirs begin with a letter or a digit.
        columns = {name: dtype for _, schema in reversed(spec.inputs) for name, dtype in schema.columns.items()}
        self.timers = Timers(f"{node.id}.__timers", columns=columns)
        self.event_time = NEVER
        self._sides = [TaskInput(self, name, columns) for name, columns in spec.inputs]
        self._port = TaskPort(spec, self._task, self.timers, self, context.counters)
        self._policy = FailurePolicy(self, spec.on_error, context.counters)
        self._port.records = {use.name: TableRecords(use, context.tables.records(use.table)) for use in spec.tables}
        written = [context.tables.records(use.table) for use in spec.tables if use.writes]
        self._trial: list[KeyValueStore | RecordStore | Sent] = [
            self.timers.store, *self._records.values(), *written, *self._port.sent.values()
        ]  # fmt: skip
        self._begun = False
        vars(self._task)[STORES] = SimpleNamespace(**self._records)

    # -- life

    @override
    def begin(self, task: TaskName, watermark: int) -> None:
        for records in self._records.values():
            records.check()
        self.event_time = watermark
        self._port.name = task
        self._begun = True
        with self._calling("init"):
            _call(self._task.init, self._port)

    @override
    def close(self) -> None:
        if self._begun:
            self._begun = False
            with self._calling("close"):
                _call(self._task.close)

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
            after = first + part.height
            if self._by_batch:
                with self._calling("process_batch", input_=name):
                    error = self._tried(self._task.process_batch, part)
                if error is not None:
                    failures += [RowFailure(first + row, error) for row in range(part.height)]
            else:
                records = iter(to_records(part))
                while length_hint(records):
                    with self._calling("process", input_=name, done=partial(length_hint, records)):
                        failures += [RowFailure(after - length_hint(records) - 1, e) for e in self._each(records)]
                    self._fire("event", self.event_time)
            self._fire("event", self.event_time)
            self._hand_out()
        method = "process_batch" if self._by_batch else "process"
        self._policy.rows(f"{method} of the task {type(self._task).__name__}", rows, failures)

    def _each(self, records: Iterable[Any]) -> Iterator[BaseException]:
        """Process messages up to the first that sets a timer which is due at once, as it fires before the next message.

        Yield the error of each that failed, unless the policy stops at the first: then raise.
        """
        process, port = self._task.process, self._port
        port.overdue = False
        stops = self._policy.stops
        for record in records:
            if stops:
                if (result := process(record, port)) is not None:
                    raise mean_nothing(process, result)
            elif (error := self._tried(process, record)) is not None:
                yield error
            if port.overdue:
                return

    def _tried(self, call: Callable[[Any, Out], None], given: Any) -> BaseException | None:
        """Call the user's code. Return what it raised, after undoing what the call did; or raise, by policy."""
        if self._policy.stops:
            _call(call, given, self._port)
            return None
        asked = self._port.wants_commit, self._port.wants_shutdown
        for part in self._trial:
            part.begin_trial()
        failed: BaseException | None = None
        try:
            _call(call, given, self._port)
        except RAISED as error:
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
        if self._has_on_watermark:
            with self._calling("on_watermark"):
                _call(self._task.on_watermark, watermark, self._port)
            self._fire("event", watermark)
        self._hand_out()

    @property
    @override
    def owes(self) -> bool:
        return self.timers.earliest("event") is not None

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
            _call(self._task.on_end_of_stream, self._port)
        self._hand_out()

    # -- requests to the host

    @property
    @override
    def wants_commit(self) -> bool:
        return self._port.wants_commit

    @property
    @override
    def wants_shutdown(self) -> bool:
        return self._port.wants_shutdown

    @override
    def committed(self) -> None:
        self._port.wants_commit = False

    # -- inside

    def _fire(self, axis: TimerAxis, through: int) -> None:
        """Fire the timers that are due, in the order of their times."""
        while self._fire_some(axis, through) == ROWS_AT_ONCE:
            self._hand_out()

    def _fire_some(self, axis: TimerAxis, through: int) -> int:
        fired, on_timer = 0, self._task.on_timer
        if (earliest := self.timers.earliest(axis)) is None or earliest > through:
            return fired
        with self._calling("on_timer"):
            while fired < ROWS_AT_ONCE and (due := self.timers.pop(axis, through)) is not None:
                time, identity = due
                name, key = named(identity)
                self._port.firing = (axis, time)
                if (result := on_timer(Timer(key, time, name, axis), self._port)) is not None:
                    raise mean_nothing(on_timer, result)
                fired += 1
        self._counters.count("timers_fired", fired)
        return fired

    def _hand_out(self) -> None:
        """Emit what was sent."""
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
    def _calling(self, method: str, input_: str = "", done: Done | None = None) -> Iterator[None]:
        """Around a call of the user's code."""
        if self.now_ms is not None:
            self._sweeper.tell_time(self.now_ms)
        self._port.open(input_, may_send=method not in ("init", "close"))
        try:
            with self.user_call(done):
                yield
        except HeadraceError as error:
            if not _is_users(error):
                raise
            what = self.described(f"{method} of the task {type(self._task).__name__}")
            text = f"{what} failed{users_line(error)}: {error.message}{self.at_work_on()}"
            raise UserFunctionError(text, hint=error.hint) from error
        except WrongResult as error:
            raise error.told(self, f"{method} of the task {type(self._task).__name__}") from error
        except RAISED as error:
            raise self.failed(error, f"{method} of the task {type(self._task).__name__}", users_line(error)) from error
        finally:
            self._port.shut()
            self._port.firing = None


def _call(method: Callable[..., object], *given: object) -> None:
    """Call a method of the user's task, which must return nothing."""
    if (result := method(*given)) is not None:
        raise mean_nothing(method, result)


def _is_users(error: HeadraceError) -> bool:
    """Whether the user's code caused the error, and not the disk."""
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
