"""Operators on single messages and on flows: expressions, functions, merges and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.spec import (
    ON_ERROR,
    ColumnSet,
    Key,
    OnError,
    OperatorSpec,
    all_carried,
    call_of,
    columns_read,
    names,
    on_one_line,
    union,
)
from headrace.core.calls import Calling
from headrace.rows.hashing import hash_rows
from headrace.rows.schema import Schema


@dataclass(frozen=True, slots=True, eq=False)
class Filter(OperatorSpec):
    """Keeps the rows for which a Polars expression is true."""

    predicate: pl.Expr
    kind = "filter"
    takes_changes = True
    passes_rows = True
    row_by_row = True

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return (on_one_line(self.predicate),)

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return columns_read([self.predicate])


@dataclass(frozen=True, slots=True, eq=False)
class Project(OperatorSpec):
    """Computes columns by expressions; ``keep`` says whether the other columns stay."""

    exprs: tuple[pl.Expr, ...]
    keep: bool
    code = "MAP"
    takes_changes = True
    row_by_row = True

    @property
    @override
    def kind(self) -> str:
        return "with_columns" if self.keep else "select"

    @property
    @override
    def expressions(self) -> tuple[str, ...]:
        return tuple(on_one_line(expr) for expr in self.exprs)

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        # select(pl.col("a").alias("b"), "a", c=pl.col("a") + 1) carries a -> ("b", "a").
        lazy = pl.LazyFrame(schema=dict(before.columns))
        carried = {name: [name] for name in before.columns} if self.keep else {}
        for expr in self.exprs:
            results = lazy.select(expr).collect_schema().names()
            for others in carried.values():
                others[:] = [name for name in others if name not in results]
            if expr.meta.is_column_selection(allow_aliasing=False):
                for name in results:
                    carried.setdefault(name, []).append(name)
            elif len(roots := expr.meta.root_names()) == 1 and expr.meta.is_column_selection(allow_aliasing=True):
                carried.setdefault(roots[0], []).append(results[0])
        return {old: tuple(new) for old, new in carried.items()}

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        read = columns_read(self.exprs)
        if not self.keep:
            return read
        if downstream is None or read is None:
            return None
        return (downstream - {expr.meta.output_name() for expr in self.exprs}) | read


# -- functions ---------------------------------------------------------------------------------------
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
    """Called once a row (dict or dataclass): ``map`` (to a row), ``filter`` (to a bool), ``flat_map`` (to rows)."""

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


# These are classes instead of expressions with a Python function inside, because plans show their names.


class Sampler:
    """Only leaves out messages; it reads the columns ``keys``."""

    __slots__ = ()

    keys: tuple[str, ...]

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the messages of a batch that stay."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SomeKeys(Sampler):
    """Keeps the keys whose hash, mixed with the seed, is in the lower ``fraction`` of all hashes.

    The seed is always mixed in, because the hash of the keys alone chooses the partition: without a seed, a sample
    would keep all or nothing of each partition.
    """

    fraction: float
    keys: tuple[str, ...]
    seed: int

    @override
    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        bound = math.floor(self.fraction * 2**64)
        if bound == 2**64:
            return rows
        hashes = pl.DataFrame({"key": hash_rows(rows, self.keys)}).with_columns(seed=pl.lit(self.seed, pl.Int64))
        return rows.filter(pl.Series(hash_rows(hashes, ["seed", "key"]) < np.uint64(bound)))


@dataclass(frozen=True, slots=True)
class SomeMessages(Sampler):
    """Keeps each message at random. It holds no generator, because two tasks must not draw the same numbers."""

    fraction: float
    keys: tuple[str, ...] = ()

    @override
    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(pl.Series(np.random.default_rng().random(rows.height) < self.fraction))


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


# -- streams -----------------------------------------------------------------------------------------
LATE = "late"
"""The side output of messages that are too late for a step."""
FAILED = "failed"
"""The side output of dead letters: rows on which a user's function raised (``FAILED_COLUMNS``)."""
TASK_OUTPUT = "output "
"""The prefix of a low-level task's side outputs; the output's own name follows."""


@dataclass(frozen=True, slots=True)
class Input(OperatorSpec):
    """Reads a stream: a source, or an intermediate stream that another stage writes."""

    stream: str
    kind = "input"

    @property
    @override
    def stream_read(self) -> str:
        return self.stream


@dataclass(frozen=True, slots=True)
class Merge(OperatorSpec):
    """All messages of all its inputs, which have the same schema."""

    kind = "merge"
    takes_changes = True
    passes_rows = True
    row_by_row = True


@dataclass(frozen=True, slots=True)
class SideOutput(OperatorSpec):
    """What the step before it emits under a name, apart from its results: ``LATE``, ``FAILED``, a task's output."""

    name: str

    @property
    @override
    def kind(self) -> str:
        return "output" if self.name.startswith(TASK_OUTPUT) else self.name

    @property
    @override
    def code(self) -> str:
        return "LATE" if self.name == LATE else "SIDE_OUTPUT"

    @property
    @override
    def detail(self) -> str:
        return self.name.removeprefix(TASK_OUTPUT) if self.name.startswith(TASK_OUTPUT) else ""

    @override
    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        # Late messages are rows that the step before it was given. Other side outputs are rows of their own.
        return downstream if self.name == LATE else frozenset()


@dataclass(frozen=True, slots=True)
class _StreamWriter(OperatorSpec):
    """Writes its messages to ``stream``."""

    stream: str
    takes_changes = True

    @property
    @override
    def stream_written(self) -> str:
        return self.stream


@dataclass(frozen=True, slots=True)
class PartitionBy(_StreamWriter):
    """Writes each message to the partition of ``stream`` that its key columns hash to. Ends a stage."""

    keys: tuple[str, ...]
    kind = "partition_by"
    passes_rows = True

    @override
    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        # A key's changes stay in order only if all of them go to the same partition.
        return keys[0] if keys[0] is not None and set(self.keys) <= set(keys[0]) else None

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)}"


@dataclass(frozen=True, slots=True)
class Broadcast(_StreamWriter):
    """Writes each message to ``stream``, of which every task of the next stage reads all partitions. Ends a stage."""

    kind = "broadcast"


@dataclass(frozen=True, slots=True)
class SendTo(_StreamWriter):
    """Writes to an output, or a remote table of its id. Without ``keys`` messages stay in their task's partition."""

    keys: tuple[str, ...] = ()
    kind = "send_to"

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)}" if self.keys else ""
