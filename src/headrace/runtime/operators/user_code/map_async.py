"""``map_async``: a slow function of the user's, called for many rows at once by ``runtime.calls``.

Calls in progress when a task dies or rolls back are dropped, and made again when their rows are read again. So a call
may be made more than once. Its result counts once, because no commit is made while a call is in progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.api.operators.functions import MapAsync
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.runtime.calls.lanes import Done, Lane
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.provenance import ProvenanceSnapshot
from headrace.runtime.operators.user_code.failure_policy import FailurePolicy, RowFailure
from headrace.runtime.operators.user_code.results import sifted
from headrace.runtime.operators.user_code.waiting import LaneCounts, WaitingOperator

_WHAT = "the function"


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Rows that were taken together, and their origin."""

    rows: pl.DataFrame
    where: ProvenanceSnapshot


@dataclass(frozen=True, slots=True)
class _Answer:
    """The outcome of the call for a row of a batch."""

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
            table, misfits = sifted(self._spec.output, records)
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
        """Apply the policy, batch by batch."""
        of_batch: defaultdict[_Batch, list[RowFailure]] = defaultdict(list)
        for answer, failure in failures:
            of_batch[answer.batch].append(failure)
        for batch, mine in of_batch.items():
            self._policy.rows(_WHAT, batch.rows, sorted(mine, key=lambda failure: failure.row), batch.where)


def _failure(row: int, done: Done) -> RowFailure:
    if done.error is None:
        raise ValueError("the call has succeeded")
    return RowFailure(row, done.error, note="" if done.attempts == 1 else f"in the last of {done.attempts} attempts")
