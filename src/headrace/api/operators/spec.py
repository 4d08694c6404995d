"""What every operator of a graph says about itself, how it describes itself in plans, and a flow's event time.

A spec is a frozen record: it holds what the user declared, and runs nothing. The planner's passes ask it, so they need
no list of operators. A new operator overrides what differs from the defaults here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl
from typing_extensions import override

from headrace.api.checks import Location, unknown_column
from headrace.api.tasks import StoreSpec
from headrace.core.clock import format_ms
from headrace.core.errors import DeclarationError
from headrace.rows.schema import Schema
from headrace.stores.base import StateForm

ColumnSet = frozenset[str] | None
Key = tuple[str, ...] | None


def union(*parts: ColumnSet) -> ColumnSet:
    """The columns that are in any of ``parts``."""
    result: frozenset[str] = frozenset()
    for part in parts:
        if part is None:
            return None
        result |= part
    return result


def columns_read(exprs: Iterable[pl.Expr]) -> ColumnSet:
    """The columns that expressions read; None if one of them chooses its columns only when it runs."""
    names: set[str] = set()
    for expr in exprs:
        if expr.meta.has_multiple_outputs():
            return None
        names.update(expr.meta.root_names())
    return frozenset(names)


OnError = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True, slots=True)
class EventTime:
    """How to read a message's event time (ms): a column, plus a constant."""

    column: str
    offset_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMeaning:
    """What a store's contents mean, in words that plans and errors can show.

    State of an earlier version of the app is of use only if ``fixed`` is the same. ``columns`` are those of its rows,
    each with its type or definition: some may be added. With ``sheds``, columns may also be left out, because nothing
    could read the old values any more. ``key`` are the columns of its messages by which it finds a row again;
    ``input`` says of which of its inputs, if these have other names for them.
    """

    fixed: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    sheds: bool = False
    key: tuple[str, ...] = ()
    input: int | None = None


def expiry(ttl_ms: int | None) -> str:
    """Whether rows expire, as a ``StateMeaning`` shows it; after how long may change."""
    return "none" if ttl_ms is None else "by ttl"


def typed(names: Iterable[str], schema: Schema) -> str:
    """The names with their types, as a ``StateMeaning`` shows them: ``member: String, day: Date``."""
    return ", ".join(f"{name}: {schema.columns[name]}" for name in names)


