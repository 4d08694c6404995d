"""The operators on flows of changes, and those that turn rows into changes and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypeVar, final

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import Aggregate, named_aggregates
from headrace.api.checks import (
    Declaring,
    Location,
    as_expression,
    check_predicate,
    key_columns,
    key_parts,
    unknown_column,
)
from headrace.api.composed import Composed
from headrace.api.draft import Table
from headrace.api.operators.changes import (
    ChangesJoin,
    GroupBy,
    Latest,
    Top,
    with_changes,
    without_changes,
)
from headrace.api.operators.join import ChangesHow
from headrace.api.operators.spec import EventTime, LostTime, Time
from headrace.api.operators.steps import Filter, Project
from headrace.api.operators.window import check_columns
from headrace.api.other_names import missing
from headrace.core.clock import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.rows.changes import BEFORE, CHANGE, DELETE, INSERT, KIND, as_kind
from headrace.rows.schema import Schema

_KIND_HINT = "its values are insert, update_before, update_after and delete, as as_rows() writes them"


def lost(time: Time, how: str, operator: str, here: Location) -> Time:
    """The event time behind an operator whose results aren't in the order of time."""
    return LostTime(time.column, how, operator, here) if isinstance(time, EventTime) else time


def changes_join(
    left: Schema,
    right: Schema,
    *,
    on: tuple[Sequence[str], Sequence[str]],
    how: ChangesHow,
    where: pl.Expr | None,
    ttl: Duration | None,
    suffix: str,
) -> tuple[ChangesJoin, Schema]:
    """The checked spec of a join of all rows, and the schema of its results."""
    if how not in ("inner", "left", "right", "full", "semi", "anti"):
        raise DeclarationError(
            f"how={how!r} is not one of the choices", hint='write "inner", "left", "right", "full", "semi" or "anti"'
        )
    ours, theirs = without_changes(left), without_changes(right)
    left_keys = key_columns(on[0], left, "join") if on[0] else ()
    right_keys = key_columns(on[1], right, "join") if on[1] else ()
    if len(left_keys) != len(right_keys):
        raise DeclarationError(
            f"the left key has {len(left_keys)} columns, and the right one {len(right_keys)}",
            hint="name the same number of columns in left_on= and right_on=",
        )
    for one, two in zip(left_keys, right_keys, strict=True):
        if ours[one] != theirs[two]:
            raise DeclarationError(
                f"the key {one!r} is {ours[one]} on the left side, and {two!r} is {theirs[two]} on the right",
                hint="cast one of them in with_columns(...) before the join",
            )
    names = {name: f"{name}{suffix}" if name in ours else name for name in theirs if name not in right_keys}
    columns = ours | {new: theirs[old] for old, new in names.items()}
    if len(columns) < len(ours) + len(names):
        raise DeclarationError("both sides have a column of one name", hint="choose another suffix=")
    if where is not None:
        where = as_expression(where, "where=")
        check_predicate(Schema.of(columns), where)
    ttl_ms = None if ttl is None else to_ms(ttl, "ttl", minimum=1)
    step = ChangesJoin(
        left_keys=left_keys, right_keys=right_keys, how=how, right_names=names, where=where, ttl_ms=ttl_ms
    )
    results = ours if how in ("semi", "anti") else columns
    appends = CHANGE not in left.columns and CHANGE not in right.columns and how == "inner"
    return step, Schema.of(results) if appends else with_changes(results)


