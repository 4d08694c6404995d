"""A low-level task: its instance, its context, its tables, and the rows that it sends.

The contract is in ``api/tasks.py``. A row's values are taken out of it at once, so later changes to the dict have no
effect, and a missing column is reported at the line that forgot it. Whether all values fit is only known when the batch
is built: until then the line of each ``send`` of a row that might not fit is kept. A write to a table is seen by the
task's next read, and by every step that the rows of the stage reach afterwards.

What the calls send leaves as one DataFrame per output, in the order of sending, after a batch, a round of timers or a
watermark. The instance is a copy made for this task; a restarted task gets another.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from operator import length_hint
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NoReturn

import polars as pl
from typing_extensions import override

from headrace.api.operators.join import TableUse
from headrace.api.operators.steps import TASK_OUTPUT
from headrace.api.operators.task import TaskStep
from headrace.api.specs import Node
from headrace.api.tasks import STORES, Out, Records, Task, TaskContext, Timer, TimerAxis, overrides
from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    HeadraceError,
    UsageError,
    UserFunctionError,
)
from headrace.core.ids import TaskName
from headrace.rows.given import concat_rows
from headrace.rows.schema import Schema
from headrace.rows.values import NAMES, fits
from headrace.stores.base import StateStore
from headrace.stores.keyvalue import KeyValueStore
from headrace.stores.records import RecordStore
from headrace.task.event_time import NEVER
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import RAISED, BuildContext, Operator
from headrace.task.operators.functions import FailurePolicy, RowFailure, WrongResult, mean_nothing, users_line
from headrace.task.scope import Done
from headrace.task.state.timers import TIME_MAX, Timers, identity_of, named
from headrace.task.tables import Sweeper


class _Sent:
    def __init__(self, output: str, schema: Schema) -> None:
        self.output = output
        self._schema = schema
        self._columns: list[list[Any]] = [[] for _ in schema.columns]
        self._places: dict[int, tuple[CodeType, int]] = {}  # where rows that might not fit were sent, faster than lines
        self._frames: list[pl.DataFrame] = []  # what was sent before the rows in ``_columns``
        self._trial: tuple[int, int] | None = None  # numbers of frames and of rows when the trial began
        self.append = _appending(schema.columns, self._columns)  # whether a dict surely fits: if not, call ``doubt``

    @property
    def waiting(self) -> bool:
        return bool(self._columns[0] or self._frames)

    def add(self, rows: Any, sender: FrameType) -> None:
        if not isinstance(rows, pl.DataFrame):
            if not self.append(dict(zip(self._schema.columns, self._schema.values_of(rows), strict=True))):
                self.doubt(sender)
            return
        fitting, mismatch = self._schema.conform(rows)
        self._schema.refuse_others(rows.columns, "the output")
        if mismatch is not None:
            raise mismatch.error()
        if fitting.height:
            if self._trial is not None and self._trial[1]:
                self._freeze(self._trial[1])
                self._trial = len(self._frames), 0
            self._freeze()
            self._frames.append(fitting.clone())

    def doubt(self, sender: FrameType) -> None:
        """The last row might not fit. In a trial, check it at once, and remove it if it doesn't."""
        last = len(self._columns[0]) - 1
        if self._trial is None:
            self._places[last] = (sender.f_code, sender.f_lasti)
            return
        try:
            self._schema.from_columns([column[last:] for column in self._columns], lambda index: "a value")
        except Exception:
            self._cut(last)
            raise

    def take(self) -> pl.DataFrame:
        self._freeze()
        frames, self._frames = self._frames, []
        return concat_rows(frames)

    def begin_trial(self) -> None:
        self._trial = len(self._frames), len(self._columns[0])

    def end_trial(self, *, keep: bool) -> None:
        trial, self._trial = self._trial, None
        if trial is not None and not keep:
            frames, rows = trial
            del self._frames[frames:]
            self._cut(rows)

    def _cut(self, rows: int) -> None:
        for column in self._columns:
            del column[rows:]

    def _freeze(self, rows: int | None = None) -> None:
        if not self._columns[0]:
            return
        columns, places = [column[:rows] for column in self._columns], dict(self._places)
        for column in self._columns:
            del column[:rows]
        self._places.clear()
        self._frames.append(self._schema.from_columns(columns, lambda index: f"sent at {_line(*places[index])}"))


