"""Joins of two streams, and operators on tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
from typing_extensions import override

from headrace.api.checks import Location, key_columns, unknown_column
from headrace.api.draft import Draft, Table, check_filled_by_flows
from headrace.api.operators.spec import (
    EventTime,
    LostTime,
    OperatorSpec,
    StateMeaning,
    Time,
    all_carried,
    names,
    needed_time,
    offset,
    signed,
    typed,
)
from headrace.api.specs import TableSpec
from headrace.core.clock import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.ids import check_id
from headrace.rows.schema import Schema
from headrace.stores.base import StateForm, with_types

JoinHow = Literal["inner", "left", "full"]
ChangesHow = Literal["inner", "left", "right", "full", "semi", "anti"]
Within = Duration | tuple[Duration, Duration]


@dataclass(frozen=True, slots=True)
class StreamJoin(OperatorSpec):
    """The base of the joins of two streams. Columns are those of Polars' ``left.join``, with the keys coalesced."""

    keys: tuple[str, ...]
    how: JoinHow
    code = "JOIN"
    hidden_state = "a join"
    gathers_keys = True

    @property
    @override
    def keyed_inputs(self) -> tuple[tuple[str, ...], ...]:
        return (self.keys, self.keys)

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        # A full join has rows without a left message: only the keys are never null.
        return {key: (key,) for key in self.keys} if self.how == "full" else all_carried(before)

    def _kept(self, inputs: Sequence[Schema], **fixed: str) -> StateMeaning:
        """Messages that wait for a partner may gain columns, and lose them."""
        columns = {
            f"{side} {name}": str(dtype)
            for side, schema in zip(("left", "right"), inputs, strict=True)
            for name, dtype in schema.columns.items()
            if name not in self.keys
        }
        fixed = {"kind": self.kind, "how": self.how, "key": typed(self.keys, inputs[0])} | fixed
        return StateMeaning(fixed=fixed, columns=columns, sheds=True, key=self.keys)


@dataclass(frozen=True, slots=True)
class IntervalJoin(StreamJoin):
    """Joins its two inputs by key where the right time is in [left - before_ms, left + after_ms]."""

    before_ms: int
    after_ms: int
    left_time: EventTime
    right_time: EventTime
    suffix: str = "_right"
    kind = "join"
    needs_event_time = True

    @property
    @override
    def detail(self) -> str:
        return f"{self.how} on {names(self.keys)}, {signed(-self.before_ms)} to {signed(self.after_ms)}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        found = {}
        for name, schema, alone in zip(
            ("left", "right"), inputs, (self.how != "inner", self.how == "full"), strict=True
        ):
            what = f"the {name} side of a join" + (", with messages that may leave alone" if alone else "")
            key = with_types(self.keys, schema.columns)
            values = [column for column in schema.columns if column not in self.keys]
            found[f"{id_}.{name}"] = StateForm(what=what, key=key, columns=with_types(values, schema.columns))
            if alone:
                matched = f"what had a partner on the {name} side of a join"
                found[f"{id_}.{name}-matched"] = StateForm(what=matched, key=key)
        return found

    @property
    @override
    def join_bound_ms(self) -> int:
        return max(self.before_ms, self.after_ms)

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        sides = (("left", self.left_time), ("right", self.right_time))
        times = {f"{side} time": f"{time.column}{offset(time.offset_ms)}" for side, time in sides}
        bounds = f"{signed(-self.before_ms)} to {signed(self.after_ms)}"
        return {id_: self._kept(inputs, **{"within": bounds} | times)}


@dataclass(frozen=True, slots=True)
class LatestJoin(StreamJoin):
    """Joins each message with the latest one of its key from the other input, for ``ttl_ms`` of the wall clock."""

    ttl_ms: int
    suffix: str = "_right"
    kind = "join_latest"

    @property
    @override
    def detail(self) -> str:
        return f"{self.how} on {names(self.keys)}, the last one for {format_ms(self.ttl_ms)}"

    @property
    @override
    def join_bound_ms(self) -> int:
        return self.ttl_ms

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        return {id_: self._kept(inputs)}


