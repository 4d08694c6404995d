"""Operators that call the user's functions: what they return, how they fail, and slow ones.

A slip, such as a forgotten ``return``, must not pass for a result: a filter would drop every message. A row has all of
its effects or none, and dead letters (the side output ``failed``) are as durable as results. After a window or a join a
row is no longer a message: its letter names the messages that were being processed.

Operators that wait for calls don't block, and results never pass a watermark. Calls in progress when a task dies or
rolls back are made again when their rows are read again: a call may be made more than once, but its result counts once,
because no commit is made while a call is in progress.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from types import FrameType, GeneratorType
from typing import Any, Generic, TypeVar, assert_never, cast

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.checks import name_of, place_of
from headrace.api.operators.spec import OnError
from headrace.api.operators.steps import FAILED, FAILED_COLUMNS, BatchFunction, MapAsync, RowFunction, Sampler, Sink
from headrace.api.specs import Node
from headrace.core.errors import DataError, HeadraceError, UserFunctionError
from headrace.core.log import Throttle, logger, thread_stacks
from headrace.rows.given import concat_rows, rows_where
from headrace.rows.ipc import encode_rows
from headrace.rows.schema import Schema
from headrace.rows.text import encode_lines
from headrace.task.calls import Done, Lane, ReorderQueue, Tally
from headrace.task.event_time import NEVER
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import RAISED, BuildContext, Operator, Origin, ProvenanceSnapshot

_YES_OR_NO = (bool, np.bool_)
_ROWS = (GeneratorType, list, tuple)
_NO_ROWS = (Mapping, str, bytes, pl.DataFrame, pl.LazyFrame, pl.Series)  # iterable or empty, without being rows
_UNSEEN = (pl.DataFrame, pl.LazyFrame)


class WrongResult(TypeError):
    """A function returned what its step can't use. Reads on after the name of the step."""

    def __init__(self, function: object, result: object, wanted: str, hint: str) -> None:
        self.line = place_of(function)
        super().__init__(
            f"{name_of(function)}{self.line and ' at '}{self.line} returned {_shown(result)} instead of {wanted}"
        )
        self.hint = _slip_in(result) or hint

    def told(self, operator: Operator, what: str) -> UserFunctionError:
        return UserFunctionError(f"{operator.described(what)}: {self}{operator.at_work_on()}", hint=self.hint)


def _slip_in(result: object) -> str | None:
    if result is None:
        return "write return before the result: a function that ends without it returns None"
    if inspect.iscoroutine(result):
        result.close()  # it won't be awaited
    if _is_async(result):
        return "the function is async, so the call didn't run it; write def without async, or use map_async(...)"
    if inspect.isgenerator(result):
        return "the function has a yield, so the call didn't run it; return the result instead"
    if isinstance(result, pl.LazyFrame):
        return "nothing has computed this LazyFrame; call .collect()"
    return None


def _rows_in(function: object, result: Any) -> Iterable[Any]:
    if type(result) not in _ROWS and (isinstance(result, _NO_ROWS) or not isinstance(result, Iterable)):
        hint = "return a list of rows, [] for none; .to_dicts() makes one of a DataFrame"
        raise WrongResult(function, result, "rows", hint)
    return cast("Iterable[Any]", result)


def _sifted(schema: Schema, records: list[Any]) -> tuple[pl.DataFrame, list[tuple[int, DataError]]]:
    table, misfits = schema.sift(records)
    for index, error in misfits:
        error.hint = _slip_in(records[index]) or error.hint
    return table, misfits


def mean_nothing(method: Callable[..., object], result: object) -> WrongResult:
    return WrongResult(method, result, "None", "nothing takes what it returns; out.send(output, row) does")


def _is_async(result: object) -> bool:
    return inspect.isawaitable(result) or inspect.isasyncgen(result)


def _shown(result: object) -> str:
    plain = isinstance(result, str | bytes | int | float | Mapping | list | tuple)
    return f"{result!r:.80}" if plain else "None" if result is None else f"a {type(result).__name__}"


def users_line(error: BaseException) -> str:
    line = _line_of(error)
    return "" if line is None else f" at {line}"


def _line_of(error: BaseException) -> str | None:
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return None


def line_now(thread: int, *, called: bool = True) -> str | None:
    """``file:number``; None if it is in none. The innermost line that isn't in an installed package or in Python
    itself; if all are and Headrace has ``called`` the app's own code, the outermost."""
    frame = thread_stacks().get(thread)
    own: str | None = None
    outermost: str | None = None
    while frame is not None and not _is_ours(frame):
        outermost = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if own is None and not frame.f_code.co_filename.startswith((*_INSTALLED, "<frozen ")):
            own = outermost
        frame = frame.f_back
    return None if frame is None else own or (outermost if called else None)