def _appending(columns: Mapping[str, pl.DataType], lists: list[list[Any]]) -> Callable[[dict[str, Any]], bool]:
    """Return ``Sent.append``: it appends the values of a dict to ``lists``, which must stay the same objects."""
    # Source text is compiled, as for dataclasses; only repr() of names enters it. With {"n": Int64} the source is:
    #   def append(row):
    #       v0 = row['n']
    #       if len(row) > 1: raise KeyError
    #       a0(v0)
    #       return (v0 is None or type(v0) is int and -9223372036854775808 <= v0 <= 9223372036854775807)
    names = {f"v{at}": name for at, name in enumerate(columns)}
    sure = [f"({v} is None or {fits(dtype, v)})" for v, dtype in zip(names, columns.values(), strict=True)]
    lines = [
        "def append(row):",
        *(f"    {v} = row[{name!r}]" for v, name in names.items()),
        f"    if len(row) > {len(names)}: raise KeyError",
        *(f"    a{v[1:]}({v})" for v in names),
        "    return " + " and ".join(sure),
    ]
    known: dict[str, Any] = {f"a{at}": values.append for at, values in enumerate(lists)}
    known |= {"__name__": __name__, **NAMES}
    exec(compile("\n".join(lines), __file__, "exec"), known)  # noqa: S102 - of our own text
    append: Callable[[dict[str, Any]], bool] = known["append"]
    return append


def _line(code: CodeType, instruction: int) -> str:
    return f"{code.co_filename}:{next(islice(code.co_positions(), instruction // 2, None))[0]}"


_EPOCH = datetime(1970, 1, 1)  # naive datetimes are UTC here, as in Polars
_MS = timedelta(milliseconds=1)
_AXES = ("event", "processing")


