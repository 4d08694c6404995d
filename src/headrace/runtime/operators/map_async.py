"""A function of the user's that takes time, called for many rows at once: see ``runtime.calls``.

Calls that are under way when a task dies or rolls back are forgotten, and made again when their rows are read again.
So a call may be made more than once; its result counts once, because no commit is made while a call is under way.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from headrace.api.specs import MapAsync, Node
from headrace.core.errors import DataError, UserFunctionError
from headrace.runtime.calls import Calls, Done, Lane
from headrace.runtime.operators.base import Counters
from headrace.runtime.operators.users_code import users_line
from headrace.runtime.operators.waiting import LaneCounts, WaitingOperator

_ROW_CHARS_MAX = 200


class MapAsyncOperator(WaitingOperator[Any]):
    """Calls a function once a row; its result is a row."""

    def __init__(self, node: Node, spec: MapAsync, counters: Counters, calls: Calls) -> None:
        super().__init__(node, ordered=spec.ordered, most=2 * spec.calling.concurrency)
        self._spec = spec
        self._lane: Lane[Any] = Lane(calls, spec.function, spec.calling)
        self._counts = LaneCounts(self._lane, counters)
        self._rows: dict[int, Any] = {}

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        records = self._spec.input.to_records(rows)
        taken = dict(zip(self._line.take_places(len(records)), records, strict=True))
        self._rows |= taken
        self._lane.put(taken.items())
        self._counts.tell()

    def settle(self) -> None:
        """See ``WaitingOperator``."""
        for done in self._lane.take():
            row = self._rows.pop(done.place)
            if done.error is not None:
                raise self._failure(done, row)
            self._line.put(done.place, done.result)
        self._counts.tell()

    def release(self, results: list[Any]) -> None:
        """See ``WaitingOperator``."""
        try:
            table = self._spec.output.from_records(results)
        except DataError as error:
            raise self.misfitted(error, "the function's result") from error
        self.emit(table)

    @property
    def trouble(self) -> str | None:
        """See ``Operator``."""
        return self._lane.trouble

    def close(self) -> None:
        """See ``Operator``."""
        self._lane.close()
        self._counts.tell()

    def _failure(self, done: Done, row: Any) -> UserFunctionError:
        error = done.error
        if not isinstance(error, Exception):
            error = RuntimeError(repr(error))
        tries = "" if done.attempts == 1 else f" in the last of {done.attempts} attempts"
        failure = self.failed(error, "the function", f"{users_line(error)}{tries}")
        failure.message += f"\n  on the row {row!r:.{_ROW_CHARS_MAX}}"
        return failure