class OperatorSpec:
    """The base of all operator specs. The defaults fit a stateless operator that computes new rows."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The name of the ``Stream`` method that declares it."""
        raise NotImplementedError

    @property
    def code(self) -> str:
        """The name of its kind as Samza's plan format spells it."""
        return self.kind.upper()

    @property
    def detail(self) -> str:
        """What it does in one line, without its kind, stream and table; empty when these say everything."""
        return ""

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its Polars expressions as Polars prints them, each on one line."""
        return ()

    @property
    def join_bound_ms(self) -> int | None:
        """How far apart in time two messages can be that it joins."""
        return None

    @property
    def stream_read(self) -> str | None:
        """The id of the stream that it reads."""
        return None

    @property
    def stream_written(self) -> str | None:
        """The id of the stream that it writes."""
        return None

    @property
    def table_joined(self) -> str | None:
        """The id of the table in which it looks up rows."""
        return None

    @property
    def table_written(self) -> str | None:
        """The id of the local or global table that it fills or deletes from."""
        return None

    @property
    def table_filled(self) -> str | None:
        """The id of the table into which it may put rows."""
        return self.table_written

    @property
    def table_used(self) -> str | None:
        """The id of the table that it joins or writes."""
        return self.table_joined if self.table_joined is not None else self.table_written

    @property
    def table_preposition(self) -> str:
        """How plans connect it to its table: ``with`` a joined one, ``into`` a written one."""
        return "into" if self.table_joined is None else "with"

    @property
    def acts_outside(self) -> bool:
        """Its function may act on the outside world, where a rollback undoes nothing: at-least-once in any app."""
        return False

    @property
    def needs_event_time(self) -> bool:
        """It waits for watermarks: without them it would emit nothing, or keep its state, until its input ends."""
        return False

    @property
    def row_by_row(self) -> bool:
        """Each message has at most one result, at once, which depends on no earlier message."""
        return False

    @property
    def places_results(self) -> bool:
        """Of the results that leave while it processes a batch, it can say from which message each comes."""
        return True

    @property
    def defers(self) -> bool:
        """Its results, but for side outputs, leave later than its messages: at a watermark, by a clock, when ready."""
        return False

    def table_key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of its messages by which it finds a row of its table, of which ``key`` is the key."""
        return key

    @property
    def queryable_stores(self) -> tuple[StoreSpec, ...]:
        """The stores that can be queried while the app runs."""
        return ()

    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        """What it keeps from one start to the next, by store: ``id_``, or ``id_`` with ``.`` and a name."""
        return {}

    @property
    def hidden_state(self) -> str | None:
        """If it keeps state that can't be queried, what the operator is called in that error: ``a window``."""
        return None

    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        """The forms of the rows that it keeps, by store, unless the store says itself; see ``stores.base.misfit``."""
        return {}

    passes_rows = False
    """Its results are rows that it was given, unchanged, perhaps not all of them."""

    @property
    def columns_used(self) -> ColumnSet:
        """The columns that it reads itself, if it passes rows on."""
        return frozenset()

    def columns_needed(self, downstream: ColumnSet, *, has_side_outputs: bool) -> ColumnSet:
        """The input columns that it needs, if others need ``downstream`` of its results, or a side output."""
        return union(downstream, self.columns_used) if self.passes_rows else None

    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        """For each column of its first input (``before``) the names under which it leaves unchanged, if it does."""
        return all_carried(before) if self.passes_rows else {}

    @property
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        """For each input the columns by which it keeps state; none if it keeps none by key, or in a table."""
        return ()

    @property
    def growth(self) -> str:
        """Why its state grows for as long as new keys come, and what bounds it; empty if it has a bound."""
        return ""

    takes_changes = False
    """It does the right thing with a flow of changes (``rows/changes.py``)."""

    def change_key(self, keys: Sequence[Key], inputs: Sequence[Schema]) -> Key:
        """The key of the changes that it hands on, if its inputs' have ``keys``; None if they have none."""
        if len(keys) != 1 or keys[0] is None:
            return None
        carried = self.carried(inputs[0])
        named = [carried.get(name, ()) for name in keys[0]]
        return tuple(some[0] for some in named) if all(named) else None

    @property
    def gathers_keys(self) -> bool:
        """All messages of a key must reach one task (of a table: if it is local): its inputs need equal counts."""
        return False


def all_carried(before: Schema) -> Mapping[str, tuple[str, ...]]:
    """The ``carried`` of an operator that hands on its first input's columns as they are."""
    return {name: (name,) for name in before.columns}


# -- wording -----------------------------------------------------------------------------------------
_EXPRESSION_CHARS_MAX = 200

ON_ERROR: dict[OnError, str] = {
    "fail": "",
    "skip": ", failed messages are skipped and counted",
    "dead_letter": ", failed messages go to dead letters",
}


def call_of(function: Callable[..., object]) -> str:
    """A function as plans name it: ``enrich()``."""
    return f"{getattr(function, '__qualname__', type(function).__name__)}()"


def names(columns: tuple[str, ...]) -> str:
    """Columns as a list: ``shop, order``."""
    return ", ".join(columns)


def signed(ms: int) -> str:
    """A duration with its sign: ``+5s``, ``-1m``; ``0`` has none."""
    if ms == 0:
        return "0"
    return f"{'-' if ms < 0 else '+'}{format_ms(abs(ms))}"


def offset(ms: int) -> str:
    """A duration with its sign, and a space before it; empty for 0."""
    return f" {signed(ms)}" if ms else ""


