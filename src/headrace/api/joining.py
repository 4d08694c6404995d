"""What a join takes and yields, worked out when it is declared."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from headrace.api.event_time import LostTime, Time, needed_time
from headrace.api.expressions import unknown_column
from headrace.api.handles import Table
from headrace.api.keys import key_columns
from headrace.api.location import Location
from headrace.api.specs import TableSpec
from headrace.api.steps import EventTime, Join, JoinHow, LatestJoin, TableJoin
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema

Within = Duration | tuple[Duration, Duration]


def stream_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str] | None,
    how: JoinHow,
    within: Within | None,
    suffix: str,
    here: Location,
) -> tuple[Join, Schema, Time]:
    """The spec of a join of two flows, and the columns and event time behind it."""
    if on is None:
        raise DeclarationError("a join of two streams needs on=", hint='write on="member"')
    if how not in ("inner", "left", "full"):
        raise DeclarationError(f"how={how!r} is no way to join two streams", hint='"inner", "left" or "full"')
    before, after = join_bounds(within)
    keys = join_keys(on, left[0], right[0])
    columns = joined_columns(left[0], right[0], keys, suffix)
    left_time = needed_time(left[1], left[0], "the left side of a join")
    right_time = needed_time(right[1], right[0], "the right side of a join")
    time: Time = left_time
    if how == "full":
        time = LostTime(left_time.column, "became nullable", "join", here)
    return Join(keys, how, before, after, left_time, right_time, suffix), Schema.of(columns), time


def latest_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str],
    how: JoinHow,
    ttl: Duration,
    suffix: str,
    here: Location,
) -> tuple[LatestJoin, Schema, Time]:
    """The spec of a join of the last messages of two flows, and the columns and event time behind it."""
    if how not in ("inner", "left", "full"):
        raise DeclarationError(f"how={how!r} is no way to join two streams", hint='"inner", "left" or "full"')
    keys = join_keys(on, left[0], right[0])
    columns = joined_columns(left[0], right[0], keys, suffix)
    time = left[1]
    if isinstance(time, EventTime):
        # The left message of a result may be the one that has been there for hours.
        time = LostTime(time.column, "may be that of an older message", "join_latest", here)
    return LatestJoin(keys, how, to_ms(ttl, "ttl", minimum=1), suffix), Schema.of(columns), time


def holds_messages(table: TableSpec) -> bool:
    """Whether messages wait at a join with this table until all that counts for them has come into it."""
    return table.versions_ms is not None and not table.side_inputs


def table_join(
    left: tuple[Schema, Time],
    table: Table,
    *,
    on: str | Sequence[str] | None,
    how: JoinHow,
    within: Within | None,
    suffix: str,
) -> tuple[TableJoin, Schema]:
    """The spec of a look-up in a table, and the columns behind it."""
    if how not in ("inner", "left"):
        raise DeclarationError(f"how={how!r} is no way to join a table", hint='"inner" or "left"')
    if within is not None:
        raise DeclarationError("within= has no meaning for a table", hint="leave it out: a table has one row a key")
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
    keys = lookup_keys(on, stream, table.schema, table.key)
    columns = joined_columns(stream, table.schema, table.key, suffix)
    as_of = None
    if table.spec.versions_ms is not None:
        as_of = needed_time(time, stream, f"a join with the table {table.id!r}, which has versions,")
    return TableJoin(table.id, keys, how, suffix, as_of), Schema.of(columns)


def join_bounds(within: Within | None) -> tuple[int, int]:
    """How far (ms) the right message may lie before and after the left one."""
    if within is None:
        raise DeclarationError(
            "a join of two streams needs within=, or it would have to remember all messages for ever",
            hint='write within="5m", or within=("-5m", "+1m"): from 5 min before the left one to 1 min after',
        )
    if not isinstance(within, tuple):
        bound = to_ms(within, "within")
        return bound, bound
    if len(within) != 2:
        raise DeclarationError(f"within={within!r} is not a pair", hint='write within=("-5m", "+1m")')
    earliest, latest = (to_ms(bound, "within", minimum=None) for bound in within)
    if earliest > latest:
        raise DeclarationError(
            f"within={within!r} ends before it begins",
            hint="the earlier bound comes first, and may be negative",
        )
    return -earliest, latest


def join_keys(on: str | Sequence[str], left: Schema, right: Schema) -> tuple[str, ...]:
    """The key columns, which both sides have with one type."""
    keys = key_columns(on, left, "join")
    for name in keys:
        if name not in right.columns:
            raise unknown_column(name, right.columns, " on the right side")
        _check_types(name, left.columns[name], name, right.columns[name])
    return keys


def lookup_keys(on: str | Sequence[str] | None, left: Schema, table: Schema, key: tuple[str, ...]) -> tuple[str, ...]:
    """The stream's columns that stand for the table's key, in its order."""
    keys = key_columns(key if on is None else on, left, "join")
    if len(keys) != len(key):
        raise DeclarationError(
            f"on= names {len(keys)} columns, but the table's key is {', '.join(key)}",
            hint="name one column for each, in the table's order",
        )
    for ours, theirs in zip(keys, key, strict=True):
        _check_types(ours, left.columns[ours], theirs, table.columns[theirs])
    return keys


def joined_columns(left: Schema, right: Schema, right_keys: tuple[str, ...], suffix: str) -> dict[str, pl.DataType]:
    """The left side's columns, then the right's without its key; ``suffix`` marks names that are taken."""
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


def _check_types(ours: str, left: pl.DataType, theirs: str, right: pl.DataType) -> None:
    if left != right:
        raise DeclarationError(
            f"the key {ours!r} is {left} on the left side, and {theirs!r} is {right} on the right",
            hint="cast one of them by with_columns(...) before the join",
        )
