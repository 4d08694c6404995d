"""What the nodes of a graph do: one frozen record for each kind of operator.

Data alone: nothing here runs, checks or plans. ``op_code`` says what plans call an operator, ``stream_written`` and
``table_used`` what it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from headrace.api.shapes import Hopping, Panes, Session, TimeAxis, Trigger, Tumbling, WindowShape
from headrace.api.tasks import StoreSpec
from headrace.core.calling import Calling
from headrace.serdes.schema import Schema

OnError = Literal["fail", "skip", "dead_letter"]
JoinHow = Literal["inner", "left", "full"]
TableJoinHow = Literal["inner", "left"]

LATE = "late"
"""The side output of messages that came too late for a step."""
TASK_OUTPUT = "output "
"""What the names of the side outputs of low-level tasks begin with; behind it stands the output's own."""

FAILED = "failed"
"""The side output of letters about rows on which a function of the user's raised: ``FAILED_COLUMNS``."""

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
"""What such a letter holds: where the message stood, what was raised at which line, the row as JSON and as Arrow."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """How to read a message's event time (ms): a column, plus a constant."""

    column: str
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """Reads a stream: a source, or an intermediate stream that another stage writes."""

    stream: str


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """Keeps the rows for which a Polars expression is true (vectorised)."""

    predicate: pl.Expr


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """Computes columns by expressions (vectorised); ``keep`` says whether the others stay."""

    exprs: tuple[pl.Expr, ...]
    keep: bool


@dataclass(frozen=True, slots=True, eq=False)
class RowFunction:
    """A user's function called once a row: ``map`` (row -> row), ``filter`` (row -> bool), ``flat_map``.

    Rows are dicts, or instances of the dataclass that the input schema was made from.
    """

    mode: Literal["map", "filter", "flat_map"]
    function: Callable[[Any], Any]
    input: Schema
    output: Schema
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True, eq=False)
class BatchFunction:
    """A user's function from a DataFrame to a DataFrame of the stated schema."""

    function: Callable[[pl.DataFrame], pl.DataFrame]
    output: Schema
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True, eq=False)
class MapAsync:
    """A user's function from a row to a row, many called at once; unless ``ordered``, results leave as they come."""

    function: Callable[[Any], Any]
    input: Schema
    output: Schema
    calling: Calling
    ordered: bool
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class Merge:
    """All messages of all its inputs, which have one schema."""


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """Writes each message to the partition of ``stream`` that its key columns hash to. Ends a stage."""

    stream: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Writes each message to ``stream``, of which every task of the next stage reads all. Ends a stage."""

    stream: str


AggregateKind = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "top_k",
    "n_unique",
    "approx_n_unique",
    "implode",
    "fold",
    "reduce",
]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """An aggregate over a column or expression; ``count`` and ``fold`` need none.

    ``by`` and ``k`` belong to ``top_k``; ``function``, ``merge``, ``initial``, ``dtype`` to ``fold`` and ``reduce``.
    """

    kind: AggregateKind
    expr: pl.Expr | None = None
    by: pl.Expr | None = None
    k: int = 0
    function: Callable[[Any, Any], Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    initial: Any = None
    dtype: pl.DataType | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Aggregates per key and window; a window's result leaves when time reaches its end.

    ``event_time`` is None where the time of messages plays no part. ``early`` and ``late`` say when it has more
    results; ``marked``: each result says which pane it is.
    """

    shape: WindowShape
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    event_time: EventTime | None
    input: Schema
    axis: TimeAxis = "event"
    early: Trigger | None = None
    late: Trigger | None = None
    lateness_ms: int = 0
    panes: Panes = "accumulating"
    marked: bool = False

    @property
    def mergeable(self) -> bool:
        """Partial results of any batches, merged in any grouping, give the same results; built-in aggregates only."""
        simple = isinstance(self.shape, Tumbling | Hopping | Session) and self.axis == "event" and not self.marked
        return simple and not any(aggregate.kind in ("fold", "reduce") for _, aggregate in self.aggregates)


@dataclass(frozen=True, slots=True)
class SideOutput:
    """What the step before it hands out under a name besides its result: ``LATE``, ``FAILED``."""

    name: str


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """Leaves messages out that have a time less than ``within_ms`` away from one of their key that was let through."""

    keys: tuple[str, ...]
    within_ms: int
    event_time: EventTime


