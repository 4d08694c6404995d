"""The fluent handle: one short method an operator. Every call adds a node to the app's draft; nothing runs.

The core is small: filter, project, function, merge, partition, window, join, send. What can be said by
these (``drop``, ``rename``, a key by expression) is composed of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, final

import polars as pl
from typing_extensions import override

from headrace.api.call_settings import calling_of
from headrace.api.descriptors import check_partitions
from headrace.api.event_time import after_function, after_merge
from headrace.api.expressions import (
    as_expression,
    check_columns,
    check_predicate,
)
from headrace.api.flow import Flow
from headrace.api.handles import Output, Table
from headrace.api.keys import key_columns, key_name
from headrace.api.location import Declaring
from headrace.api.operators.columns import Filter
from headrace.api.operators.deduplicate import deduplicate_step, drop_late_step
from headrace.api.operators.functions import BatchFunction, MapAsync, RowFunction, Sink
from headrace.api.operators.join import JoinHow, Within, latest_join, stream_join
from headrace.api.operators.spec import OnError
from headrace.api.operators.streams import LATE, Broadcast, Merge, PartitionBy, SideOutput
from headrace.api.operators.table import holds_messages, table_join
from headrace.api.operators.task import add_task
from headrace.api.operators.window import Timing, late_target, result_time, window_columns, window_step
from headrace.api.rows import BATCH, SchemaLike, check_function, output_schema
from headrace.api.schemas import schema_difference
from headrace.api.shapes import Panes, Trigger, WindowShape
from headrace.api.steps import Aggregate
from headrace.api.tasks import Task
from headrace.core.duration import Duration
from headrace.core.errors import DeclarationError
from headrace.core.retry import Retry
from headrace.serdes.schema import Schema


@final
class Stream(Flow):
    """A flow of messages, as it is at one point of the app. Immutable: each method returns a new one.

    >>> views
    Stream('input-page-views': member String, url String, ms Int64, ts Int64; event time ts)
    """

    __slots__ = ()

    # -- one message at a time -----------------------------------------------------------------------

    @override
    def filter(
        self,
        predicate: str | pl.Expr | Callable[[Any], bool],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Stream:
        """Keep the messages for which an expression, a Boolean column or a function is true.

        A function is called once a row, with a dict, or with an instance of the dataclass that the schema
        was made from; ``on_error`` and ``dead_letter`` are as for ``map``. A null is not true.

        >>> slow = views.filter(pl.col("ms") > 100)
        >>> odd = views.filter(lambda row: row["ms"] % 2 == 1)
        """
        with Declaring("filter") as here:
            if not isinstance(predicate, str | pl.Expr):
                check_function(predicate, "the predicate")
                step = RowFunction("filter", predicate, self._schema, self._schema, on_error)
                return self._fallible("filter", step, here, self._schema, self._time, dead_letter)
            if on_error != "fail" or dead_letter is not None:
                raise DeclarationError("on_error= and dead_letter= are for functions, and the predicate is none")
            expr = as_expression(predicate, "the predicate")
            check_predicate(self._schema, expr)
            return self._then("filter", Filter(expr), here, self._schema, self._time)

    def map(
        self,
        function: Callable[[Any], Any],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Stream:
        """Turn each row into another one by a function, called once a row.

        The new columns are those of ``schema``, or of the dataclass that the function is annotated to return.
        A row on which the function raises, or whose result doesn't fit, fails the app, is skipped and counted, or
        goes with what was raised to the ``dead_letter`` stream, as ``on_error`` says.

        >>> paths = views.map(lambda row: {"path": row["url"].split("?")[0]}, schema={"path": pl.String})
        >>> pages = views.map(
        ...     lambda row: {"page": int(row["url"][1:])},
        ...     schema={"page": pl.Int64},
        ...     on_error="dead_letter",
        ...     dead_letter="no-pages",
        ... )
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
    ) -> Stream:
        """Turn each row into any number of rows by a function, called once a row.

        ``on_error`` and ``dead_letter`` are as for ``map``; of a row that fails no result is taken.

        >>> words = views.flat_map(
        ...     lambda row: [{"word": word} for word in row["url"].split("/")], schema={"word": pl.String}
        ... )
        """
        with Declaring("flat_map") as here:
            return self._by_rows("flat_map", function, schema, here, on_error, dead_letter)

    @override
    def map_batches(
        self,
        function: Callable[[pl.DataFrame], pl.DataFrame],
        schema: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> Stream:
        """Turn each batch (a DataFrame) into another one by a function; without ``schema`` the columns stay.

        Where a batch begins and ends is chance: the function may not depend on it. ``on_error`` and ``dead_letter``
        are as for ``map``, but concern the whole batch: it isn't known which of its messages the function failed on.

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
    ) -> Stream:
        """Turn each row into another one by a function that takes time, many of them at once.

        An ``async`` function runs on an event loop, a plain one in threads, up to ``concurrency`` at once. Results
        keep the order of their rows; with ``ordered=False`` they leave as they come, but never past a watermark. An
        attempt may take ``timeout``; one that fails is repeated as ``retry`` says, by default five times. After a
        restart calls may be made again; results count once. A checkpoint waits for the calls under way.
        ``on_error`` and ``dead_letter`` are as for ``map``, and decide when the last attempt has failed.

        >>> async def located(row):
        ...     return {"member": row["member"], "country": await look_up(row["member"])}
        >>> columns = {"member": pl.String, "country": pl.String}
        >>> countries = views.map_async(located, columns, timeout="2s", retry=hr.retry(attempts=3))
        """
        with Declaring("map_async") as here:
            check_function(function, "its argument", may_be_async=True)
            after = output_schema(function, schema, many=False)
            calling = calling_of(concurrency=concurrency, timeout=timeout, retry=retry)
            time = after_function(self._time, after, "map_async", here)
            step = MapAsync(function, self._schema, after, calling, bool(ordered), on_error)
            name = None if id is None else self.draft.claim("map_async", id, here)
            return self._fallible("map_async", step, here, after, time, dead_letter, id_=name)

    # -- columns -------------------------------------------------------------------------------------

    def select(self, *exprs: str | pl.Expr, **named: object) -> Stream:
        """Keep and compute columns; the others are gone. Keywords name new columns, as in Polars.

        >>> views.select("url", seconds=pl.col("ms") / 1000).schema
        Schema(url: String, seconds: Float64)
        """
        with Declaring("select") as here:
            return self._project("select", exprs, named, here, keep=False)

    def with_columns(self, *exprs: str | pl.Expr, **named: object) -> Stream:
        """Add or replace columns; the others stay.

        >>> domains = views.with_columns(domain=pl.col("url").str.split("/").list.first())
        """
        with Declaring("with_columns") as here:
            return self._project("with_columns", exprs, named, here, keep=True)

    def drop(self, *columns: str) -> Stream:
        """Leave columns out.

        >>> views.drop("ms", "ts").schema
        Schema(member: String, url: String)
        """
        with Declaring("drop") as here:
            gone = check_columns(columns, self._schema, "drop")
            return self._project("drop", [c for c in self._schema.columns if c not in gone], {}, here, keep=False)

    def rename(self, names: Mapping[str, str]) -> Stream:
        """Give columns new names: ``{old: new}``.

        >>> views.select("url").rename({"url": "page"}).schema
        Schema(page: String)
        """
        with Declaring("rename") as here:
            check_columns(names, self._schema, "rename")
            exprs = [pl.col(c).alias(names[c]) if c in names else pl.col(c) for c in self._schema.columns]
            return self._project("rename", exprs, {}, here, keep=False)

    # -- flows together and apart --------------------------------------------------------------------

    def merge(self, *others: Stream) -> Stream:
        """All messages of this flow and the others, which must have the same columns.

        >>> both = views.filter(pl.col("ms") > 100).merge(views.filter(pl.col("url") == "/"))
        """
        with Declaring("merge") as here:
            if not others:
                raise DeclarationError("there is nothing to merge with", hint="name at least one other stream")
            for other in others:
                self._check_other(other)
                difference = schema_difference(other._schema, self._schema)
                if difference:
                    raise DeclarationError(
                        f"{other.node!r} has other columns than {self.node!r}: {difference}",
                        hint="bring them to one shape by select(...) or with_columns(...) first",
                    )
            aligned = [self, *(other._ordered(tuple(self._schema.columns), here) for other in others)]
            records = {stream._schema.record for stream in aligned}
            schema = self._schema if len(records) == 1 else Schema.of(self._schema.columns)
            time = after_merge((stream._time for stream in aligned), here)
            return self._then("merge", Merge(), here, schema, time, others=aligned[1:])

    @override
    def partition_by(self, *keys: str | pl.Expr, id: str | None = None, partitions: int | None = None) -> Stream:
        """Send each message through a durable stream to the partition of its key: a new stage begins.

        Messages of one key meet in one task behind it. A key is a column, or an expression that names a
        new one. ``id`` names the intermediate stream and stays what it is when the code changes.

        >>> by_member = views.partition_by("member", id="by-member")
        >>> by_day = views.partition_by((pl.col("ts") // 86_400_000).alias("day"), id="by-day")
        """
        with Declaring("partition_by") as here:
            check_partitions(partitions)
            stream = self._with_keys(keys, here)
            names = key_columns((key_name(key) for key in keys), stream._schema, "partition_by")
            example = f'partition_by({", ".join(map(repr, names))}, id="by-{names[0]}")'
            id_ = self.draft.claim("partition_by", id, here, example)
            return stream._through(id_, PartitionBy(id_, names), here, partitions=partitions)

    def broadcast(self, id: str | None = None) -> Stream:
        """Send each message through a durable stream to every task behind it: a new stage begins.

        >>> rules = views.filter(pl.col("url") == "/rules").broadcast(id="rules-to-all")
        """
        with Declaring("broadcast") as here:
            id_ = self.draft.claim("broadcast", id, here, 'broadcast(id="rules-to-all")')
            return self._through(id_, Broadcast(id_), here)

    # -- with state ----------------------------------------------------------------------------------

    def window(
        self,
        shape: WindowShape,
        *,
        key: str | Sequence[str] | None,
        agg: Mapping[str, Aggregate],
        id: str | None = None,
        time: str | None = None,
        early: Trigger | int | str | timedelta | None = None,
        late: Trigger | int | str | timedelta | None = None,
        allowed_lateness: Duration = 0,
        panes: Panes = "accumulating",
        late_to: Output | None = None,
    ) -> Stream:
        """Aggregate per key and window; a result leaves when the watermark passes the end of its window.

        The columns are the key, ``window_start``, ``window_end`` (exclusive; of the event time's type) and
        the aggregates. A null key is a key of its own; ``key=None`` puts all messages of a task together. Counting is
        per task: for one result a key, ``partition_by`` it first. ``time`` names another column for the event
        time, or is ``"processing"``: then the clock says when a message belongs, and windows end by it.

        ``early`` and ``late`` are triggers: results before the watermark, and after it from messages that come up to
        ``allowed_lateness`` after. With any of the three, results get the columns ``pane`` (early, on_time or late) and
        ``pane_index``; ``panes="discarding"`` leaves out of each what earlier ones had. Messages that are too late are
        counted, and written to the output ``late_to``.

        >>> counts = views.partition_by("member", id="members").window(
        ...     hr.tumbling("10s"), key="member", agg={"views": hr.count()}, id="per-10s"
        ... )
        >>> counts.schema
        Schema(member: String, window_start: Int64, window_end: Int64, views: Int64)
        """
        with Declaring("window") as here:
            timing = Timing(time, early, late, allowed_lateness, panes)
            step = window_step(shape, key=key, agg=agg, schema=self._schema, time=self._time, timing=timing)
            schema = Schema.of(window_columns(step))
            id_ = self.draft.claim("window", id, here, 'window(..., id="per-10s")')
            result = self._then("window", step, here, schema, result_time(step, self._time, here), id_=id_)
            if late_to is not None:
                late_target(late_to, step)
                result._then("late", SideOutput(LATE), here, self._schema, self._time)._send(late_to, None, here)
            return result

    def join(
        self,
        other: Stream | Table,
        on: str | Sequence[str] | None = None,
        *,
        how: JoinHow = "inner",
        within: Within | None = None,
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Join with another stream by key within a bound of event time, or look keys up in a table.

        ``within="5m"`` takes messages of the other side up to 5 minutes before and after; a pair like
        ``("-5m", "+1m")`` says how far before and how far after. Names that both sides have get ``suffix``
        on the right. A join with a table needs neither ``within`` nor ``id``; only that with a table of versions which
        a flow fills needs the ``id``, as its messages wait there for the watermark.

        >>> orders = app.input("orders", {"member": pl.String, "at": pl.Int64}, event_time="at")
        >>> bought = views.join(orders, on="member", within=("0s", "10m"), id="views-then-orders")
        >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "age": pl.Int64})
        >>> aged = views.join(profiles, how="left")
        """
        with Declaring("join") as here:
            if isinstance(other, Table):
                self._check_owner(other.draft, other.id)
                left = (self._schema, self._time)
                lookup, schema = table_join(left, other, on=on, how=how, within=within, suffix=suffix)
                name = None
                if id is not None or holds_messages(other.spec):
                    name = self.draft.claim("join", id, here, 'join(..., id="orders-with-rates")')
                return self._then("join", lookup, here, schema, self._time, id_=name)
            self._check_other(other)
            left, right = (self._schema, self._time), (other._schema, other._time)
            join, schema, time = stream_join(left, right, on=on, how=how, within=within, suffix=suffix, here=here)
            name = self.draft.claim("join", id, here, 'join(..., id="views-with-orders")')
            return self._then("join", join, here, schema, time, id_=name, others=(other,))

    def join_latest(
        self,
        other: Stream,
        on: str | Sequence[str],
        *,
        ttl: Duration,
        how: JoinHow = "inner",
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Join each message of either side with the last one of its key that came on the other side, at once.

        A message waits for partners until a newer one of its side and key comes, or until ``ttl`` of the wall clock
        has passed. Event time plays no part, and the result has none. ``how="left"`` lets a message of the left side
        that finds nothing leave alone, ``"outer"`` one of either side; it joins with what comes later nevertheless.

        >>> carts = app.input("carts", {"member": pl.String, "items": pl.Int64})
        >>> shown = views.join_latest(carts, "member", ttl="1h", id="views-with-carts")
        """
        with Declaring("join_latest") as here:
            self._check_other(other)
            left, right = (self._schema, self._time), (other._schema, other._time)
            join, schema, time = latest_join(left, right, on=on, how=how, ttl=ttl, suffix=suffix, here=here)
            name = self.draft.claim("join_latest", id, here, 'join_latest(..., id="views-with-carts")')
            return self._then("join_latest", join, here, schema, time, id_=name, others=(other,))

    def deduplicate(self, by: str | Sequence[str], within: Duration, *, id: str | None = None) -> Stream:
        """Leave out repeated messages: those less than ``within`` of event time away from one let through before.

        The message of a key that comes first is let through, at once; one exactly ``within`` away is, too. Late
        messages are counted and dropped. A task knows what it has seen: ``partition_by`` the key first.

        >>> once = views.partition_by("member", id="by-member").deduplicate(["member", "url"], "1h", id="visits")
        """
        with Declaring("deduplicate") as here:
            step = deduplicate_step(self._schema, self._time, by, within)
            id_ = self.draft.claim("deduplicate", id, here, 'deduplicate("order", within="1h", id="orders-once")')
            return self._then("deduplicate", step, here, self._schema, self._time, id_=id_)

    def drop_late(self, *, late_to: Output | None = None) -> Stream:
        """Leave out messages older than the watermark; they are counted, and written to the output ``late_to``.

        >>> timely = views.drop_late(late_to=app.output("late-views"))
        """
        with Declaring("drop_late") as here:
            step = drop_late_step(self._schema, self._time, late_to)
            result = self._then("drop_late", step, here, self._schema, self._time)
            if late_to is not None:
                result._then("late", SideOutput(LATE), here, self._schema, self._time)._send(late_to, None, here)
            return result

    def process(
        self,
        task: Task,
        outputs: Mapping[str, SchemaLike] | None = None,
        *,
        event_time: str | Mapping[str, str] | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        id: str | None = None,
    ) -> dict[str, Stream]:
        """Run a low-level task of your own on these messages; returns a flow for each of ``outputs``, by name.

        It is ``app.task`` with one input, which is called ``"messages"`` (``out.input``); the rest is as there.

        >>> class First(hr.Task):
        ...     seen = hr.Store(key={"member": pl.String}, value={"ts": pl.Int64})
        ...
        ...     def process(self, message, out):
        ...         if message["member"] not in self.seen:
        ...             self.seen.put(message["member"], {"ts": message["ts"]})
        ...             out.send("first", {"member": message["member"], "ts": message["ts"]})
        >>> flows = views.partition_by("member", id="by-member-for-first").process(
        ...     First(), {"first": {"member": pl.String, "ts": pl.Int64}}, id="first-views"
        ... )
        >>> flows["first"].send_to(app.output("first-views-out"))
        """
        with Declaring("process") as here:
            one = {"messages": self}
            how = event_time, on_error, dead_letter
            return add_task(self.draft, Stream, task, one, outputs, id, *how, here, 'process(..., id="alerts")')

    # -- where flows end -----------------------------------------------------------------------------

    def send_to(self, target: Output | Table, key: str | Sequence[str] | None = None) -> None:
        """Write to an output stream or into a table. The first flow sent somewhere sets its columns.

        With ``key`` a message goes to the partition that its key hashes to, else it stays in its task's.

        >>> views.send_to(app.output("all-views"), key="member")
        """
        with Declaring("send_to") as here:
            self._send(target, key, here)

    def delete_from(self, table: Table) -> None:
        """Take the row of each message's key out of a table. Of the flow only the table's key columns matter.

        >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "age": pl.Int64})
        >>> views.filter(pl.col("url") == "/leave").delete_from(profiles)
        """
        with Declaring("delete_from") as here:
            self._delete(table, here)

    def sink(
        self,
        function: Callable[[pl.DataFrame], None],
        *,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
    ) -> None:
        """Hand each batch to a function. After a failure it may see messages again.

        ``on_error`` and ``dead_letter`` are as for ``map_batches``; what the function did before it raised is done.

        >>> views.sink(lambda df: print(df))
        """
        with Declaring("sink") as here:
            check_function(function, "its argument", BATCH)
            letters = self._letters_to(on_error, dead_letter)
            node = self.draft.add("sink", Sink(function, on_error), (self.node,), here)
            self._send_letters(node.id, letters, here)
