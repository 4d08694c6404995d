"""Operators that call a function of the user's on messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from typing_extensions import override

from headrace.api.choosing import Sampler
from headrace.api.operators.column_set import ColumnSet, union
from headrace.api.operators.spec import OnError, OperatorSpec, all_carried
from headrace.api.operators.wording import ON_ERROR, call_of
from headrace.core.calling import Calling
from headrace.serdes.schema import Schema

FAILED_COLUMNS: Mapping[str, pl.DataType] = {
    "step": pl.String(),
    "stream": pl.String(),
    "partition": pl.Int64(),
    "offset": pl.Int64(),
    "last_offset": pl.Int64(),
    "index": pl.Int64(),
    "reason": pl.String(),
    "line": pl.String(),
    "row": pl.String(),
    "raw": pl.Binary(),
}
"""The columns of a dead letter: where the message was, what was raised at which line, the row as JSON and as Arrow."""


@dataclass(frozen=True, slots=True, eq=False)
class RowFunction(OperatorSpec):
    """A function called once a row: ``map`` (row -> row), ``filter`` (row -> bool), ``flat_map`` (row -> rows).

    Rows are dicts, or instances of the dataclass that the input schema was made from.
    """

    mode: Literal["map", "filter", "flat_map"]
    function: Callable[[Any], Any]
    input: Schema
    output: Schema
    on_error: OnError = "fail"

    @property
    @override
    def kind(self) -> str:
        return self.mode

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return all_carried(before) if self.mode == "filter" else {}

    @property
    @override
    def row_by_row(self) -> bool:
        return self.mode != "flat_map"

    @property
    @override
    def detail(self) -> str:
        return f"{call_of(self.function)}{ON_ERROR[self.on_error]}"


@dataclass(frozen=True, slots=True, eq=False)
class BatchFunction(OperatorSpec):
    """A function from a DataFrame to a DataFrame of the stated schema."""

    function: Callable[[pl.DataFrame], pl.DataFrame]
    output: Schema
    on_error: OnError = "fail"
    kind = "map_batches"
    places_results = False
    code = "FLAT_MAP"

    @property
    @override
    def detail(self) -> str:
        return f"{call_of(self.function)}{ON_ERROR[self.on_error]}"

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return all_carried(before) if isinstance(self.function, Sampler) else {}

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        # A sampler only leaves rows out; of a user's function nothing is known.
        return union(downstream, frozenset(self.function.keys)) if isinstance(self.function, Sampler) else None


@dataclass(frozen=True, slots=True, eq=False)
class MapAsync(OperatorSpec):
    """A function from a row to a row, with many calls at once; unless ``ordered``, results leave as they arrive."""

    function: Callable[[Any], Any]
    input: Schema
    output: Schema
    calling: Calling
    ordered: bool
    on_error: OnError = "fail"
    kind = "map_async"
    code = "ASYNC_FLAT_MAP"
    defers = True

    @property
    @override
    def detail(self) -> str:
        order = "" if self.ordered else ", as they come"
        return f"{call_of(self.function)}, {self.calling}{order}{ON_ERROR[self.on_error]}"


@dataclass(frozen=True, slots=True, eq=False)
class Sink(OperatorSpec):
    """Hands each batch to a function; what the function does is at-least-once."""

    function: Callable[[pl.DataFrame], None]
    on_error: OnError = "fail"
    kind = "sink"
    acts_outside = True

    @property
    @override
    def detail(self) -> str:
        return f"{call_of(self.function)}, at-least-once{ON_ERROR[self.on_error]}"


Fallible = RowFunction | BatchFunction | MapAsync | Sink
"""Operators whose function may fail; ``on_error`` says what happens to the messages it fails on."""