@dataclass(frozen=True, slots=True)
class DropLate:
    """Leaves messages out that are older than the watermark."""

    event_time: EventTime


@dataclass(frozen=True, slots=True)
class Join:
    """Joins its two inputs by key where the right one's time is in [left - before_ms, left + after_ms].

    Columns come as ``left.join(right, on=keys, suffix=suffix)`` gives them, keys coalesced.
    """

    keys: tuple[str, ...]
    how: JoinHow
    before_ms: int
    after_ms: int
    left_time: EventTime
    right_time: EventTime
    suffix: str = "_right"


@dataclass(frozen=True, slots=True)
class LatestJoin:
    """Joins each message of its two inputs with the last one of its key of the other, if that isn't too long ago.

    A message counts for ``ttl_ms`` of the wall clock. Columns come as ``Join`` gives them.
    """

    keys: tuple[str, ...]
    how: JoinHow
    ttl_ms: int
    suffix: str = "_right"


@dataclass(frozen=True, slots=True)
class TableJoin:
    """Looks each message's key up in a table; ``keys`` are its columns, in the order of the table's.

    ``time`` is the time as of which a table of versions is asked, and None for any other.
    """

    table: str
    keys: tuple[str, ...]
    how: TableJoinHow
    suffix: str = "_right"
    time: EventTime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TaskStep:
    """A low-level task: an instance of the user's class, to be copied for each task of the stage.

    ``inputs`` are the names and columns of the flows that it takes, in the order of the node's inputs. It hands out
    nothing but side outputs, one for each of ``outputs``. ``timed``: all inputs have a watermark. ``on_error``: what
    becomes of messages on which it raises.
    """

    task: Any
    inputs: tuple[tuple[str, Schema], ...]
    outputs: tuple[tuple[str, Schema], ...]
    stores: tuple[StoreSpec, ...]
    timed: bool
    on_error: OnError = "fail"


@dataclass(frozen=True, slots=True)
class SendTo:
    """Writes to an output stream; ``keys`` choose the partition, else messages stay in their task's."""

    stream: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendToTable:
    """Puts each message into a table under the table's key; with ``deletes`` it takes the row of its key out.

    ``time`` is that of the version that a message is, if the table has versions.
    """

    table: str
    deletes: bool = False
    time: EventTime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sink:
    """Hands each batch to a user's function; what happens there is at-least-once."""

    function: Callable[[pl.DataFrame], None]
    on_error: OnError = "fail"


Operator = (
    Input
    | Filter
    | Project
    | RowFunction
    | BatchFunction
    | MapAsync
    | Merge
    | PartitionBy
    | Broadcast
    | Window
    | SideOutput
    | Deduplicate
    | DropLate
    | Join
    | LatestJoin
    | TableJoin
    | TaskStep
    | SendTo
    | SendToTable
    | Sink
)


Fallible = RowFunction | BatchFunction | MapAsync | Sink
"""Operators that call a function of the user's on messages; ``on_error`` says what becomes of those it fails on."""


def stream_written(operator: Operator) -> str | None:
    """The stream that an operator writes; None: it writes none."""
    match operator:
        case PartitionBy(stream=stream) | Broadcast(stream=stream) | SendTo(stream=stream):
            return stream
        case _:
            return None


def table_used(operator: Operator) -> str | None:
    """The table that an operator joins or writes; None: it uses none."""
    match operator:
        case TableJoin(table=table) | SendToTable(table=table):
            return table
        case _:
            return None


def op_code(operator: Operator) -> str:
    """The name of the operator's kind in plans, as Samza's plan format spells it."""
    match operator:
        case Project():
            return "MAP"
        case RowFunction(mode=mode):
            return mode.upper()
        case BatchFunction():
            return "FLAT_MAP"
        case MapAsync():
            return "ASYNC_FLAT_MAP"
        case TableJoin() | Join() | LatestJoin():
            return "JOIN"
        case SendTo() | SendToTable():
            return "SEND_TO"
        case PartitionBy():
            return "PARTITION_BY"
        case DropLate():
            return "DROP_LATE"
        case TaskStep():
            return "TASK"
        case SideOutput(name=name):
            return "LATE" if name == LATE else "SIDE_OUTPUT"
        case _:
            return type(operator).__name__.upper()