def stream_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str],
    how: ChangesHow,
    within: Within | None,
    suffix: str,
    here: Location,
) -> tuple[IntervalJoin, Schema, Time]:
    """The checked spec of a join within a time bound, with the schema and event time of its results."""
    how = _checked(how)
    before, after = _join_bounds(within)
    keys = _join_keys(on, left[0], right[0])
    columns = _joined_columns(left[0], right[0], keys, suffix)
    left_time = needed_time(left[1], left[0], "the left side of a join")
    right_time = needed_time(right[1], right[0], "the right side of a join")
    time: Time = left_time
    if how == "full":
        time = LostTime(left_time.column, "became nullable", "join", here)
    return IntervalJoin(keys, how, before, after, left_time, right_time, suffix), Schema.of(columns), time


def latest_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str],
    how: ChangesHow,
    ttl: Duration,
    suffix: str,
    here: Location,
) -> tuple[LatestJoin, Schema, Time]:
    """The checked spec of a join of latest messages, with the schema and event time of its results."""
    how = _checked(how)
    keys = _join_keys(on, left[0], right[0])
    columns = _joined_columns(left[0], right[0], keys, suffix)
    time = left[1]
    if isinstance(time, EventTime):
        # The left message of a result may have arrived hours ago.
        time = LostTime(time.column, "may be that of an older message", "join_latest", here)
    return LatestJoin(keys, how, to_ms(ttl, "ttl", minimum=1), suffix), Schema.of(columns), time


def _checked(how: ChangesHow) -> JoinHow:
    if how == "inner" or how == "left" or how == "full":  # noqa: PLR1714 - so the type checker sees which
        return how
    raise DeclarationError(f"how={how!r} is not one of the choices", hint='write "inner", "left" or "full"')


def _join_bounds(within: Within | None) -> tuple[int, int]:
    if within is None:
        raise DeclarationError(
            "a join of two streams needs within= or ttl=, or it would have to keep all messages forever",
            hint='write within="5m", or within=("-5m", "+1m"): from 5 min before the left one to 1 min after; or '
            'ttl="7d": all pairs, and each row is kept for so long',
        )
    if not isinstance(within, tuple):
        bound = to_ms(within, "within")
        return bound, bound
    if len(within) != 2:
        raise DeclarationError(f"within={within!r} is not a pair", hint='write within=("-5m", "+1m")')
    earliest, latest = (to_ms(bound, "within", minimum=None) for bound in within)
    if earliest > latest:
        raise DeclarationError(
            f"within={within!r} ends before it begins", hint="the earlier bound comes first, and may be negative"
        )
    return -earliest, latest


def _join_keys(on: str | Sequence[str], left: Schema, right: Schema) -> tuple[str, ...]:
    keys = key_columns(on, left, "join")
    for name in keys:
        if name not in right.columns:
            raise unknown_column(name, right.columns, " on the right side")
        _check_key_types(name, left.columns[name], name, right.columns[name])
    return keys


def _joined_columns(left: Schema, right: Schema, right_keys: tuple[str, ...], suffix: str) -> dict[str, pl.DataType]:
    result = dict(left.columns)
    for name, dtype in right.columns.items():
        if name in right_keys:
            continue
        new = f"{name}{suffix}" if name in left.columns else name
        if new in result:
            raise DeclarationError(
                f"both sides have a column {new!r}", hint="rename one of them, or choose another suffix="
            )
        result[new] = dtype
    return result


def _check_key_types(ours: str, left: pl.DataType, theirs: str, right: pl.DataType) -> None:
    if left != right:
        raise DeclarationError(
            f"the key {ours!r} is {left} on the left side, and {theirs!r} is {right} on the right",
            hint="cast one of them in with_columns(...) before the join",
        )