class _TaskPort(TaskContext):
    """The ``Out`` of all calls of one task; ``init`` gets it as its ``TaskContext``."""

    def __init__(self, spec: TaskStep, task: Task, timers: Timers, owner: TaskOperator, counters: TaskMetrics) -> None:
        self._timers = timers
        self._owner = owner
        self._timed = spec.timed
        self._has_on_timer = overrides(task, Task.on_timer)
        self._counters = counters
        self.name = TaskName("", 0)
        self.ending = False
        self.records: Mapping[str, Records] = {}  # the tables, by the names that the task uses
        self.firing: tuple[TimerAxis, int] | None = None  # the axis and time of the timer that is firing
        self.sent: Mapping[str, _Sent] = {name: _Sent(name, schema) for name, schema in spec.outputs}
        self.input = ""
        self.overdue = False  # a timer was set that event time has passed already
        self._open = False
        self._appending: Mapping[str, Callable[[dict[str, Any]], bool]] = {}  # while a call may send

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
        time = self._owner.event_time
        return None if time == NEVER else time

    @property
    @override
    def now_ms(self) -> int:
        return self._owner.now_ms or 0

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
        self._timers[axis].set(identity, time)
        if axis == "event" and time <= self._owner.event_time:
            self.overdue = True

    @override
    def delete_timer(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> None:
        _check_axis(axis)
        self._timers[axis].delete(identity_of(key, name))

    @override
    def timer_at(self, key: Any, *, name: str = "", axis: TimerAxis = "event") -> int | None:
        _check_axis(axis)
        return self._timers[axis].time_of(identity_of(key, name))

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

    def open(self, input_: str, *, may_send: bool) -> None:
        self.input = input_
        self._open = may_send
        self._appending = {name: sent.append for name, sent in self.sent.items()} if may_send else {}

    def send(self, output: str, rows: Any) -> None:
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
        self._check_open("commit")
        if not self._owner.wants_commit:
            self._owner.wants_commit = True
            self._counters.count("commits_asked_for")

    def shutdown(self) -> None:
        self._check_open("shutdown")
        self._owner.wants_shutdown = True

    def _check_open(self, what: str) -> None:
        if not self._open:
            raise UsageError(f"{what} is asked for outside of a call", hint="ask in process, on_timer or on_watermark")


def _check_axis(axis: object) -> None:
    if axis not in _AXES:
        raise UsageError(f"axis={axis!r} is not one of the choices", hint='write axis="event" or axis="processing"')


def _milliseconds(at: datetime) -> int:
    naive = at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    return (naive - _EPOCH) // _MS


class _TableRecords:
    """The reads and, if the task was declared to write the table, the writes."""

    __slots__ = ("_key", "_records", "get", "get_many", "get_rows", "items", "scan", "use")

    def __init__(self, use: TableUse, records: RecordStore) -> None:
        self.use = use
        self._records = records
        self._key = list(records.key)
        self.get = records.get
        self.get_many = records.get_many
        self.items = records.items
        self.get_rows = records.get_rows
        self.scan = records.scan

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def put(self, key: Any, record: Any) -> None:
        if not self.use.writes:
            self._refuse()
        if key is None or (type(key) is tuple and None in key):
            self._refuse_null(key)
        self._records.put(key, record)

    def delete(self, key: Any) -> None:
        if not self.use.writes:
            self._refuse()
        self._records.delete(key)

    def put_rows(self, rows: pl.DataFrame) -> None:
        if not self.use.writes:
            self._refuse()
        wrong = rows.filter(pl.any_horizontal(pl.col(name).is_null() for name in self._key if name in rows.columns))
        if wrong.height:
            self._refuse_null(wrong.row(0))
        self._records.put_rows(rows)

    def delete_rows(self, keys: pl.DataFrame) -> None:
        if not self.use.writes:
            self._refuse()
        self._records.delete_rows(keys)

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"the task writes the table {self.use.name!r}, and was declared to read it",
            hint=f"declare it: writes=[{self.use.name!r}]",
        )

    def _refuse_null(self, key: object) -> NoReturn:
        raise UsageError(
            f"{key!r:.200} has a null in the key of the table {self.use.name!r}: no join would find it",
            hint="leave such rows out",
        )


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
        self._sides = [_TaskInput(self, name, columns) for name, columns in spec.inputs]
        self._port = _TaskPort(spec, self._task, self.timers, self, context.counters)
        self._policy = FailurePolicy(self, spec.on_error, context.counters)
        self._port.records = {use.name: _TableRecords(use, context.tables.records(use.table)) for use in spec.tables}
        written = [context.tables.records(use.table) for use in spec.tables if use.writes]
        self._trial: list[KeyValueStore | RecordStore | _Sent] = [
            self.timers.store, *self._records.values(), *written, *self._port.sent.values()
        ]  # fmt: skip
        self._begun = False
        vars(self._task)[STORES] = SimpleNamespace(**self._records)

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

    def take(self, name: str, rows: pl.DataFrame, to_records: Callable[[pl.DataFrame], list[Any]]) -> None:
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
        """Stops after a message that sets a timer which is due at once, as it fires before the next message."""
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
        asked = self.wants_commit, self.wants_shutdown
        for part in self._trial:
            part.begin_trial()
        failed: BaseException | None = None
        try:
            _call(call, given, self._port)
        except RAISED as error:
            if isinstance(error, HeadraceError) and not _is_users(error):
                raise
            failed = error
            self.wants_commit, self.wants_shutdown = asked
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
        return self.timers["event"].earliest() is not None

    @override
    def due_ms(self) -> int | None:
        moments = (self.timers["processing"].earliest(), self._sweeper.due_ms())
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

    @override
    def committed(self) -> None:
        self.wants_commit = False

    def _fire(self, axis: TimerAxis, through: int) -> None:
        while self._fire_some(axis, through) == ROWS_AT_ONCE:
            self._hand_out()

    def _fire_some(self, axis: TimerAxis, through: int) -> int:
        fired, on_timer = 0, self._task.on_timer
        if (earliest := self.timers[axis].earliest()) is None or earliest > through:
            return fired
        with self._calling("on_timer"):
            while fired < ROWS_AT_ONCE and (due := self.timers[axis].pop(through)) is not None:
                time, identity = due
                name, key = named(identity)
                self._port.firing = (axis, time)
                if (result := on_timer(Timer(key, time, name, axis), self._port)) is not None:
                    raise mean_nothing(on_timer, result)
                fired += 1
        self._counters.count("timers_fired", fired)
        return fired

    def _hand_out(self) -> None:
        for sent in self._port.sent.values():
            if not sent.waiting:
                continue
            try:
                rows = sent.take()
            except DataError as error:
                raise self.misfitted(error, f"what is sent to {sent.output!r}") from error
            self.emit_aside(f"{TASK_OUTPUT}{sent.output}", rows)

    @contextmanager
    def _calling(self, method: str, input_: str = "", done: Done | None = None) -> Iterator[None]:
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
            self._port.open("", may_send=False)
            self._port.firing = None


def _call(method: Callable[..., object], *given: object) -> None:
    if (result := method(*given)) is not None:
        raise mean_nothing(method, result)


def _is_users(error: HeadraceError) -> bool:
    return isinstance(error, UsageError | DeclarationError | DataError) and not isinstance(error, CorruptLogError)


class _TaskInput(Operator):
    def __init__(self, task: TaskOperator, name: str, columns: Any) -> None:
        super().__init__(task.node)
        self._task = task
        self._name = name
        self._columns = columns

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._task.take(self._name, rows, self._columns.to_records)