def on_one_line(expr: pl.Expr) -> str:
    """An expression as Polars prints it, on one line; a long one is cut."""
    text = " ".join(str(expr).split())
    return text if len(text) <= _EXPRESSION_CHARS_MAX else text[: _EXPRESSION_CHARS_MAX - 1] + "…"


# -- event time --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LostTime:
    """The step after which a flow has no event time: ``'ts' was dropped ... by select(...)``."""

    column: str
    how: str
    operator: str
    location: Location

    @override
    def __str__(self) -> str:
        return f"{self.column!r} {self.how} at {self.location} by {self.operator}(...)"


Time = EventTime | LostTime | None
"""A flow's event time: known, lost on the way, or never declared."""


def is_time(dtype: pl.DataType) -> bool:
    """Whether a column of this dtype can be an event time."""
    return dtype in (pl.Int64, pl.UInt64) or isinstance(dtype, pl.Datetime)


def check_time_column(column: str, schema: Schema) -> EventTime:
    """The event time in ``column``; raises if the column doesn't exist or isn't a time."""
    if column not in schema.columns:
        raise unknown_column(column, schema.columns)
    dtype = schema.columns[column]
    if not is_time(dtype):
        raise DeclarationError(
            f"the event time column {column!r} is {dtype}",
            hint="event time is pl.Datetime or Int64 (milliseconds since the epoch): declare the column as "
            'pl.Datetime("ms"), to which dates are cast'
            if dtype == pl.Date
            else "event time is Int64 (milliseconds since the epoch) or Datetime; cast it",
        )
    return EventTime(column)


def after_projection(time: Time, unchanged: Iterable[str], schema: Schema, operator: str, where: Location) -> Time:
    """The event time after a projection, which keeps it if its column is unchanged."""
    if not isinstance(time, EventTime) or time.column in unchanged:
        return time
    how = "was recomputed" if time.column in schema.columns else "was dropped"
    return LostTime(time.column, how, operator, where)


def renames(expr: pl.Expr, column: str) -> bool:
    """Whether an expression is this column under another name."""
    return expr.meta.is_column_selection(allow_aliasing=True) and expr.meta.root_names() == [column]


def after_function(time: Time, schema: Schema, operator: str, where: Location) -> Time:
    """The event time after a user's function, which keeps it if the result has a time column of that name."""
    if not isinstance(time, EventTime):
        return time
    dtype = schema.columns.get(time.column)
    if dtype is None:
        return LostTime(time.column, "was dropped", operator, where)
    return time if is_time(dtype) else LostTime(time.column, f"was turned into {dtype}", operator, where)


def after_merge(times: Iterable[Time], where: Location) -> Time:
    """The event time of merged flows: the one that they all have."""
    times = tuple(times)
    first = times[0]
    if all(time == first for time in times) and not isinstance(first, LostTime):
        return first
    lost = next((time for time in times if isinstance(time, LostTime)), None)
    if lost is not None:
        return lost
    known = next(time for time in times if isinstance(time, EventTime))
    return LostTime(known.column, "was mixed with other event times", "merge", where)


def needed_time(time: Time, schema: Schema, who: str, named: str | None = None) -> EventTime:
    """The event time that ``who`` uses; raises an error that says where it was lost."""
    if time is None:
        raise DeclarationError(
            f"{who} needs an event time, and no input before it declares one",
            hint='name the column that holds it: app.input("views", schema, event_time="ts", lateness="5s")',
        )
    if named is not None:
        return check_time_column(named, schema)
    if isinstance(time, EventTime):
        return time
    remedy = ", or name it: window(..., time='col')" if who == "window" else ""
    raise DeclarationError(f"{who} needs an event time; {time}", hint=f"keep it{remedy}")


def bound_dtype(dtype: pl.DataType) -> pl.DataType:
    """The dtype of a window's bounds: the event time's if that is Datetime, otherwise Int64 milliseconds."""
    return dtype if isinstance(dtype, pl.Datetime) else pl.Int64()