TableJoinHow = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class TableJoin(OperatorSpec):
    """Looks up each message's key in a table; ``keys`` are the message's columns, in the order of the table's key.

    ``time`` is the time as of which a table of versions is read; None for any other table.
    """

    table: str
    keys: tuple[str, ...]
    how: TableJoinHow
    suffix: str = "_right"
    time: EventTime | None = None
    kind = "join"
    gathers_keys = True
    row_by_row = True

    @property
    @override
    def needs_event_time(self) -> bool:
        return self.time is not None

    @override
    def table_key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        return self.keys

    @property
    @override
    def detail(self) -> str:
        as_of = "" if self.time is None else f" as of {self.time.column}{offset(self.time.offset_ms)}"
        return f"{self.how} on {names(self.keys)}{as_of}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        if self.time is None:
            return {}
        columns = inputs[0].columns
        return {
            f"{id_}.held": StateForm(
                what="messages that wait for a table of versions",
                key=with_types(self.keys, columns),
                columns=with_types([name for name in columns if name not in self.keys], columns),
            )
        }

    @property
    @override
    def table_joined(self) -> str:
        return self.table

    @property
    @override
    def hidden_state(self) -> str | None:
        return None if self.time is None else "a join"

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        if self.time is None:
            return {}
        fixed = {"kind": "join as of", "table": self.table, "key": typed(self.keys, inputs[0])}
        fixed["time"] = self.time.column
        columns = {name: str(dtype) for name, dtype in inputs[0].columns.items() if name not in self.keys}
        return {id_: StateMeaning(fixed=fixed, columns=columns, sheds=True, key=self.keys)}

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        return all_carried(before)


@dataclass(frozen=True, slots=True)
class SendToTable(OperatorSpec):
    """Puts each message into a table (of versions: valid from ``time``); with ``deletes`` deletes its row."""

    table: str
    deletes: bool = False
    time: EventTime | None = None
    code = "SEND_TO"
    gathers_keys = True

    @property
    @override
    def needs_event_time(self) -> bool:
        return self.time is not None

    @property
    @override
    def kind(self) -> str:
        return "delete_from" if self.deletes else "send_to"

    @property
    @override
    def table_written(self) -> str:
        return self.table

    @property
    @override
    def table_filled(self) -> str | None:
        return None if self.deletes else self.table

    @property
    @override
    def table_preposition(self) -> str:
        return "from" if self.deletes else "into"


@dataclass(frozen=True, slots=True)
class TaskTable(OperatorSpec):
    """A flow on its way into a low-level task that uses a table: for the planner, a join with it or a writer."""

    table: str
    writes: bool
    passes_rows = True
    gathers_keys = True
    row_by_row = True

    @property
    @override
    def kind(self) -> str:
        return "writes" if self.writes else "reads"

    @property
    @override
    def table_joined(self) -> str | None:
        return None if self.writes else self.table

    @property
    @override
    def table_written(self) -> str | None:
        return self.table if self.writes else None


@dataclass(frozen=True, slots=True)
class TableUse:
    """A table that a low-level task uses under a name; it may put and delete rows if it ``writes``."""

    name: str
    table: str
    writes: bool


def table_uses(draft: Draft, tables: object, writes: str | Iterable[str]) -> tuple[TableUse, ...]:
    """The checked tables of a low-level task, by name. A task can read all of them, and write those in ``writes``."""
    if not isinstance(tables, Mapping):
        raise DeclarationError(
            f"tables= must be a dict of tables, not {type(tables).__name__} {tables!s:.80}",
            hint='write tables={"stock": stock}, and use it as out.tables["stock"]',
        )
    written = (writes,) if isinstance(writes, str) else tuple(writes)
    for name in written:
        if name not in tables:
            raise DeclarationError(
                f"writes= names {name!r}, which isn't among tables=",
                hint=f"name some of these: {', '.join(tables) or 'there are none'}",
            )
    for name, table in tables.items():
        check_id("the table", name)
        if not isinstance(table, Table):
            raise DeclarationError(
                f"the table {name!r} is {type(table).__name__} {table!s:.80}",
                hint='tables come from app.table("...", key=...)',
            )
        if table.draft is not draft:
            raise DeclarationError(f"the table {table.id!r} belongs to another app, {table.draft.app!r}")
        _check_records(table.spec, writes=name in written)
    uses = tuple(TableUse(name, table.id, name in written) for name, table in tables.items())
    twice = [use.table for use in uses if [other.table for other in uses].count(use.table) > 1]
    if twice:
        raise DeclarationError(f"the table {twice[0]!r} has two names in tables=", hint="name it once")
    return uses