class Changing(Composed):
    """A flow with the operators on changes."""

    __slots__ = ()

    def group_by(
        self, key: str | Sequence[str] | None = (), *, id: str | None = None, every: Duration | None = None
    ) -> GroupedStream[Self]:
        """Group all rows by ``key``, to be aggregated by ``agg`` without a window: the count so far, the maximum.

        The result carries changes: each row says that a key's result was inserted, updated or deleted, and is right at
        that moment. Changes leave with each batch; with ``every``, at most once in that time of the wall clock for each
        key. ``key`` is one column or several; by default the key by which the flow is partitioned. None: all rows, in
        one task (``partition_by(None)`` before it). ``id`` names the state, by default ``group-member``. A key's state
        stays until its rows are deleted.

        Examples
        --------
        >>> totals = views.partition_by("member", id="by-viewer").group_by().agg(n=pl.len(), ms=pl.col("ms").sum())
        >>> totals.changing, totals.schema.columns["n"]
        (True, Int64)
        """
        with Declaring("group_by") as here:
            keys = self._own_key(key, "group_by")
            every_ms = None if every is None else to_ms(every, "every", minimum=1)
            id_ = self.draft.claim("group_by", id, here, f"group-{'-and-'.join(keys) or 'all'}")
            step = GroupBy(keys=keys, aggregates=(), input=self._schema, every_ms=every_ms)
            self.draft.windows_without_aggregates[id_] = here
            return GroupedStream(self, id_, step, here)

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        key: str | Sequence[str] | None = (),
        descending: bool | Sequence[bool] = True,
        rank: str | None = None,
        id: str | None = None,
    ) -> Self:
        """Keep the first ``n`` rows of each key in the order of the columns ``by``; the result carries changes.

        ``descending``, the default, keeps the largest; it can be given for each column of ``by``. Rows that are equal
        in ``by`` are ordered by their other columns. ``rank`` names a column for a row's number in its key, from 1 on.
        ``key`` and ``id`` (by default ``top-member``) are as for ``group_by``. Of a flow without changes, only ``n``
        rows of a key are kept.

        Examples
        --------
        >>> slowest = views.partition_by("url", id="by-url-again").top(10, "ms", rank="place")
        >>> slowest.schema.columns["place"]
        Int64
        """
        with Declaring("top") as here:
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise DeclarationError(f"{n!r} is not a number of rows", hint='write top(10, "price")')
            keys = self._own_key(key, "top")
            order = key_columns(by, self._rows, "top")
            down = (descending,) * len(order) if isinstance(descending, bool) else tuple(descending)
            if len(down) != len(order):
                raise DeclarationError(
                    f"descending= has {len(down)} values, and by= {len(order)} columns", hint="give one for each column"
                )
            columns = without_changes(self._schema)
            if rank is not None and rank in columns:
                raise DeclarationError(f"the flow already has a column {rank!r}", hint="choose another rank=")
            if rank is not None:
                columns |= {rank: pl.Int64()}
            step = Top(n=n, keys=keys, by=order, descending=down, input=self._schema, rank=rank)
            id_ = self.draft.claim("top", id, here, f"top-{'-and-'.join(keys) or 'all'}")
            time = lost(self._time, "may be that of an earlier row", "top", here)
            return self._then("top", step, here, with_changes(columns), time, id_=id_)

    def changes(self, key: str | Sequence[str], *, deleted: str | None = None, id: str | None = None) -> Self:
        """Read rows as changes: a new row of a ``key`` replaces its earlier one.

        ``deleted`` names a Boolean column: a row where it is true removes that of its key. The result, which doesn't
        have this column, carries changes, and has the earlier rows in them: so it can be counted, joined and sent to
        tables. ``key`` is one column or several; ``id`` names the state, by default ``changes-member``. The flow must
        be partitioned by the key.

        A flow that carries changes already is told by this key instead: if several rows of the key are there, only the
        one that came last counts.

        Examples
        --------
        >>> members = views.partition_by("member", id="to-members").changes("member")
        >>> members.schema.columns["_change"].categories.to_list()
        ['insert', 'update_before', 'update_after', 'delete']
        """
        with Declaring("changes") as here:
            return self._latest(key_columns(key, self._rows, "changes"), deleted, id, here)

    def upserts(self, deleted: str = "deleted") -> Self:
        """The changes of this flow as rows: the new row of each key, and one with ``deleted`` true when it goes.

        It is what keyed targets take: tables with ``deleted=``, compacted topics. The key is that of the changes:
        ``group_by``'s, or that of ``changes(key)``, which goes before it where there is none.

        Examples
        --------
        >>> counts = views.partition_by("url", id="by-page-1").group_by(id="pages").agg(n=pl.len())
        >>> counts.upserts().schema
        Schema(url: String, n: Int64, deleted: Boolean)
        """
        with Declaring("upserts") as here:
            self._check_changing("upserts")
            if self.draft.change_keys.get(self.node) is None:
                raise DeclarationError(
                    f"nothing says by which key the rows of {self.node!r} change",
                    hint='put partition_by("member").changes("member") before it: a row of each key then replaces the '
                    "earlier one",
                )
            if deleted in self._schema.columns:
                raise DeclarationError(f"the flow already has a column {deleted!r}", hint="choose another name")
            last = self._where_kind(pl.col(CHANGE) != pl.lit(BEFORE, KIND), here)
            gone = (pl.col(CHANGE) == pl.lit(DELETE, KIND)).alias(deleted)
            return last._plain([*map(pl.col, without_changes(self._schema)), gone], here)

    def as_rows(self, change: str = "change") -> Self:
        """Each change as a row of its own, which never changes, with its kind as text in the column ``change``.

        Examples
        --------
        >>> visits = views.partition_by("url", id="by-page-2").group_by(id="visits").agg(n=pl.len())
        >>> visits.as_rows().schema
        Schema(url: String, n: Int64, change: String)
        """
        with Declaring("as_rows") as here:
            self._check_changing("as_rows")
            if change in self._schema.columns:
                raise DeclarationError(f"the flow already has a column {change!r}", hint="choose another name")
            kind = pl.col(CHANGE).cast(pl.String).alias(change)
            return self._plain([*map(pl.col, without_changes(self._schema)), kind], here)

    def as_changes(self, change: str | None = "change") -> Self:
        """Read rows that ``as_rows`` wrote as changes again: the column ``change`` has their kind.

        A null inserts its row. With None in the place of a column, all rows are inserted.

        Examples
        --------
        >>> log = app.input("page-counts", {"url": pl.String, "n": pl.Int64, "change": pl.String})
        >>> log.as_changes().changing
        True
        """
        with Declaring("as_changes") as here:
            if self.changing:
                raise DeclarationError(f"the rows of {self.node!r} are changes already", hint="leave it out")
            if change is None:
                return self._inserted(here)
            if change not in self._schema.columns:
                raise unknown_column(change, self._schema.columns)
            if self._schema.columns[change] not in (pl.String, KIND):
                raise DeclarationError(
                    f"the column {change!r} is {self._schema.columns[change]}", hint=f"it is a String: {_KIND_HINT}"
                )
            others = [pl.col(name) for name in self._schema.columns if name != change]
            kind = pl.col(change).cast(KIND).fill_null(pl.lit(INSERT, KIND)).alias(CHANGE)
            return self._plain([*others, kind], here)

    @override
    def _send_changes(self, table: Table, here: Location) -> None:
        told = self._told_by(table.key, f"changes-of-{table.id}", here)
        if isinstance(table.spec.deleted, str):
            told.upserts(table.spec.deleted)._send(table, None, here)
            return
        columns = [*map(pl.col, without_changes(self._schema))]
        taken = pl.col(CHANGE) == pl.lit(DELETE, KIND)
        last = told._where_kind(pl.col(CHANGE) != pl.lit(BEFORE, KIND), here)
        last._where_kind(~taken, here)._plain(columns, here)._send(table, None, here)
        last._where_kind(taken, here)._plain(columns, here)._delete(table, here)

    # -- helpers ---------------------------------------------------------------------------------------
    def _latest(self, key: tuple[str, ...], deleted: str | None, id_: str | None, here: Location) -> Self:
        if deleted is not None and self._schema.columns.get(deleted) != pl.Boolean:
            raise DeclarationError(
                f"deleted={deleted!r} is not a Boolean column of {self.node!r}",
                hint="compute one before: with_columns(deleted=...)",
            )
        if deleted in key:
            raise DeclarationError(f"the key column {deleted!r} can't also mark deletions", hint="choose another key")
        if deleted is not None and self.changing:
            raise DeclarationError("the flow carries changes already, with its deletions", hint="leave out deleted=")
        step = Latest(keys=key, input=self._schema, deleted=deleted)
        name = self.draft.claim("changes", id_, here, f"changes-{'-and-'.join(key)}")
        time = lost(self._time, "may be that of an earlier row", "changes", here)
        return self._then("changes", step, here, with_changes(step.results), time, id_=name)

    def _told_by(self, key: tuple[str, ...], name: str, here: Location) -> Self:
        """This flow of changes, told by a key in order: as it is, if it is told so."""
        own = self.draft.change_keys.get(self.node)
        return self if own is not None and set(own) == set(key) else self._latest(key, None, name, here)

    def _where_kind(self, predicate: pl.Expr, here: Location) -> Self:
        return self._then("filter", Filter(predicate), here, self._schema, self._time)

    def _plain(self, exprs: Sequence[pl.Expr], here: Location) -> Self:
        """Only these columns: ``_change`` doesn't stay by itself."""
        lazy = pl.LazyFrame(schema=dict(self._schema.columns)).select(*exprs)
        schema = Schema.of(dict(lazy.collect_schema()))
        return self._then("select", Project(tuple(exprs), keep=False), here, schema, self._time)

    def _inserted(self, here: Location) -> Self:
        """This flow with ``_change``: each of its rows is inserted."""
        exprs = [*map(pl.col, self._schema.columns), as_kind(INSERT)]
        return self if self.changing else self._plain(exprs, here)

    def _check_changing(self, what: str) -> None:
        if not self.changing:
            raise DeclarationError(
                f"{what}() is for a flow whose rows change, and no row of {self.node!r} does", hint="leave it out"
            )

    def _own_key(self, key: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
        """The columns of ``key``, by default those by which the flow is partitioned; None: no column."""
        if key is None:
            return ()
        if key_parts(key):
            return key_columns(key, self._rows, what)
        own = self.draft.key_at(self.node)
        if own is None:
            raise DeclarationError(
                f"{what} needs a key, and nothing says by which key {self.node!r} is partitioned",
                hint=f'put partition_by("member") before it, or name one: {what}(..., key="member")',
            )
        return own


S = TypeVar("S", bound=Changing)


@final
class GroupedStream(Generic[S]):
    """Rows grouped by key, from ``Stream.group_by``. Call ``agg`` on it.

    Examples
    --------
    >>> views.group_by("member", id="all-of-member").agg(views=pl.len()).schema.columns["views"]
    Int64
    """

    __slots__ = ("_here", "_id", "_step", "_stream")

    def __init__(self, stream: S, id_: str, step: GroupBy, here: Location) -> None:
        self._stream, self._id, self._step, self._here = stream, id_, step, here

    def agg(self, *aggregates: pl.Expr, **named: Aggregate | pl.Expr) -> S:
        """Aggregate all rows of each key; ``aggregates`` and ``named`` are as for ``window(...).agg``.

        Of a flow that carries changes, rows that are deleted don't count any more. Then ``fold``, ``reduce``,
        ``implode`` and ``approx_n_unique`` are refused, as they can't take a value back. A sum of floats may differ
        in its last digits from the sum of the rows that are left. ``first``, ``last`` and ``top_k`` know a row again by
        its value (and by its event time, or what ``by`` says): of equal rows, the one that came first goes first.

        Examples
        --------
        >>> grouped = views.partition_by("member", id="by-someone").group_by(id="spent")
        >>> list(grouped.agg(ms=pl.col("ms").max(), pages=hr.aggregates.n_unique("url")).schema.columns)
        ['member', 'ms', 'pages', '_change']
        """
        with Declaring("agg"):
            stream, here = self._stream, self._here
            if self._id not in stream.draft.windows_without_aggregates:
                raise DeclarationError(
                    f"the group_by {self._id!r} has its aggregates already", hint="name all of them in one agg(...)"
                )
            time = stream._time if isinstance(stream._time, EventTime) else None
            step = replace(self._step, aggregates=named_aggregates(aggregates, named), event_time=time)
            check_running(step)
            del stream.draft.windows_without_aggregates[self._id]
            left = lost(stream._time, "was aggregated", "group_by", here)
            return stream._then("group_by", step, here, with_changes(step.results), left, id_=self._id)

    @override
    def __repr__(self) -> str:
        return f"GroupedStream({self._id!r}: by {', '.join(self._step.keys) or 'nothing'}, without aggregates yet)"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("a grouped stream", name, _GROUPED, dir(type(self)))


_GROUPED: Mapping[str, str] = dict.fromkeys(
    ("count", "sum", "min", "max", "mean", "len", "aggregate", "reduce", "fold"), "agg(n=pl.len())"
)


def check_running(step: GroupBy) -> None:
    """Raise unless a running aggregate can be computed."""
    if not step.aggregates:
        raise DeclarationError("it names no aggregate", hint='write .agg(views=pl.len(), bytes=pl.col("bytes").sum())')
    check_columns((*step.input.columns, *(name for name, _ in step.aggregates)), "a group_by")
    for name, aggregate in step.aggregates:
        if name in step.keys or name == CHANGE:
            raise DeclarationError(f"the aggregate {name!r} has the name of another column", hint="rename it")
        if CHANGE in step.input.columns and aggregate.kind in ("fold", "reduce", "implode", "approx_n_unique"):
            raise DeclarationError(
                f"{name!r}: {aggregate.kind} can't take back the values of rows that are deleted or changed",
                hint="use count, sum, mean, min, max, n_unique, first, last or top_k; or as_rows() before the group_by",
            )
