"""The user's own functions: per row (map, filter, flat_map) and per batch. The only place with Python per message.

A batch function and a sink get a DataFrame of their own (its memory is shared): what they do to it in place
doesn't reach the other branches of the flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from headrace.api.specs import BatchFunction, Node, RowFunction, Sink
from headrace.core.errors import DataError
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.users_code import users_line


class RowFunctionOperator(Operator):
    """Calls a function once a row; rows are dicts, or instances of the input's dataclass."""

    def __init__(self, node: Node, spec: RowFunction) -> None:
        super().__init__(node)
        self._spec = spec

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        records = self._spec.input.to_records(rows)
        function = self._spec.function
        if self._spec.mode == "filter":
            self.emit(rows.filter(pl.Series(self._called(function, records), dtype=pl.Boolean)))
            return
        results = self._called(function, records)
        try:
            table = self._spec.output.from_records(results)
        except DataError as error:
            raise self.misfitted(error, "the function's result") from error
        self.emit(table)

    def _called(self, function: Callable[[Any], Any], records: list[Any]) -> list[Any]:
        try:
            match self._spec.mode:
                case "filter":
                    return [bool(function(record)) for record in records]
                case "map":
                    return [function(record) for record in records]
                case "flat_map":
                    return [result for record in records for result in function(record)]
        except Exception as error:
            raise self.failed(error, "the function", users_line(error)) from error


class BatchFunctionOperator(Operator):
    """Calls a function once a batch, with a DataFrame."""

    def __init__(self, node: Node, spec: BatchFunction) -> None:
        super().__init__(node)
        self._spec = spec

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            result: object = self._spec.function(rows.clone())
        except Exception as error:
            raise self.failed(error, "the batch function", users_line(error)) from error
        if not isinstance(result, pl.DataFrame):
            wrong = TypeError(f"it returned {type(result).__name__}, not a polars DataFrame")
            raise self.failed(wrong, "the batch function")
        try:
            fitting, mismatch = self._spec.output.conform(result)
        except DataError as error:
            raise self.misfitted(error, "the batch function's result") from error
        if mismatch is not None:
            raise self.misfitted(mismatch.error(), "the batch function's result")
        self.emit(fitting)


class SinkOperator(Operator):
    """Hands batches to a function of the user's and ends there. At-least-once: a restart may hand one over again."""

    def __init__(self, node: Node, spec: Sink) -> None:
        super().__init__(node)
        self._function = spec.function

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            self._function(rows.clone())
        except Exception as error:
            raise self.failed(error, "the sink function", users_line(error)) from error