def _check_records(spec: TableSpec, *, writes: bool) -> None:
    what, hint = None, ""
    if spec.remote is not None:
        what, hint = "is remote", "join it before the task, and send rows to it by an output of the task"
    elif spec.versions_ms is not None:
        what, hint = "has versions", "join it before the task: it is read as of a message's time"
    elif spec.storage != "disk":
        what, hint = 'has storage="memory"', 'leave out storage="memory"'
    elif spec.schema is None:
        what, hint = "has no columns yet", "give it a schema=, or declare the flow that fills it before the task"
    elif len(spec.schema.columns) == len(spec.key):
        what, hint = "has no columns but its key", "add a column, such as a Boolean one"
    elif writes and spec.kind == "global":
        what, hint = (
            "is global, and a task has only its own messages",
            ("send rows to an output of the task, and that flow by broadcast(...) and send_to(table) into the table"),
        )
    if what is not None:
        verb = "write" if writes else "use"
        raise DeclarationError(f"a task can't {verb} the table {spec.id!r} (at {spec.location}): it {what}", hint=hint)
    if writes:
        check_filled_by_flows(spec)


def table_join(
    left: tuple[Schema, Time],
    table: Table,
    *,
    on: str | Sequence[str] | None,
    how: ChangesHow,
    within: Within | None,
    suffix: str,
) -> tuple[TableJoin, Schema]:
    """The checked spec of a join with a table, and the schema of its results."""
    if how != "inner" and how != "left":  # noqa: PLR1714 - so the type checker sees which
        raise DeclarationError(f"how={how!r} is not one of the choices", hint='write "inner" or "left"')
    if within is not None:
        raise DeclarationError(
            "within= doesn't apply to a table", hint="leave it out: a table has one row for each key"
        )
    if table.schema is None:
        raise DeclarationError(
            f"the columns of the table {table.id!r} aren't known yet",
            hint="give it a schema=, or declare the flow that fills it before the join",
        )
    stream, time = left
    if table.spec.remote is not None and not table.spec.remote.readable:
        raise DeclarationError(
            f"the remote table {table.id!r} (at {table.spec.location}) can only be written",
            hint="give it a function that reads: hr.tables.remote(read=fetch, write=store)",
        )
    keys = _lookup_keys(on, stream, table.schema, table.key)
    columns = _joined_columns(stream, table.schema, table.key, suffix)
    as_of = None
    if table.spec.versions_ms is not None:
        as_of = needed_time(time, stream, f"a join with the table {table.id!r}, which has versions,")
    return TableJoin(table.id, keys, how, suffix, as_of), Schema.of(columns)


def _lookup_keys(on: str | Sequence[str] | None, left: Schema, table: Schema, key: tuple[str, ...]) -> tuple[str, ...]:
    keys = key_columns(key if on is None else on, left, "join")
    if len(keys) != len(key):
        raise DeclarationError(
            f"on= names {len(keys)} columns, but the table's key is {', '.join(key)}",
            hint="name one column for each, in the table's order",
        )
    for ours, theirs in zip(keys, key, strict=True):
        _check_key_types(ours, left.columns[ours], theirs, table.columns[theirs])
    return keys


def holds_messages(table: TableSpec) -> bool:
    """Whether messages wait at a join with this table until every version that counts for them has arrived."""
    return table.versions_ms is not None and not table.side_inputs


def version_time(spec: TableSpec, schema: Schema, time: Time) -> EventTime | None:
    """When the rows of a flow become valid; None for a table without versions."""
    if spec.versions_ms is None:
        return None
    return needed_time(time, schema, f"the table {spec.id!r}, which has versions,")


def deleting_columns(spec: TableSpec, schema: Schema, time: EventTime | None) -> tuple[str, ...]:
    """The columns that ``delete_from`` needs of a flow: the table's key, and the time of its versions."""
    check_filled_by_flows(spec)
    if spec.schema is None:
        raise DeclarationError(
            f"the columns of the table {spec.id!r} aren't known yet",
            hint="give it a schema=, or declare the flow that fills it first",
        )
    key_columns(spec.key, schema, "delete_from")
    for name in spec.key:
        ours, theirs = schema.columns[name], spec.schema.columns[name]
        if ours != theirs:
            raise DeclarationError(
                f"the key {name!r} is {ours}, and {theirs} in the table {spec.id!r}",
                hint="cast it in with_columns(...) before delete_from",
            )
    return tuple(dict.fromkeys([*spec.key, *([] if time is None else [time.column])]))
