"""What happens to rows on which a user's function raised: shared by all steps that call one.

A step calls its function row by row, or a batch at a time, and reports here what failed. The policy is one of three:

- Stop the task, with an error that names the step, the user's line, the message's place and the row.
- Drop the rows and count them (``failed_skipped``).
- Emit dead letters about them as the side output ``failed``, which the graph sends to the dead-letter output
  (``dead_lettered``). So a row has all of its effects or none, and dead letters are as durable as results.

A letter holds the row as the step was given it. After a window or a join a row is no longer a message. Then the letter
names the messages that were being processed, or none if the row was emitted because of time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.api.operators.functions import FAILED_COLUMNS
from headrace.api.operators.spec import OnError
from headrace.api.operators.streams import FAILED
from headrace.core.errors import HeadraceError, UserFunctionError
from headrace.core.log import Throttle, logger
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.provenance import Origin, ProvenanceSnapshot
from headrace.runtime.operators.user_code.results import WrongResult
from headrace.runtime.operators.user_code.source_line import line_of, users_line
from headrace.serdes.ipc import encode_rows
from headrace.serdes.json_lines import encode_lines

_log = logger(__name__)

_ROW_CHARS_MAX = 500
"""How much of a row an error shows; a letter holds all of it."""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row by its number in the batch, and the error. ``misfit``: its result doesn't fit the schema."""

    row: int
    error: BaseException
    misfit: bool = False
    note: str = ""
    """The circumstances: ``in the last of 5 attempts``."""

    @property
    def reason(self) -> str:
        """What went wrong, in one or more lines."""
        if isinstance(self.error, WrongResult):
            return str(self.error)
        text = self.error.message if isinstance(self.error, HeadraceError) else str(self.error)
        if self.misfit:
            return f"doesn't fit its schema: {text}"
        return f"{type(self.error).__name__}{self.note and ' '}{self.note}: {text}"

    @property
    def line(self) -> str | None:
        """The line of the app's own code that went wrong."""
        return self.error.line if isinstance(self.error, WrongResult) else line_of(self.error)


class FailurePolicy:
    """The policy of one step."""

    def __init__(self, operator: Operator, on_error: OnError, counters: Counters) -> None:
        self.stops = on_error == "fail"
        """The first failure stops the task, so later rows need not be tried."""
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
        """Single rows of a batch failed; without ``whereabouts`` it is the batch that the operator is processing."""
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
        """All rows of a batch failed."""
        if self.stops:
            place = self._operator.provenance.here().place(None)
            raise self._stopped(what, RowFailure(0, error, misfit), place) from error
        self.rows(what, rows, [RowFailure(row, error, misfit) for row in range(rows.height)])

    def _error(
        self, what: str, rows: pl.DataFrame, failure: RowFailure, where: ProvenanceSnapshot
    ) -> UserFunctionError:
        (text,) = _as_json(rows[failure.row : failure.row + 1])
        shown = text if len(text) <= _ROW_CHARS_MAX else text[: _ROW_CHARS_MAX - 1] + "…"
        return self._stopped(what, failure, where.place(failure.row), f"\n  the row it was given: {shown}")

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