def in_debugger(thread: int) -> bool:
    frame = thread_stacks().get(thread)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if isinstance(name, str) and name.partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


_DEBUGGERS = frozenset({"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"})
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.startswith("headrace.")


_log = logger(__name__)
_ROW_CHARS_MAX = 500  # how much of a row an error shows; a letter holds all of it


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row by its number in the batch, and the error. ``misfit``: its result doesn't fit the schema."""

    row: int
    error: BaseException
    misfit: bool = False
    note: str = ""  # the circumstances: ``in the last of 5 attempts``

    @property
    def reason(self) -> str:
        if isinstance(self.error, WrongResult):
            return str(self.error)
        text = self.error.message if isinstance(self.error, HeadraceError) else str(self.error)
        if self.misfit:
            return f"doesn't fit its schema: {text}"
        return f"{type(self.error).__name__}{self.note and ' '}{self.note}: {text}"

    @property
    def line(self) -> str | None:
        return self.error.line if isinstance(self.error, WrongResult) else _line_of(self.error)


class FailurePolicy:
    """The policy of one step."""

    def __init__(self, operator: Operator, on_error: OnError, counters: TaskMetrics) -> None:
        self.stops = on_error == "fail"  # the first failure stops the task, so later rows need not be tried
        self._operator = operator
        self._on_error = on_error
        self._counters = counters
        self._throttle = Throttle(_log)

    def rows(
        self,
        what: str,
        rows: pl.DataFrame,
        failures: Sequence[RowFailure],
        whereabouts: ProvenanceSnapshot | None = None,
    ) -> None:
        """Single rows failed; without ``whereabouts`` they are of the batch that the operator is processing."""
        if not failures:
            return
        where = self._operator.provenance.here() if whereabouts is None else whereabouts
        if self.stops:
            raise self._error(what, rows, failures[0], where) from failures[0].error
        step, count, reason = self._operator.node.id, len(failures), failures[0].reason
        self._throttle.warning(f"{what} failed; the rows are left out", by=count, step=step, reason=reason)
        if self._on_error == "skip":
            self._counters.count("failed_skipped", len(failures))
            return
        self._counters.count("dead_lettered", len(failures))
        letters = self._letters(rows, failures, where)
        if whereabouts is None:
            self._operator.provenance.became(lambda: [failure.row for failure in failures])
        self._operator.emit_aside(FAILED, letters)

    def batch(self, what: str, rows: pl.DataFrame, error: BaseException, *, misfit: bool = False) -> None:
        if self.stops:
            place = self._operator.provenance.here().place(None)
            raise self._stopped(what, RowFailure(0, error, misfit), place) from error
        self.rows(what, rows, [RowFailure(row, error, misfit) for row in range(rows.height)])

    def _error(self, what: str, rows: pl.DataFrame, failure: RowFailure, at: ProvenanceSnapshot) -> UserFunctionError:
        (text,) = _as_json(rows[failure.row : failure.row + 1])
        shown = text if len(text) <= _ROW_CHARS_MAX else text[: _ROW_CHARS_MAX - 1] + "…"
        return self._stopped(what, failure, at.place(failure.row), f"\n  the row it was given: {shown}")

    def _stopped(self, what: str, failure: RowFailure, place: Origin | None, row: str = "") -> UserFunctionError:
        found = "" if place is None else f"\n  {place}"
        if isinstance(failure.error, WrongResult):
            named = self._operator.described(what)
            advice = f'{failure.error.hint}; or give the step on_error="skip" or "dead_letter"'
            return UserFunctionError(f"{named}: {failure.error}{found}{row}", hint=advice)
        hint = failure.error.hint if failure.misfit and isinstance(failure.error, HeadraceError) else None
        remedy = "fix the function, or declare the schema that it returns" if failure.misfit else "fix the function"
        if isinstance(failure.error, SystemExit):
            remedy = "raise an error instead of calling sys.exit: a function can't end the app"
        named = self._operator.described(f"{what}'s result" if failure.misfit else what)
        which = f"{type(failure.error).__name__}{users_line(failure.error)}{failure.note and ' '}{failure.note}"
        raised = "" if failure.misfit else f"raised {which}: "
        text = failure.reason if failure.misfit else str(failure.error)
        return UserFunctionError(
            f"{named} {raised}{text}{found}{row}",
            hint=hint or f'{remedy}; or give the step on_error="skip" or "dead_letter"',
        )

    def _letters(self, rows: pl.DataFrame, failures: Sequence[RowFailure], where: ProvenanceSnapshot) -> pl.DataFrame:
        numbers = [failure.row for failure in failures]
        places = [where.place(number) for number in numbers]
        failed = rows[numbers]
        columns: list[Sequence[object]] = [
            [self._operator.node.id] * len(numbers),
            [None if place is None else str(place.ssp.stream) for place in places],
            [None if place is None else place.ssp.partition for place in places],
            [None if place is None else place.first for place in places],
            [None if place is None else place.last for place in places],
            [None if place is None else place.index for place in places],
            [failure.reason for failure in failures],
            [failure.line for failure in failures],
            _as_json(failed),
            [encode_rows(row) for row in failed.iter_slices(1)],
        ]
        return pl.DataFrame(dict(zip(FAILED_COLUMNS, columns, strict=True)), schema=FAILED_COLUMNS)


