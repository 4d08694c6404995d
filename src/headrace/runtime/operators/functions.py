"""The user's own functions: per row (map, filter, flat_map) and per batch. The only place with Python per message."""

from __future__ import annotations

import polars as pl

from headrace.api.specs import BatchFunction, Node, RowFunction, Sink
from headrace.core.errors import DataError, UserFunctionError
from headrace.runtime.operators.base import Operator


class RowFunctionOperator(Operator):
    """Calls a function once a row; rows are dicts, or instances of the input's dataclass."""

    def __init__(self, node: Node, spec: RowFunction) -> None:
        super().__init__(node)
        self._spec = spec

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        records = self._spec.input.to_records(rows)
        function = self._spec.function
        try:
            if self._spec.mode == "filter":
                kept = pl.Series([bool(function(record)) for record in records], dtype=pl.Boolean)
                self.emit(rows.filter(kept))
                return
            if self._spec.mode == "map":
                results = [function(record) for record in records]
            else:
                results = [result for record in records for result in function(record)]
        except UserFunctionError:
            raise  # an operator behind this one, which has named itself already
        except Exception as error:
            raise self.failed(error, "the function") from error
        self.emit(self._table(results))

    def _table(self, results: list[object]) -> pl.DataFrame:
        try:
            return self._spec.output.from_records(results)
        except DataError as error:
            raise self.failed(error, "the result") from error


class BatchFunctionOperator(Operator):
    """Calls a function once a batch, with a DataFrame."""

    def __init__(self, node: Node, spec: BatchFunction) -> None:
        super().__init__(node)
        self._spec = spec

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            result: object = self._spec.function(rows)
        except Exception as error:
            raise self.failed(error, "the batch function") from error
        if not isinstance(result, pl.DataFrame):
            wrong = TypeError(f"it returned {type(result).__name__}, not a polars DataFrame")
            raise self.failed(wrong, "the batch function")
        try:
            fitting, mismatch = self._spec.output.conform(result)
        except DataError as error:
            raise self.failed(error, "the batch function's result") from error
        if mismatch is not None:
            raise self.failed(mismatch.error(), "the batch function's result")
        self.emit(fitting)


class SinkOperator(Operator):
    """Hands batches to a function of the user's and ends there. At-least-once: a restart may hand one over again."""

    def __init__(self, node: Node, spec: Sink) -> None:
        super().__init__(node)
        self._function = spec.function

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        try:
            self._function(rows)
        except Exception as error:
            raise self.failed(error, "the sink function") from error
