"""The fluent API: one method for each operator. Every call adds a node to the app's draft and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Never, NoReturn, final, overload

import polars as pl

from headrace.api.changing import Changing, changes_join, lost
from headrace.api.checks import Declaring, SchemaLike, key_columns, key_name, key_parts, schema_difference
from headrace.api.descriptors import check_partitions
from headrace.api.draft import Output, Table
from headrace.api.flow import WindowedStream, check_flow
from headrace.api.operators.join import (
    ChangesHow,
    JoinHow,
    TableJoinHow,
    Within,
    holds_messages,
    latest_join,
    stream_join,
    table_join,
)
from headrace.api.operators.spec import OnError, after_merge
from headrace.api.operators.steps import LATE, Broadcast, Merge, PartitionBy, SideOutput
from headrace.api.operators.task import add_task
from headrace.api.operators.window import Timing, deduplicate_step, drop_late_step, late_target, window_step
from headrace.api.other_names import STREAM, indexed, missing, not_a_join
from headrace.api.specs import Panes, Trigger, WindowShape
from headrace.api.tasks import Task
from headrace.core.clock import Duration
from headrace.core.errors import DeclarationError
from headrace.rows.schema import Schema


def _joined(keys: Sequence[str]) -> str:
    return "-and-".join(keys)


@final
class Stream(Changing):
    """A flow of messages at one point of an app. Immutable: each method is an operator and returns a new one.

    Examples
    --------
    >>> views.select("member", "ms")
    Stream('select-1': member String, ms Int64)
    """

    __slots__ = ()

    def merge(self, *streams: Stream, **joining: Never) -> Stream:
        """Merge with other ``streams``: the result has the messages of all. The flows have the same columns.

        ``join`` combines messages of a key instead. So ``on=`` and other ``joining`` options are refused, with a hint.

        Examples
        --------
        >>> both = views.filter(pl.col("ms") > 100).merge(views.filter(pl.col("url") == "/"))
        """
        with Declaring("merge") as here:
            others = list(streams)
            if joining or any(isinstance(other, str | list) for other in others[1:]):
                raise not_a_join(*joining)
            if not others:
                raise DeclarationError("merge() needs at least one other stream", hint="pass the streams to merge with")
            for other in others:
                check_flow(other, "the other side", self.draft)
            if any(stream.changing for stream in (self, *others)):
                first, *others = (stream._inserted(here) for stream in (self, *others))
                if not self.changing:
                    return first.merge(*others)
            for other in others:
                difference = schema_difference(other._schema, self._schema)
                if difference:
                    raise DeclarationError(
                        f"{other.node!r} has different columns from {self.node!r}: {difference}",
                        hint="give them the same columns with select(...) or with_columns(...) first",
                    )
            aligned = [self, *(other._ordered(tuple(self._schema.columns), here) for other in others)]
            records = {stream._schema.record for stream in aligned}
            schema = self._schema if len(records) == 1 else Schema.of(self._schema.columns)
            time = after_merge((stream._time for stream in aligned), here)
            return self._then("merge", Merge(), here, schema, time, others=aligned[1:])

    def partition_by(
        self,
        key: str | pl.Expr | Sequence[str | pl.Expr] | None,
        *,
        id: str | None = None,
        partitions: int | None = None,
    ) -> Stream:
        """Send each message through a durable stream to the partition of its key. A new stage begins there.

        One task then gets all messages of a key. ``key`` is one or several: column names, or expressions with new
        names, which become columns. With None, all messages go to one partition, and so to one task. ``id`` names the
        intermediate stream, by default ``by-member``. It is durable: keep it when the key changes. By default the
        planner decides how many ``partitions`` it has.

        Examples
        --------
        >>> by_member = views.partition_by("member")
        >>> by_day = views.partition_by(["member", pl.col("ts").dt.date().alias("day")], id="by-day")
        """
        with Declaring("partition_by") as here:
            check_partitions(partitions)
            if key is None:
                if partitions not in (None, 1):
                    raise DeclarationError(
                        f"partition_by(None) leads to one partition, not to {partitions}", hint="leave out partitions="
                    )
                id_ = self.draft.claim("partition_by", id, here, "to-one")
                return self._through(id_, PartitionBy(id_, ()), here, partitions=1)
            keys = key_parts(key)
            stream = self._with_keys(keys, here)
            names = key_columns((key_name(key) for key in keys), stream._schema, "partition_by")
            id_ = self.draft.claim("partition_by", id, here, f"by-{_joined(names)}")
            return stream._through(id_, PartitionBy(id_, names), here, partitions=partitions)

    def broadcast(self, *, id: str | None = None) -> Stream:
        """Send each message through a durable stream ``id``, by default ``to-all``, to every task of the next stage.

        Examples
        --------
        >>> rules = views.filter(pl.col("url") == "/rules").broadcast(id="rules-to-all")
        """
        with Declaring("broadcast") as here:
            id_ = self.draft.claim("broadcast", id, here, "to-all")
            return self._through(id_, Broadcast(id_), here)

    def window(
        self,
        shape: WindowShape,
        *,
        key: str | Sequence[str] | None = (),
        id: str | None = None,
        time: str | None = None,
        early: Trigger | int | str | timedelta | None = None,
        late: Trigger | int | str | timedelta | None = None,
        allowed_lateness: Duration = "0s",
        panes: Panes = "accumulating",
        late_to: Output | str | None = None,
    ) -> WindowedStream[Stream]:
        """Group messages by key and window, to be aggregated by ``agg``.

        A result is emitted when the watermark passes the end of its window. Its columns are the key,
        ``window_start``, ``window_end`` (exclusive; of the event time's type) and the aggregates. Each task has its own
        windows, so for one result per key, ``partition_by`` the key first.

        With ``early``, ``late`` or ``allowed_lateness``, a window can have several results. Each then gets the columns
        ``pane`` (early, on_time or late) and ``pane_index``.

        Parameters
        ----------
        shape
            The shape of the windows: ``hr.tumbling("10s")``, ``hr.hopping``, ``hr.session``, or one of ``hr.windows``.
        key
            One column or several; by default the key by which the flow is partitioned. Null is a key of its own. None
            groups all messages of a task together.
        id
            The name of the window's state, by default ``window-member``. Give one if there are several windows by a
            key. A window with another id begins without state.
        time
            Another column for the event time. With ``"processing"``, messages belong to the window of their arrival,
            and windows end by the clock.
        early
            When to emit results before the end of a window: a trigger of ``hr.triggers``, a number of messages or a
            duration.
        late, allowed_lateness
            When to emit results for messages that arrive after the end, by default with each of them; and how long a
            window accepts such messages.
        panes
            Whether a result covers everything since the beginning of its window (``"accumulating"``), or only messages
            since the previous result (``"discarding"``).
        late_to
            An output, or the name of one, for messages that arrive too late. They are counted either way.

        Examples
        --------
        >>> counts = views.partition_by("member", id="members").window(hr.tumbling("10s")).agg(views=pl.len())
        >>> counts.schema.columns["window_end"], counts.schema.columns["views"]
        (Datetime(time_unit='ms', time_zone=None), Int64)
        """
        with Declaring("window") as here:
            timing = Timing(time, early, late, allowed_lateness, panes)
            step = window_step(
                shape, key=self._own_key(key, "window") or None, schema=self._schema, time=self._time, timing=timing
            )
            id_ = self.draft.claim("window", id, here, f"window-{_joined(step.keys) or 'all'}")
            if isinstance(late_to, str):
                late_to = self.draft.output_called(late_to, here)
            if late_to is not None:
                late_target(late_to, step)
            self.draft.windows_without_aggregates[id_] = here
            return WindowedStream(self, id_, step, late_to, here)

    @overload
    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        how: JoinHow = "inner",
        within: Within,
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream: ...

    @overload
    def join(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        how: ChangesHow = "inner",
        ttl: Duration | Literal["never"] | None = None,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        where: pl.Expr | None = None,
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream: ...

    @overload
    def join(
        self,
        other: Table,
        on: str | Sequence[str] | None = None,
        *,
        how: TableJoinHow = "inner",
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream: ...

    def join(
        self,
        other: Stream | Table,
        on: str | Sequence[str] | None = None,
        *,
        how: ChangesHow = "inner",
        within: Within | None = None,
        ttl: Duration | Literal["never"] | None = None,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        where: pl.Expr | None = None,
        id: str | None = None,
        suffix: str = "_right",
    ) -> Stream:
        """Join with another stream by key, within a bound of event time or all rows, or look up keys in a table.

        With ``within``, messages meet that are near in event time. With ``ttl``, or if a side carries changes, all rows
        of both sides meet, and each is kept until it is deleted, or for ``ttl``. The result carries changes, but for
        an inner join of two flows that don't.

        Parameters
        ----------
        other
            A stream or a table.
        on
            The key: columns that both sides have. For a table, this side's columns in the order of the table's key;
            by default those with the same names. For a stream, by default the key by which both are partitioned.
        how
            ``"inner"``, ``"left"``, or, with a stream, ``"full"``; with ``ttl`` also ``"right"``, ``"semi"`` (the left
            rows that have a partner) and ``"anti"`` (those that have none).
        within
            How far apart in event time the messages of two streams may be: ``"5m"`` before and after, or a pair such as
            ``("-5m", "+1m")``. Two streams need this or ``ttl``.
        ttl
            Join all rows, and forget a row so long (of the wall clock) after it came; ``"never"``: only when it is
            deleted.
        left_on, right_on
            The keys, if the sides have other names for them, of a join with ``ttl``.
        where
            A further condition on the joined columns, of a join with ``ttl``.
        id
            The name of the join's state, if it has any: by default ``join-member``. Give one if there are several.
        suffix
            Added to columns of the other side whose names this side has, too.

        Examples
        --------
        >>> orders = app.input("orders", {"member": pl.String, "at": pl.Datetime("ms")}, event_time="at")
        >>> bought = views.join(orders, on="member", within=("0s", "10m"), id="views-then-orders")
        >>> ever = views.join(orders, on="member", how="semi", ttl="30d", id="views-of-buyers")
        >>> ever.changing
        True
        >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "age": pl.Int64})
        >>> aged = views.join(profiles, how="left")
        """
        with Declaring("join") as here:
            if isinstance(other, Table):
                self._check_owner(other.draft, other.id)
                self._check_bounded(how, ttl, left_on, right_on, where)
                left = (self._schema, self._time)
                lookup, schema = table_join(left, other, on=on, how=how, within=within, suffix=suffix)
                name = None
                if id is not None or holds_messages(other.spec):
                    name = self.draft.claim("join", id, here, f"join-{other.id}")
                return self._then("join", lookup, here, schema, self._time, id_=name)
            check_flow(other, "the other side", self.draft)
            if within is None and (ttl is not None or self.changing or other.changing):
                sides = self._join_keys(other, on, left_on, right_on)
                kept = None if ttl in (None, "never") else ttl
                step, schema = changes_join(
                    self._schema, other._schema, on=sides, how=how, where=where, ttl=kept, suffix=suffix
                )
                name = self.draft.claim("join", id, here, f"join-{_joined(step.left_keys) or 'all'}")
                time = lost(self._time, "may be that of an earlier row", "join", here)
                return self._then("join", step, here, schema, time, id_=name, others=(other,))
            self._check_bounded(how, ttl, left_on, right_on, where)
            on = self._common_key(other) if on is None else on
            left, right = (self._schema, self._time), (other._schema, other._time)
            join, schema, time = stream_join(left, right, on=on, how=how, within=within, suffix=suffix, here=here)
            name = self.draft.claim("join", id, here, f"join-{_joined(join.keys)}")
            return self._then("join", join, here, schema, time, id_=name, others=(other,))

    def join_latest(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        ttl: Duration,
        id: str | None = None,
        how: JoinHow = "inner",
        suffix: str = "_right",
    ) -> Stream:
        """Join each message, as it arrives, with the latest message of its key on the ``other`` side.

        The key ``on`` is columns that both sides have, by default those by which both are partitioned. Event time plays
        no part, and the result has none. A message waits for partners for ``ttl`` of the wall clock; a newer message of
        its side and key replaces it. With ``how`` ``"left"``, messages of this side that find no partner are emitted,
        too, with ``"full"`` those of both sides. Such a message can still join with later ones. ``id`` is by default
        ``join-latest-member``, and ``suffix`` as for ``join``.

        Examples
        --------
        >>> carts = app.input("carts", {"member": pl.String, "items": pl.Int64})
        >>> shown = views.join_latest(carts, "member", ttl="1h", id="views-with-carts")
        """
        with Declaring("join_latest") as here:
            check_flow(other, "the other side", self.draft)
            on = self._common_key(other) if on is None else on
            left, right = (self._schema, self._time), (other._schema, other._time)
            join, schema, time = latest_join(left, right, on=on, how=how, ttl=ttl, suffix=suffix, here=here)
            name = self.draft.claim("join_latest", id, here, f"join-latest-{_joined(join.keys)}")
            return self._then("join_latest", join, here, schema, time, id_=name, others=(other,))

    def deduplicate(self, key: str | Sequence[str] = (), *, within: Duration, id: str | None = None) -> Stream:
        """Drop repeated messages: the first message of a key passes, others close to it in event time are dropped.

        A message is dropped if its event time is less than ``within`` away from that of a message of its ``key`` that
        passed: one column or several, by default the key by which the flow is partitioned. Late messages are dropped
        and counted. ``id`` names the state, by default ``deduplicate-member``.

        Examples
        --------
        >>> once = views.partition_by("member", id="by-visitor").deduplicate(["member", "url"], within="1h")
        """
        with Declaring("deduplicate") as here:
            step = deduplicate_step(self._schema, self._time, self._own_key(key, "deduplicate") or None, within)
            id_ = self.draft.claim("deduplicate", id, here, f"deduplicate-{_joined(step.keys)}")
            return self._then("deduplicate", step, here, self._schema, self._time, id_=id_)

    def drop_late(self, *, late_to: Output | str | None = None) -> Stream:
        """Drop and count messages that are older than the watermark, or send them to the output ``late_to``.

        Examples
        --------
        >>> timely = views.drop_late(late_to="late-views")
        """
        with Declaring("drop_late") as here:
            if isinstance(late_to, str):
                late_to = self.draft.output_called(late_to, here)
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
        id: str | None = None,
        event_time: str | Mapping[str, str] | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        tables: Mapping[str, Table] | None = None,
        writes: str | Sequence[str] = (),
    ) -> dict[str, Stream]:
        """Run your own low-level ``task`` on these messages: ``app.task`` with one input, named ``"messages"``.

        ``outputs``, ``id``, ``event_time``, ``on_error``, ``dead_letter``, ``tables`` and ``writes`` are as for
        ``app.task``, and so is what is returned.

        Examples
        --------
        >>> class Echo(hr.tasks.Task):
        ...     def process(self, message, out):
        ...         out.send("all", {"member": message["member"]})
        >>> flows = views.process(Echo(), {"all": {"member": pl.String}}, id="echo")
        >>> flows["all"].send_to("all-members")
        """
        with Declaring("process") as here:
            one = {"messages": self}
            how = event_time, on_error, dead_letter, tables, writes
            return add_task(self.draft, Stream, task, one, outputs, id, *how, here)

    def _join_keys(
        self,
        other: Stream,
        on: str | Sequence[str] | None,
        left_on: str | Sequence[str] | None,
        right_on: str | Sequence[str] | None,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if (left_on is None) != (right_on is None) or (on is not None and left_on is not None):
            raise DeclarationError("a join takes on=, or both left_on= and right_on=", hint='write on="member"')
        if left_on is not None and right_on is not None:
            left = (left_on,) if isinstance(left_on, str) else tuple(left_on)
            return left, (right_on,) if isinstance(right_on, str) else tuple(right_on)
        keys = self._common_key(other) if on is None else (on,) if isinstance(on, str) else tuple(on)
        return keys, keys

    def _check_bounded(self, how: str, *others: object) -> None:
        if how in ("right", "semi", "anti") or any(other is not None for other in others):
            raise DeclarationError(
                "ttl=, left_on=, right_on=, where= and how= right, semi or anti are for a join of all rows of streams",
                hint='leave within= out, and say how long rows are kept: ttl="7d", or ttl="never"',
            )

    def _common_key(self, other: Stream) -> tuple[str, ...]:
        own, theirs = (self.draft.key_at(flow.node) for flow in (self, other))
        if not own or own != theirs:
            raise DeclarationError(
                "a join of two streams needs on=, unless both are partitioned by the same key",
                hint='write on="member", or put partition_by("member") before both',
            )
        return own

    def send_to(self, target: Output | Table | str, key: str | Sequence[str] | None = None) -> None:
        """Write to a ``target``: an output or a table. The first flow sent to a target sets its columns.

        A text names an output. Unless the app has an output of this name already, it is declared here, as by
        ``app.output(name)``. In an output, the columns ``key`` choose the partition of a message; by default it has the
        number of the task. In Kafka and Kinesis, ``key`` is one column, and becomes the key of a record.

        Examples
        --------
        >>> views.filter("ms > 1000").send_to("slow-views")
        >>> views.send_to(app.output("all-views", partitions=4), key="member")
        """
        with Declaring("send_to") as here:
            self._send(target, key, here)

    def delete_from(self, table: Table) -> None:
        """Delete the rows of the messages' keys from ``table``. Other columns than its key are ignored.

        Examples
        --------
        >>> profiles = app.table("profiles", key="member", schema={"member": pl.String, "age": pl.Int64})
        >>> views.filter(pl.col("url") == "/leave").delete_from(profiles)
        """
        with Declaring("delete_from") as here:
            self._delete(table, here)

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist
        __iter__ = None  # __getitem__ doesn't make it a sequence

        def __getattr__(self, name: str) -> NoReturn:
            columns = () if name.startswith("_") else self._schema.columns
            raise missing("a stream", name, STREAM, dir(type(self)), columns)

        def __getitem__(self, index: object) -> NoReturn:
            raise indexed(index)
