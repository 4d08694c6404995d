"""The base of ``Stream``: arguments, nodes, functions and columns, and windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, final

import polars as pl
from polars.exceptions import PolarsError
from typing_extensions import override

from headrace.api.aggregates import Aggregate, named_aggregates
from headrace.api.checks import (
    BATCH,
    Declaring,
    Location,
    SchemaLike,
    as_condition,
    as_expression,
    check_columns,
    check_function,
    check_predicate,
    describe,
    key_name,
    named_expression,
    one_of,
    output_schema,
    projected,
    unchanged_columns,
)
from headrace.api.draft import (
    Draft,
    Output,
    Table,
    adopt_schema,
    check_takes_changes,
    check_target,
    nulls_to_delete,
    target_keys,
)
from headrace.api.operators.join import SendToTable, deleting_columns, version_time
from headrace.api.operators.spec import (
    EventTime,
    LostTime,
    OnError,
    OperatorSpec,
    Time,
    after_function,
    after_projection,
    renames,
)
from headrace.api.operators.steps import (
    FAILED,
    FAILED_COLUMNS,
    LATE,
    BatchFunction,
    Broadcast,
    Fallible,
    Filter,
    MapAsync,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SideOutput,
    Sink,
)
from headrace.api.operators.window import Window, result_time, window_columns, with_aggregates
from headrace.api.other_names import WINDOWED, missing
from headrace.api.remote import calling_of
from headrace.api.specs import Role, StreamSpec
from headrace.core.calls import Retry
from headrace.core.clock import Duration
from headrace.core.errors import DeclarationError
from headrace.core.ids import StreamId
from headrace.rows.changes import CHANGE
from headrace.rows.schema import Schema


# -- policies ----------------------------------------------------------------------------------------
def dead_letter_id(
    draft: Draft, on_error: OnError, dead_letter: Output | str | None, what: str, here: Location
) -> str | None:
    """The id of the dead-letter stream, or None under another policy; ``what`` names in errors what fails."""
    one_of("on_error", on_error, OnError)
    if on_error == "dead_letter" and dead_letter is None:
        raise DeclarationError(
            f'on_error="dead_letter" needs the output that {what} go to',
            hint='name it: dead_letter="views-unreadable"',
        )
    if on_error != "dead_letter" and dead_letter is not None:
        raise DeclarationError(
            f'dead_letter= is given, but on_error is "{on_error}"', hint='write on_error="dead_letter"'
        )
    if dead_letter is None:
        return None
    if isinstance(dead_letter, str):
        dead_letter = draft.output_called(dead_letter, here)
    if not isinstance(dead_letter, Output):
        raise DeclarationError(
            f"dead_letter= takes an output, not {type(dead_letter).__name__} {dead_letter!s:.80}",
            hint='write dead_letter="views-unreadable"',
        )
    _check_same_app(repr(dead_letter.id), dead_letter.draft, draft)
    return dead_letter.id


def reserved(hint: str | None = None) -> DeclarationError:
    """The error for a column or an expression that uses the kinds of changes."""
    return DeclarationError(
        f"{CHANGE!r} is the column in which Headrace keeps whether a row was inserted, updated or deleted",
        hint=hint
        or "as_rows() makes changes rows with the column 'change', which can be read; as_changes() reads such rows as "
        "changes",
    )


class Flow:
    """A point of the app where messages flow: a node of the draft, its schema and its event time."""

    __slots__ = ("_schema", "_time", "draft", "node")

    def __init__(self, draft: Draft, node: str, schema: Schema, time: Time) -> None:
        """Only ``app.input`` and the methods of this class call this."""
        self.draft, self.node = draft, node
        self._schema, self._time = schema, time

    @property
    def schema(self) -> Schema:
        """The columns at this point.

        >>> views.select("url").schema
        Schema(url: String)
        """
        return self._schema

    @property
    def event_time(self) -> EventTime | None:
        """The column that holds the event time, or None.

        >>> views.event_time.column
        'ts'
        """
        return self._time if isinstance(self._time, EventTime) else None

    @property
    def changing(self) -> bool:
        """Whether rows may be changed or deleted later: the column ``_change`` says of each what it does.

        >>> views.changing, views.changes("member").changing
        (False, True)
        """
        return CHANGE in self._schema.columns

    @override
    def __repr__(self) -> str:
        time = f"; event time {self.event_time.column}" if self.event_time else ""
        return f"Stream({self.node!r}: {describe(self._schema)}{time})"

    def _send(self, target: Output | Table | str, key: str | Sequence[str] | None, here: Location) -> None:
        if isinstance(target, str):
            target = self.draft.output_called(target, here)
        check_target(target)
        self._check_owner(target.draft, target.id)
        keys = target_keys(target, key, self._rows)
        if self.changing and isinstance(target, Output):
            check_takes_changes(self.draft.streams[target.id])
        elif self.changing and isinstance(target, Table):
            self._send_changes(target, here)
            return
        stream = self._ordered(adopt_schema(target, self._schema), here)
        step: SendTo | SendToTable = SendTo(target.id, keys)
        if isinstance(target, Table) and target.spec.remote is not None:
            step = SendTo(self.draft.written_table(target.spec))
        elif isinstance(target, Table):
            step = SendToTable(target.id, time=version_time(target.spec, self._schema, self._time))
        self.draft.add("send_to", step, (stream.node,), here)

    def _send_changes(self, table: Table, here: Location) -> None:
        """Put the new row of each key into the table, and delete those that go; overridden where changes are known."""
        raise NotImplementedError

    def _delete(self, table: Table, here: Location) -> None:
        if not isinstance(table, Table):
            raise DeclarationError(
                f"rows can be deleted from a table, not from {type(table).__name__} {table!s:.80}",
                hint='tables come from app.table("...", key=...)',
            )
        self._check_owner(table.draft, table.id)
        if self.changing:
            raise DeclarationError(
                "delete_from() takes rows, and rows of this flow may be changed or deleted later",
                hint="send_to(table) also deletes what is deleted; or put as_rows() before it",
            )
        time = version_time(table.spec, self._schema, self._time)
        columns = deleting_columns(table.spec, self._schema, time)
        if table.spec.remote is not None:
            deleting = self._project("select", [*columns, *nulls_to_delete(table.spec)], {}, here, keep=False)
            stream = deleting._ordered(tuple(table.spec.schema.columns if table.spec.schema else ()), here)
            self.draft.add("delete_from", SendTo(self.draft.written_table(table.spec)), (stream.node,), here)
            return
        stream = self._project("select", columns, {}, here, keep=False)
        self.draft.add("delete_from", SendToTable(table.id, deletes=True, time=time), (stream.node,), here)

    def _then(
        self,
        kind: str,
        operator: OperatorSpec,
        here: Location,
        schema: Schema,
        time: Time,
        *,
        id_: str | None = None,
        others: Sequence[Flow] = (),
    ) -> Self:
        inputs = (self.node, *(other.node for other in others))
        known = time if isinstance(time, EventTime) else None
        node = self.draft.add(kind, operator, inputs, here, id_=id_, schema=schema, event_time=known)
        return type(self)(self.draft, node.id, schema, time)

    def _by_rows(
        self,
        mode: Literal["map", "flat_map"],
        function: Callable[[Any], Any],
        schema: SchemaLike | None,
        here: Location,
        on_error: OnError,
        dead_letter: Output | str | None,
    ) -> Self:
        check_function(function, "its argument", may_yield=mode == "flat_map")
        after = output_schema(function, schema, many=mode == "flat_map")
        time = after_function(self._time, after, mode, here)
        step = RowFunction(mode, function, self._schema, after, on_error)
        return self._fallible(mode, step, here, after, time, dead_letter)

    def _fallible(
        self,
        kind: str,
        operator: Fallible,
        here: Location,
        schema: Schema,
        time: Time,
        dead_letter: Output | str | None,
        *,
        id_: str | None = None,
    ) -> Self:
        letters = self._letters_to(operator.on_error, dead_letter, here)
        result = self._then(kind, operator, here, schema, time, id_=id_)
        self._send_letters(result.node, letters, here)
        return result

    def _letters_to(self, on_error: OnError, dead_letter: Output | str | None, here: Location) -> str | None:
        return dead_letter_id(self.draft, on_error, dead_letter, "messages on which the function raises", here)

    def _send_letters(self, node: str, letters: str | None, here: Location) -> None:
        if letters is not None:
            aside = self.draft.add(FAILED, SideOutput(FAILED), (node,), here, schema=Schema.of(dict(FAILED_COLUMNS)))
            self.draft.add("send_to", SendTo(letters), (aside.id,), here)

    def _project(
        self, kind: str, exprs: Iterable[object], named: Mapping[str, object], here: Location, *, keep: bool
    ) -> Self:
        all_ = [as_expression(expr, "an argument") for expr in exprs]
        all_ += [named_expression(name, value) for name, value in named.items()]
        all_ = self._keeping_changes(all_, keep=keep)
        schema = Schema.of(projected(self._schema, all_, keep=keep))
        if schema == self._schema and keep and not all_:
            raise DeclarationError("with_columns() needs at least one column", hint="pass an expression")
        same = unchanged_columns(self._schema, all_, keep=keep)
        time = after_projection(self._time, same, schema, kind, here)
        if isinstance(time, LostTime) and isinstance(self._time, EventTime):
            renamed = [one.meta.output_name() for one in all_ if renames(one, self._time.column)]
            time = replace(self._time, column=renamed[0]) if renamed else time
        return self._then(kind, Project(tuple(all_), keep), here, schema, time)

    @property
    def _rows(self) -> Schema:
        """The columns of the rows that may be changed."""
        columns = self._schema.columns
        return Schema.of({c: dtype for c, dtype in columns.items() if c != CHANGE}) if self.changing else self._schema

    def _keeping_changes(self, exprs: list[pl.Expr], *, keep: bool) -> list[pl.Expr]:
        """The expressions, none of which computes or reads ``_change``. A plain ``_change`` is among them or added."""
        found, kept = [], keep or not self.changing
        for expr in exprs:
            if self.changing and not keep and expr.meta.is_column() and expr.meta.output_name() == CHANGE:
                kept = True
                found.append(expr)
            elif self.changing:
                found += self._of_rows(expr)
            elif expr.meta.output_name(raise_if_undetermined=False) == CHANGE:
                raise reserved()
            else:
                found.append(expr)
        return found if kept else [*found, pl.col(CHANGE)]

    def _of_rows(self, expr: pl.Expr) -> list[pl.Expr]:
        """An expression that may stand for several columns, as expressions none of which is ``_change``."""
        if CHANGE in {*expr.meta.root_names(), expr.meta.output_name(raise_if_undetermined=False)}:
            raise reserved()
        if not expr.meta.has_multiple_outputs():
            return [expr]
        try:
            found = pl.LazyFrame(schema=dict(self._schema.columns)).select(expr).collect_schema()
        except PolarsError:
            return [expr]  # ``projected`` says what is wrong
        if expr.meta.is_column_selection():
            return [pl.col(name) for name in found if name != CHANGE]
        if found != pl.LazyFrame(schema=dict(self._rows.columns)).select(expr).collect_schema():
            raise reserved(f"leave it out: pl.exclude({CHANGE!r}) in the place of pl.all()")
        return [expr]

    def _ordered(self, names: tuple[str, ...], here: Location) -> Self:
        if tuple(self._schema.columns) == names:
            return self
        return self._project("select", names, {}, here, keep=False)

    def _with_keys(self, keys: tuple[str | pl.Expr, ...], here: Location) -> Self:
        computed = [key for key in keys if isinstance(key, pl.Expr) and not key.meta.is_column()]
        for key in computed:
            if key_name(key) in self._schema.columns:
                raise DeclarationError(
                    f"the key expression {key} would replace the column {key_name(key)!r}",
                    hint='give it a name of its own: .alias("key")',
                )
        return self._project("with_columns", computed, {}, here, keep=True) if computed else self

    def _through(
        self, id_: str, operator: PartitionBy | Broadcast, here: Location, *, partitions: int | None = None
    ) -> Self:
        system = self.draft.default_system
        spec = StreamSpec(
            id=id_,
            role=Role.INTERMEDIATE,
            stream=StreamId(system.name, f"{self.draft.app}-{id_}"),
            system=system,
            location=here,
            schema=self._schema,
            partitions=partitions,
            event_time=self.event_time,
            broadcast=isinstance(operator, Broadcast),
        )
        self.draft.check_free(spec.stream)
        self.draft.add("step", operator, (self.node,), here, id_=id_)
        read = self.draft.read(spec, here).id
        if self.changing:
            keys = [self.draft.change_keys.get(self.node)]
            self.draft.change_keys[read] = operator.change_key(keys, [self._schema])
        return type(self)(self.draft, read, self._schema, self._time)

    def _check_owner(self, draft: Draft, name: str) -> None:
        _check_same_app(repr(name), draft, self.draft)


def check_flow(value: object, what: str, draft: Draft) -> Flow:
    """Return ``value`` if it is a flow of the app that ``draft`` belongs to; ``what`` names it in errors."""
    if not isinstance(value, Flow):
        raise DeclarationError(
            f"{what} must be a stream, not {type(value).__name__} {value!s:.80}",
            hint='streams come from app.input("...") and its methods',
        )
    _check_same_app(f"{what} ({value.node!r})", value.draft, draft)
    return value


def _check_same_app(what: str, theirs: Draft, ours: Draft) -> None:
    if theirs is not ours:
        raise DeclarationError(
            f"{what} belongs to the app {theirs.app!r}, and this flow to {ours.app!r}",
            hint="apps share data only through a stream that one writes and the other reads",
        )


class MappedFlow(Flow):
    """A flow with the operators for single messages."""

    __slots__ = ()

    def filter(
        self,
        predicate: str | pl.Expr | Callable[[Any], bool],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Self:
        """Keep the messages for which ``predicate`` is true. A null is not true.

        It is a Polars expression, the name of a Boolean column, another text, which is a condition in SQL, or a
        function that is called once a row. The function gets a dict, or an instance of the dataclass that the schema
        was made from, and returns True or False. If it raises, or its result doesn't fit, ``on_error`` ``"fail"`` stops
        the app, ``"skip"`` drops the row and counts it, ``"dead_letter"`` sends it with the error to the output
        ``dead_letter``, which no flow may write.

        Examples
        --------
        >>> slow = views.filter(pl.col("ms") > 100)
        >>> slow_carts = views.filter("url = '/cart' and ms > 100")
        >>> odd = views.filter(lambda row: row["ms"] % 2 == 1)
        """
        with Declaring("filter") as here:
            if not isinstance(predicate, str | pl.Expr):
                check_function(predicate, "the predicate")
                step = RowFunction("filter", predicate, self._schema, self._schema, on_error)
                return self._fallible("filter", step, here, self._schema, self._time, dead_letter)
            if on_error != "fail" or dead_letter is not None:
                raise DeclarationError("on_error= and dead_letter= are for functions, and the predicate isn't one")
            expr = as_condition(predicate, self._schema, "the predicate")
            check_predicate(self._schema, expr)
            if self.changing:
                self._of_rows(expr)
            return self._then("filter", Filter(expr), here, self._schema, self._time)

    def map(
        self,
        function: Callable[[Any], Any],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Self:
        """Turn each row into another one with a ``function``, called once per row.

        It gets a row as in ``filter``, and returns a dict with exactly the new columns, or an instance of a dataclass.
        They are given by ``schema``; by default they are those of the dataclass that the function is annotated to
        return. ``on_error`` and ``dead_letter`` are as for ``filter``.

        Examples
        --------
        >>> paths = views.map(lambda row: {"path": row["url"].split("?")[0]}, schema={"path": pl.String})
        >>> def page(row):
        ...     return {"page": int(row["url"][1:])}
        >>> pages = views.map(page, {"page": pl.Int64}, on_error="dead_letter", dead_letter="no-pages")
        """
        with Declaring("map") as here:
            return self._by_rows("map", function, schema, here, on_error, dead_letter)

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any]],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Self:
        """Turn each row into any number of rows with a ``function``, called once per row.

        It returns an iterable of rows. If it fails, all results of that row are dropped. Else it is as for ``map``, and
        so are ``schema``, ``on_error`` and ``dead_letter``.

        Examples
        --------
        >>> def words(row):
        ...     return [{"word": word} for word in row["url"].split("/")]
        >>> counted = views.flat_map(words, schema={"word": pl.String})
        """
        with Declaring("flat_map") as here:
            return self._by_rows("flat_map", function, schema, here, on_error, dead_letter)

    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Self:
        """Turn each batch into another one with a ``function`` from DataFrame to DataFrame.

        Batches begin and end anywhere, so the result for a message must not depend on other messages. ``schema`` has
        the new columns; by default they stay as they are. ``on_error`` and ``dead_letter`` are as for ``filter``, for
        the whole batch.

        Examples
        --------
        >>> upper = views.map_batches(lambda df: df.with_columns(pl.col("url").str.to_uppercase()))
        """
        with Declaring("map_batches") as here:
            check_function(function, "its argument", BATCH)
            after = self._schema if schema is None else Schema.of(schema)
            time = after_function(self._time, after, "map_batches", here)
            step = BatchFunction(function, after, on_error)
            return self._fallible("map_batches", step, here, after, time, dead_letter)

    def map_async(
        self,
        function: Callable[[Any], Any],
        schema: SchemaLike | None = None,
        *,
        concurrency: int = 100,
        ordered: bool = True,
        timeout: Duration = "30s",
        retry: Retry | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        id: str | None = None,
    ) -> Self:
        """Turn each row into another one with a slow ``function``, many calls at once.

        An ``async`` function runs on an event loop, a plain one in threads; a task makes ``concurrency`` calls at once.
        After a restart, calls may be repeated; each result still counts once. A checkpoint waits for the calls in
        flight.

        Results keep the order of their rows. Without ``ordered`` they are emitted as they arrive, but never after a
        watermark that came after their row. ``timeout`` is for one attempt, and ``retry`` says how often to repeat a
        failed call, see ``hr.calls.retry``; by default there are five attempts. ``schema`` is as for ``map``, and
        ``on_error`` and ``dead_letter``, after the last attempt, as for ``filter``. ``id`` is a name for the step in
        plans and counters.

        Examples
        --------
        >>> async def located(row):
        ...     return {"member": row["member"], "country": await look_up(row["member"])}
        >>> columns = {"member": pl.String, "country": pl.String}
        >>> countries = views.map_async(located, columns, timeout="2s", retry=hr.calls.retry(attempts=3))
        """
        with Declaring("map_async") as here:
            check_function(function, "its argument", may_be_async=True)
            after = output_schema(function, schema, many=False)
            calling = calling_of(concurrency=concurrency, timeout=timeout, retry=retry)
            time = after_function(self._time, after, "map_async", here)
            step = MapAsync(function, self._schema, after, calling, bool(ordered), on_error)
            name = None if id is None else self.draft.claim("map_async", id, here, id)
            return self._fallible("map_async", step, here, after, time, dead_letter, id_=name)

    def sink(
        self,
        function: Callable[[pl.DataFrame], None],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> None:
        """Pass each batch to a ``function``, as a DataFrame. After a failure, it may get messages again.

        If it raises, its effects so far aren't undone. ``on_error`` and ``dead_letter`` are as for ``map_batches``.

        Examples
        --------
        >>> views.sink(lambda df: print(df))
        """
        with Declaring("sink") as here:
            check_function(function, "its argument", BATCH)
            letters = self._letters_to(on_error, dead_letter, here)
            node = self.draft.add("sink", Sink(function, on_error), (self.node,), here)
            self._send_letters(node.id, letters, here)

    def select(self, *exprs: str | pl.Expr, **named: object) -> Self:
        """Keep and compute columns, and drop the others.

        ``exprs`` are column names and expressions, each of which looks at one row at a time; ``named`` are expressions,
        column names or plain values for columns of these names.

        Examples
        --------
        >>> views.select("url", seconds=pl.col("ms") / 1000).schema
        Schema(url: String, seconds: Float64)
        """
        with Declaring("select") as here:
            return self._project("select", exprs, named, here, keep=False)

    def with_columns(self, *exprs: str | pl.Expr, **named: object) -> Self:
        """Add or replace columns by ``exprs`` and ``named``, as in ``select``; the others stay.

        Examples
        --------
        >>> domains = views.with_columns(domain=pl.col("url").str.split("/").list.first())
        """
        with Declaring("with_columns") as here:
            return self._project("with_columns", exprs, named, here, keep=True)

    def drop(self, *columns: str) -> Self:
        """Remove the ``columns`` of these names.

        Examples
        --------
        >>> views.drop("ms", "ts").schema
        Schema(member: String, url: String)
        """
        with Declaring("drop") as here:
            gone = check_columns(columns, self._schema, "drop")
            if CHANGE in gone:
                raise reserved()
            return self._project("drop", [c for c in self._schema.columns if c not in gone], {}, here, keep=False)

    def rename(self, names: Mapping[str, str]) -> Self:
        """Rename columns: ``names`` is ``{old: new}``.

        Examples
        --------
        >>> views.select("url").rename({"url": "page"}).schema
        Schema(page: String)
        """
        with Declaring("rename") as here:
            check_columns(names, self._schema, "rename")
            exprs = [pl.col(c).alias(names[c]) if c in names else pl.col(c) for c in self._schema.columns]
            return self._project("rename", exprs, {}, here, keep=False)


S = TypeVar("S", bound=Flow)


@final
class WindowedStream(Generic[S]):
    """Messages grouped by key and window, from ``Stream.window``. Call ``agg`` on it.

    Examples
    --------
    >>> views.window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=pl.len()).schema.columns["views"]
    Int64
    """

    __slots__ = ("_here", "_id", "_late_to", "_stream", "_window")

    def __init__(self, stream: S, id_: str, window: Window, late_to: Output | None, here: Location) -> None:
        self._stream, self._id, self._window = stream, id_, window
        self._late_to, self._here = late_to, here

    def agg(self, *aggregates: pl.Expr, **named: Aggregate | pl.Expr) -> S:
        """Aggregate the messages of each key and window.

        ``aggregates`` are Polars' aggregations, and each result has the name that Polars would give it. Those in
        ``named``, or ``hr.count``, ``hr.sum`` and others of ``hr.aggregates``, come by the name of the result.

        Polars' aggregations are accepted if they can be merged from parts and give Polars' result: ``pl.len()``,
        and ``sum``, ``min``, ``max``, ``mean``, ``count``, ``len``, ``null_count``, ``implode``,
        ``drop_nulls().n_unique()``, ``drop_nulls().approx_n_unique()`` and ``drop_nulls().top_k(k)`` of an expression
        that looks at one row at a time, or of such a one's ``filter``. Counts and sums are 64 bits wide.

        Examples
        --------
        >>> windows = views.window(hr.tumbling("1m"), key="member", id="per-minute")
        >>> slowest, first = pl.col("ms").max().alias("slowest"), hr.aggregates.first("url")
        >>> stats = windows.agg(slowest, views=pl.len(), seconds=(pl.col("ms") / 1000).sum(), first_url=first)
        >>> list(stats.schema.columns)
        ['member', 'window_start', 'window_end', 'slowest', 'views', 'seconds', 'first_url']
        """
        with Declaring("agg"):
            stream, here = self._stream, self._here
            if self._id not in stream.draft.windows_without_aggregates:
                raise DeclarationError(
                    f"the window {self._id!r} has its aggregates already", hint="name all of them in one agg(...)"
                )
            step = with_aggregates(self._window, named_aggregates(aggregates, named))
            schema = Schema.of(window_columns(step))
            del stream.draft.windows_without_aggregates[self._id]
            time = result_time(step, stream._time, here)
            result = stream._then("window", step, here, schema, time, id_=self._id)
            if self._late_to is not None:
                late = result._then("late", SideOutput(LATE), here, stream._schema, stream._time)
                late._send(self._late_to, None, here)
            return result

    @override
    def __repr__(self) -> str:
        keys = ", ".join(self._window.keys)
        return f"WindowedStream({self._id!r}: {self._window.shape} by {keys or 'task'}, without aggregates yet)"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("a window", name, WINDOWED, dir(type(self)))