def _as_json(rows: pl.DataFrame) -> list[str]:
    return [line.decode() for line in encode_lines(rows).split(b"\n")[:-1]]


_ROWS_AT_ONCE = 4096
_ROW, _BATCH, _SINK = "the function", "the batch function", "the sink function"


class RowFunctionOperator(Operator):
    """Calls a function once a row; rows are dicts, or instances of the input's dataclass."""

    def __init__(self, node: Node, spec: RowFunction, context: BuildContext) -> None:
        super().__init__(node)
        self._spec = spec
        self._policy = FailurePolicy(self, spec.on_error, context.counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        # Some thousand rows at a time: their records and results are made and dropped in the processor's cache, and
        # become columns there, which takes half as long as for a large batch at once.
        failures: list[RowFailure] = []
        numbers: list[Sequence[int]] = []
        kept: list[bool] = []
        tables: list[pl.DataFrame] = []
        for first in range(0, rows.height, _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            flat: list[Any] = []
            results, failed = self._called(self._spec.input.to_records(part), flat, first)
            wrong = {failure.row for failure in failed}
            tried: Sequence[int] = range(first, first + part.height)
            if wrong:
                tried = [number for number in tried if number not in wrong][: len(results)]
            match self._spec.mode:
                case "filter":
                    decisions, tried, failed = self._decisions(results, tried, failed)
                    kept += decisions
                case "map":
                    table, tried, failed = self._tabled(results, tried, failed)
                    tables.append(table)
                case "flat_map":
                    ends = np.array([0, *results], np.int64)
                    owners = np.repeat(np.asarray(tried, np.int64), ends[1:] - ends[:-1])
                    table, tried, failed = self._tabled(flat, owners, failed)
                    tables.append(table)
                case mode:
                    assert_never(mode)
            if failed and self._policy.stops:
                self._policy.rows(_ROW, rows, failed)
            numbers.append(tried)
            failures += failed
        self._policy.rows(_ROW, rows, failures)
        if self._spec.mode == "filter":
            self._emit_kept(rows, list(chain.from_iterable(numbers)) if failures else range(rows.height), kept)
        else:
            self.provenance.became(lambda: [int(number) for number in chain.from_iterable(numbers)])
            self.emit(concat_rows(tables))

    def _called(self, records: Sequence[Any], flat: list[Any], first: int) -> tuple[list[Any], list[RowFailure]]:
        """For ``flat_map`` a row's result is the length of ``flat`` after it: 2, 0 and 3 results give 2, 2, 5."""
        results: list[Any] = []
        failures: list[RowFailure] = []
        # Lazily: if a call raises, the results before it are kept, and the iterator continues after it.
        rest = iter(records)
        calls = map(self._spec.function, rest)
        while len(results) + len(failures) < len(records):
            error: BaseException = StopIteration()  # a function that raises it ends the calls silently
            try:
                with self.user_call(lambda: first + len(results)):
                    if self._spec.mode == "flat_map":
                        _spread(self._spec.function, rest, flat, results)
                    else:
                        results.extend(calls)
                if len(results) + len(failures) == len(records):
                    break
            except RAISED as raised:  # the policy decides what happens
                error = raised
            failures.append(RowFailure(first + len(results) + len(failures), error))
            del flat[results[-1] if results and flat else 0 :]
            if self._policy.stops:
                break
        return results, failures

    def _decisions(
        self, results: list[Any], numbers: Sequence[int], failures: list[RowFailure]
    ) -> tuple[list[bool], Sequence[int], list[RowFailure]]:
        if not {*map(type, results)} <= {bool}:
            wanted, hint = "True or False", "compare something, or write bool(...) if whatever isn't empty counts"
            wrong = {index for index, result in enumerate(results) if not isinstance(result, _YES_OR_NO)}
            errors = {index: WrongResult(self._spec.function, results[index], wanted, hint) for index in wrong}
            failures = [*failures, *(RowFailure(numbers[index], error) for index, error in errors.items())]
            numbers = [number for index, number in enumerate(numbers) if index not in wrong]
            results = [bool(result) for index, result in enumerate(results) if index not in wrong]
        return results, numbers, sorted(failures, key=lambda failure: failure.row)

    def _emit_kept(self, rows: pl.DataFrame, numbers: Sequence[int], results: list[bool]) -> None:
        kept = pl.Series(results, dtype=pl.Boolean)
        if len(numbers) < rows.height:
            mask = np.zeros(rows.height, np.bool_)
            mask[numbers] = results
            kept = pl.Series(mask)
        self.provenance.became(kept.arg_true)
        self.emit(rows_where(rows, kept))

    def _tabled(
        self, records: list[Any], origins: Sequence[int] | npt.NDArray[np.int64], failures: list[RowFailure]
    ) -> tuple[pl.DataFrame, Sequence[int], list[RowFailure]]:
        try:
            return self._spec.output.from_records(records, exact=True), cast("Sequence[int]", origins), failures
        except DataError:
            table, misfits = _sifted(self._spec.output, records)
        numbers = [int(number) for number in origins]
        wrong = {index for index, _ in misfits}
        unfit = {numbers[index]: RowFailure(numbers[index], error, misfit=True) for index, error in reversed(misfits)}
        fitting = [number for index, number in enumerate(numbers) if index not in wrong]
        whole = pl.Series([number not in unfit for number in fitting], dtype=pl.Boolean)
        left = [number for number in fitting if number not in unfit]
        failures = sorted([*failures, *unfit.values()], key=lambda failure: failure.row)
        return table.filter(whole), left, failures


def _spread(function: Callable[[Any], Any], records: Iterator[Any], flat: list[Any], ends: list[int]) -> None:
    add, end = flat.extend, ends.append
    for record in records:
        result = function(record)
        add(result if type(result) is list else _rows_in(function, result))
        end(len(flat))


class BatchFunctionOperator(Operator):
    """Calls a function once a batch, with a DataFrame. If it fails, all rows of the batch have failed."""

    def __init__(self, node: Node, spec: BatchFunction, context: BuildContext) -> None:
        super().__init__(node)
        self._spec = spec
        self._policy = FailurePolicy(self, spec.on_error, context.counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        try:
            with self.user_call():
                result: object = self._spec.function(rows.clone())
        except RAISED as error:  # the policy decides what happens
            self._policy.batch(_BATCH, rows, error)
            return
        if not isinstance(result, pl.DataFrame):
            wrong = WrongResult(self._spec.function, result, "a polars DataFrame", "return pl.DataFrame(...)")
            self._policy.batch(_BATCH, rows, wrong)
            return
        if isinstance(self._spec.function, Sampler):
            self.emit(result)  # it has the columns that it was given, which may be fewer than declared
            return
        try:
            fitting, mismatch = self._spec.output.conform(result)
            self._spec.output.refuse_others(result.columns, "the schema")
            if mismatch is not None:
                raise mismatch.error()
        except DataError as error:
            self._policy.batch(_BATCH, rows, error, misfit=True)
            return
        self.emit(fitting)


class SinkOperator(Operator):
    """Hands batches to a user's function, and emits nothing. At-least-once: a restart may repeat a batch."""

    def __init__(self, node: Node, spec: Sink, context: BuildContext) -> None:
        super().__init__(node)
        self._function = spec.function
        self._policy = FailurePolicy(self, spec.on_error, context.counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        try:
            with self.user_call():
                result: object = self._function(rows.clone())
                if isinstance(result, _UNSEEN) or inspect.isgenerator(result) or _is_async(result):
                    hint = "nothing takes the result of a sink; map_batches(...) passes results on"
                    raise WrongResult(self._function, result, "None", hint)
        except RAISED as error:  # the policy decides what happens
            self._policy.batch(_SINK, rows, error)


Result = TypeVar("Result")
_COUNTED = {"calls": "calls", "ms": "call_ms", "retries": "call_retries", "timeouts": "call_timeouts",
            "failures": "call_failures"}  # fmt: skip


class LaneCounts:
    """Adds the activity of a lane to the task's counters."""

    def __init__(self, lane: Lane[Any], counters: TaskMetrics) -> None:
        self._lane = lane
        self._counters = counters
        self._counted = Tally()
        self._in_flight = 0

    def update(self) -> None:
        for field in fields(Tally):
            now = int(getattr(self._lane.tally, field.name))
            self._counters.count(_COUNTED[field.name], now - int(getattr(self._counted, field.name)))
            setattr(self._counted, field.name, now)
        self._counters.count("calls_in_flight", self._lane.unfinished - self._in_flight)
        self._in_flight = self._lane.unfinished


class WaitingOperator(Operator, Generic[Result]):
    """Subclasses take places in the queue in ``on_batch``, fill them in ``settle``, and emit results in ``release``."""

    def __init__(self, node: Node, *, ordered: bool, most: int) -> None:
        super().__init__(node)
        self._queue: ReorderQueue[Result] = ReorderQueue(ordered=ordered)
        self._most = most
        self._passed = NEVER

    def settle(self) -> None:
        raise NotImplementedError

    def release(self, results: list[Result]) -> None:
        raise NotImplementedError

    @override
    def on_watermark(self, watermark: int) -> None:
        if self.holding:
            self._queue.mark(watermark)
        else:
            self._passed = watermark

    @override
    def watermark_after(self, watermark: int) -> int:
        return self._passed

    @override
    def resume(self, watermark: int) -> None:
        self._passed = watermark

    @property
    @override
    def holding(self) -> bool:
        # A watermark is queued only as long as results are queued before it.
        return len(self._queue) > 0

    @property
    @override
    def full(self) -> bool:
        return len(self._queue) >= self._most

    @override
    def collect(self) -> bool:
        self.settle()
        results, watermark = self._queue.leave()
        if results:
            self.release(results)
        if watermark is not None:
            self._passed = watermark
        return bool(results) or watermark is not None


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    rows: pl.DataFrame
    where: ProvenanceSnapshot


@dataclass(frozen=True, slots=True)
class _Answer:
    batch: _Batch
    row: int
    done: Done


class MapAsyncOperator(WaitingOperator[_Answer]):
    """Calls a function once a row; its result is a row."""

    def __init__(self, node: Node, spec: MapAsync, context: BuildContext) -> None:
        super().__init__(node, ordered=spec.ordered, most=2 * spec.calling.concurrency)
        self._spec = spec
        self._lane: Lane[Any] = Lane(context.calls, spec.function, spec.calling)
        self._counts = LaneCounts(self._lane, context.counters)
        self._policy = FailurePolicy(self, spec.on_error, context.counters)
        self._asked: dict[int, tuple[_Batch, int]] = {}

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        batch = _Batch(rows, self.provenance.here())
        places = self._queue.take_places(rows.height)
        self._asked |= {place: (batch, row) for row, place in enumerate(places)}
        self._lane.put(zip(places, self._spec.input.to_records(rows), strict=True))
        self._counts.update()

    @override
    def settle(self) -> None:
        for done in self._lane.take():
            answer = _Answer(*self._asked.pop(done.place), done)
            if done.error is not None and self._policy.stops:
                self._fail([(answer, _failure(answer.row, done))])
            self._queue.put(done.place, answer)
        self._counts.update()

    @override
    def release(self, results: list[_Answer]) -> None:
        failures = [(answer, _failure(answer.row, answer.done)) for answer in results if answer.done.error is not None]
        answers = [answer for answer in results if answer.done.error is None]
        records = [answer.done.result for answer in answers]
        try:
            table = self._spec.output.from_records(records, exact=True)
        except DataError:
            table, misfits = _sifted(self._spec.output, records)
            failures += [(answers[i], RowFailure(answers[i].row, error, misfit=True)) for i, error in misfits]
        self._fail(failures)
        self.emit(table)

    @property
    @override
    def trouble(self) -> str | None:
        return self._lane.trouble

    @override
    def close(self) -> None:
        self._lane.close()
        self._counts.update()

    def _fail(self, failures: Sequence[tuple[_Answer, RowFailure]]) -> None:
        of_batch: defaultdict[_Batch, list[RowFailure]] = defaultdict(list)
        for answer, failure in failures:
            of_batch[answer.batch].append(failure)
        for batch, mine in of_batch.items():
            self._policy.rows(_ROW, batch.rows, sorted(mine, key=lambda failure: failure.row), batch.where)


def _failure(row: int, done: Done) -> RowFailure:
    assert done.error is not None, "the call has succeeded"
    return RowFailure(row, done.error, note="" if done.attempts == 1 else f"in the last of {done.attempts} attempts")
