"""The user's functions: per row (map, filter, flat_map), which means Python per message, and per batch.

A batch function and a sink get their own DataFrame (with shared memory), so changing it in place doesn't affect the
other branches of the flow. ``failure_policy`` decides what happens to rows on which a function raises. If one of the
results of a row can't be used, the row has no results at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, assert_never, cast

import numpy as np
import numpy.typing as npt
import polars as pl
from typing_extensions import override

from headrace.api.choosing import Sampler
from headrace.api.operators.functions import BatchFunction, RowFunction, Sink
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.runtime.operators.base import RAISED, Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.user_code.failure_policy import FailurePolicy, RowFailure
from headrace.runtime.operators.user_code.results import WrongResult, check_nothing, decided, rows_in, sifted
from headrace.serdes.rows import concat_rows, rows_where

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
                    decisions, tried, failed = self._decided(results, tried, failed)
                    kept += decisions
                case "map":
                    table, tried, failed = self._tabled(results, tried, failed)
                    tables.append(table)
                case "flat_map":
                    table, tried, failed = self._tabled(flat, _owners(tried, results), failed)
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
        """The results of the rows that didn't fail, in order, and the failures (only the first, if it stops the task).

        ``first`` is the number of the first row. For ``flat_map`` the results themselves go to ``flat``. The result of
        a row is then the length of ``flat`` after the row: rows with 2, 0 and 3 results give 2, 2, 5.
        """
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

    def _decided(
        self, results: list[Any], numbers: Sequence[int], failures: list[RowFailure]
    ) -> tuple[list[bool], Sequence[int], list[RowFailure]]:
        """What a filter decided, the numbers of those rows, and the failures with those that it didn't decide on."""
        kept, wrong = decided(self._spec.function, results)
        if wrong:
            failures = [*failures, *(RowFailure(numbers[index], error) for index, error in wrong.items())]
            numbers = [number for index, number in enumerate(numbers) if index not in wrong]
        return kept, numbers, sorted(failures, key=lambda failure: failure.row)

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
        """Records as a table, the numbers of the rows that they come from, and the failures with those that don't fit.

        ``origins`` has the number of the row of each record.
        """
        try:
            return self._spec.output.from_records(records, exact=True), cast("Sequence[int]", origins), failures
        except DataError:
            table, left, misfits = self._sifted(records, [int(number) for number in origins])
            return table, left, sorted([*failures, *misfits], key=lambda failure: failure.row)

    def _sifted(self, records: list[Any], numbers: Sequence[int]) -> tuple[pl.DataFrame, list[int], list[RowFailure]]:
        """The records of the rows whose records all fit, the numbers of those rows, and the failures."""
        table, misfits = sifted(self._spec.output, records)
        wrong = {index for index, _ in misfits}
        failures = {
            numbers[index]: RowFailure(numbers[index], error, misfit=True) for index, error in reversed(misfits)
        }
        fitting = [number for index, number in enumerate(numbers) if index not in wrong]
        whole = pl.Series([number not in failures for number in fitting], dtype=pl.Boolean)
        return table.filter(whole), [n for n in fitting if n not in failures], list(failures.values())


def _spread(function: Callable[[Any], Any], records: Iterator[Any], flat: list[Any], ends: list[int]) -> None:
    """Add to ``flat`` the rows that ``function`` returns for each record, and to ``ends`` its length after each."""
    add, end = flat.extend, ends.append
    for record in records:
        result = function(record)
        add(result if type(result) is list else rows_in(function, result))
        end(len(flat))


def _owners(numbers: Sequence[int], ends: Sequence[int]) -> npt.NDArray[np.int64]:
    """Each row number once per result; ``ends`` says where they end: (0, 1, 2), (2, 2, 5) give 0, 0, 2, 2, 2."""
    stops = np.array([0, *ends], np.int64)
    return np.repeat(np.asarray(numbers, np.int64), stops[1:] - stops[:-1])


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
                check_nothing(self._function, self._function(rows.clone()))
        except RAISED as error:  # the policy decides what happens
            self._policy.batch(_SINK, rows, error)
