"""A flow partitioned by one key and joined on another: refused where the mistake is certain, and only there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.plan.validate import check_facts
from headrace.systems.base import StreamInfo

COLUMNS = {"member": pl.String, "shop": pl.String, "ts": pl.Int64}

Flow = Callable[[hr.Stream], hr.Stream]


def planned(app: hr.App) -> None:
    graph = app.graph()
    plan(graph, {id_: StreamInfo(id_, 2) for id_, spec in graph.streams.items() if spec.role.value != "intermediate"})


def joined(left: Flow, right: Flow, on: str | list[str] = "member") -> hr.App:
    app = hr.App("keys")
    ours, theirs = (app.input(name, COLUMNS, event_time="ts") for name in ("views", "orders"))
    left(ours).join(right(theirs), on=on, within="1m", id="pairs").send_to(app.output("out"))
    return app


def looked_up(left: Flow, filling: Flow, on: str | list[str] | None = None) -> hr.App:
    app = hr.App("keys")
    table = app.table("members", key=["member", "shop"], schema=COLUMNS)
    filling(app.input("changes", COLUMNS)).select("member", "shop", "ts").send_to(table)
    left(app.input("views", COLUMNS)).join(table, on=on, id="look-up").send_to(app.output("out"))
    return app


def by(*keys: str | pl.Expr, id: str = "left") -> Flow:
    return lambda stream: stream.partition_by(keys, id=id)


def as_it_is(stream: hr.Stream) -> hr.Stream:
    return stream


def back(stream: hr.Stream) -> hr.Stream:
    return stream.map_batches(lambda df: df, COLUMNS)


BY_MEMBER = by("member", id="right")
BY_SHOP = by("shop", id="right")
BY_UNKNOWN: Flow = lambda stream: stream.map_batches(lambda df: df)  # noqa: E731


@pytest.mark.parametrize(
    ("left", "right", "on"),
    [
        (by("member"), BY_MEMBER, "member"),
        (by("member"), BY_MEMBER, ["shop", "member"]),
        (lambda s: by("member")(s).filter(lambda row: True), BY_MEMBER, "member"),
        (lambda s: by("member")(s).pipe(BY_UNKNOWN), BY_MEMBER, "member"),
        (lambda s: by("member")(s.with_columns(member="shop")), BY_MEMBER, "member"),
        (lambda s: by("member")(s).rename({"member": "who"}).with_columns(member="who"), BY_MEMBER, "member"),
        (lambda s: by("member", id="one")(s).merge(by("member", id="two")(s)), BY_MEMBER, "member"),
        (lambda s: by("member")(s).sample(0.5, key="shop", seed=1), BY_MEMBER, "member"),
        # Every task has all messages of one side.
        (by("ts"), lambda s: s.broadcast(id="to-all"), "member"),
        (as_it_is, lambda s: s.broadcast(id="to-all"), "member"),
    ],
)
def test_both_sides_of_a_join_partitioned_by_its_key(left: Flow, right: Flow, on: str | list[str]) -> None:
    planned(joined(left, right, on))


@pytest.mark.parametrize(
    ("left", "says", "do"),
    [
        (as_it_is, "nothing says by which key 'views'", "app.input('views', ..., key='member')"),
        (lambda s: s.filter(pl.col("ts") > 0), "nothing says by which key 'views'", "partition_by('member', id=...)"),
        (
            lambda s: by("member")(s).map_batches(lambda df: df, {**COLUMNS, "member": pl.Binary}).pipe(back),
            "map_batches-1' (",
            "partition_by('member', id=...) before it, after 'map_batches-1'",
        ),
        (lambda s: by("shop")(s).select("member", "ts"), "comes after the partitioning of 'left'", "after 'select-1'"),
        (
            lambda s: by("member")(s).with_columns(member=pl.col("member") + "!"),
            "its results don't have that key unchanged",
            "after 'with_columns-1'",
        ),
        (by(pl.col("member").str.to_lowercase().alias("m")), "'left' is partitioned by 'm'", "on=['m', 'member']"),
        (
            lambda s: by("member", id="one")(s).merge(by("shop", id="two")(s)),
            "merge 'merge-1' (",
            "partition_by('member', id=...) before it, after 'merge-1'",
        ),
        (lambda s: by("member")(s).merge(s), "merge 'merge-1' (", "after 'merge-1'"),
    ],
)
def test_a_side_that_is_not_known_to_be_partitioned_by_the_key(left: Flow, says: str, do: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)) as caught:
        planned(joined(left, BY_MEMBER))
    assert "its left side has messages of one 'member' in several tasks" in caught.value.message
    assert caught.value.hint is not None
    assert do in caught.value.hint


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (by("shop"), "'left' is partitioned by 'shop'"),
        (by("member", "shop"), "'left' is partitioned by 'member' and 'shop'"),
        (lambda s: by("shop")(s).filter(pl.col("ts") > 0).drop_late(), "its left side has messages of one 'member'"),
        (lambda s: by("shop")(s).rename({"shop": "store"}), "'left' is partitioned by 'store'"),
        (lambda s: by("shop")(s.rename({"shop": "member", "member": "shop"})), "'left' is partitioned by 'shop'"),
        (lambda s: by("member")(by("shop", id="first")(s)).pipe(by("shop", id="third")), "'third' is partitioned by"),
    ],
)
def test_another_key_than_that_of_the_join_is_an_error(left: Flow, says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)) as caught:
        planned(joined(left, BY_MEMBER))
    assert "join 'pairs' (" in caught.value.message
    assert "test_plan_keys.py" in caught.value.message
    assert caught.value.hint is not None
    assert "partition_by('member', id=...)" in caught.value.hint


def test_the_hint_names_the_way_for_keys_that_follow_from_each_other() -> None:
    with pytest.raises(PlanError, match=r"the right side|its right side") as caught:
        planned(joined(by("member"), BY_SHOP))
    assert caught.value.hint is not None
    assert "on=['shop', 'member']" in caught.value.hint
    planned(joined(by("shop"), BY_SHOP, ["shop", "member"]))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (by("member"), BY_SHOP),
        (by("member", "shop"), by("shop", "member", id="right")),
        (by("member", "shop"), BY_MEMBER),
    ],
)
def test_both_sides_have_to_be_partitioned_by_the_same(left: Flow, right: Flow) -> None:
    with pytest.raises(PlanError, match="messages that belong together are in different tasks"):
        planned(joined(left, right, ["member", "shop"]))


def test_keys_go_through_a_join_and_a_window() -> None:
    def counted(stream: hr.Stream) -> hr.Stream:
        counts = by("shop")(stream).window(hr.tumbling("1m"), key=["shop", "member"], id="per-minute").agg(n=hr.count())
        return counts.rename({"window_start": "ts"}).select("member", "shop", "ts", "window_end")

    with pytest.raises(PlanError, match="'left' is partitioned by 'shop'"):
        planned(joined(lambda s: counted(s).rename({"ts": "from"}), BY_MEMBER))

    def joined_before(stream: hr.Stream) -> hr.Stream:
        pairs = by("shop")(stream).join(BY_SHOP(stream), on="shop", within="1s", id="first")
        return pairs.select("member", "shop", "ts")

    app = joined(joined_before, by("member", id="other"))
    with pytest.raises(PlanError, match="'left' is partitioned by 'shop'"):
        planned(app)


# -- tables


@pytest.mark.parametrize(
    ("left", "filling", "on"),
    [
        (by("member", "shop"), by("member", "shop", id="right"), None),
        (by("shop"), BY_SHOP, None),
        (by("member"), BY_SHOP, ["shop", "member"]),
    ],
)
def test_a_table_and_what_joins_it_partitioned_alike(left: Flow, filling: Flow, on: list[str] | None) -> None:
    planned(looked_up(left, filling, on))


@pytest.mark.parametrize(
    ("left", "filling", "says"),
    [
        (by("ts"), BY_SHOP, "the flow has messages of one 'member' and 'shop' in several tasks"),
        (by("member"), BY_SHOP, "rows of one 'member' and 'shop' would be looked for in different tasks"),
        (as_it_is, BY_SHOP, "nothing says by which key 'views'"),
        (by("shop"), as_it_is, "nothing says by which key 'changes'"),
        (by("shop"), by("ts", id="right"), "writes table 'members', whose key is "),
        (as_it_is, by("ts", id="right"), "'right' is partitioned by 'ts'"),
    ],
)
def test_a_table_and_what_joins_it_partitioned_otherwise(left: Flow, filling: Flow, says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        planned(looked_up(left, filling))


def test_of_a_global_table_each_task_has_everything() -> None:
    app = hr.App("keys")
    table = app.table("members", key="member", kind="global", side_inputs=app.input("changes", COLUMNS))
    by("shop")(app.input("views", COLUMNS)).join(table).send_to(app.output("out"))
    planned(app)


def written(*flows: Flow, delete: Flow | None = None) -> hr.App:
    app = hr.App("keys")
    table = app.table("members", key=["member", "shop"], schema=COLUMNS)
    for number, flow in enumerate(flows):
        flow(app.input(f"changes-{number}", COLUMNS)).send_to(table)
    if delete is not None:
        delete(app.input("gone", COLUMNS)).delete_from(table)
    return app


@pytest.mark.parametrize(
    "app",
    [
        lambda: written(by("shop")),
        lambda: written(by("member", "shop"), delete=by("member", "shop", id="right")),
        lambda: written(by("member"), delete=BY_MEMBER),
    ],
)
def test_writers_of_a_table_that_agree(app: Callable[[], hr.App]) -> None:
    planned(app())


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (lambda: written(by("ts")), "writes table 'members', whose key is 'member' and 'shop', but 'left' is"),
        (lambda: written(by("member"), delete=by("ts", id="right")), "rows of one 'member' and 'shop' would be in"),
        (lambda: written(by("member"), delete=BY_SHOP), "would be looked for in different tasks"),
        (lambda: written(as_it_is, delete=BY_SHOP), "nothing says by which key 'changes-0'"),
        (lambda: written(BY_MEMBER, delete=by(pl.col("member").str.head(1).alias("m"))), "is partitioned by 'm'"),
        (lambda: written(by("member", "shop"), by("shop", "member", id="right")), "in different tasks"),
        (lambda: written(by("member"), BY_SHOP), "table 'members' ("),
    ],
)
def test_writers_of_a_table_that_disagree(app: Callable[[], hr.App], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        planned(app())


def test_flows_that_join_a_table_agree_with_each_other_and_with_its_side_inputs() -> None:
    def app(key: str | tuple[str, ...], *flows: Flow) -> hr.App:
        app = hr.App("keys")
        table = app.table("members", key=["member", "shop"], side_inputs=app.input("changes", COLUMNS, key=key))
        for number, flow in enumerate(flows):
            flow(app.input(f"views-{number}", COLUMNS)).join(table).send_to(app.output(f"out-{number}"))
        return app

    planned(app("member", by("member"), BY_MEMBER))
    with pytest.raises(PlanError, match=r"table 'members' .* looked for in different tasks"):
        planned(app("shop", by("shop"), BY_MEMBER))
    with pytest.raises(PlanError, match=r"side input 'changes' .* whose key is 'member' and 'shop', but 'changes' is"):
        planned(app("ts", by("shop")))
    with pytest.raises(PlanError, match=r"side input 'changes' .* nothing says by which key") as caught:
        planned(app((), by("shop")))
    assert caught.value.hint is not None
    assert "make the table global; or fill it" in caught.value.hint


# -- inputs with a key


POLARS = {"member": pl.String(), "shop": pl.String(), "ts": pl.Int64()}


def windowed(key: str | list[str] = (), of: str | list[str] = "member", **info: Any) -> Plan:
    app = hr.App("keys")
    views = app.input("views", COLUMNS, key=key, event_time="ts")
    views.window(hr.tumbling("1m"), key=of, id="per-minute").agg(n=hr.count()).send_to(app.output("out"))
    return plan(app.graph(), {"views": replace(StreamInfo("views", 4, POLARS), **info)})


def test_a_keyed_window_needs_one_partition_or_a_key_that_is_declared_or_recorded() -> None:
    with pytest.raises(
        PlanError, match=r"window 'per-minute' \(.* keeps state by 'member', but nothing says"
    ) as caught:
        windowed()
    assert caught.value.hint is not None
    assert "app.input('views', ..., key='member')" in caught.value.hint
    windowed(partitions=1)
    windowed("member", of=["shop", "member"])
    assert windowed(key="member").streams["views"].key == ("member",)
    with pytest.raises(PlanError, match="'views' is partitioned by 'member'") as caught:
        windowed("member", of="shop")
    assert caught.value.hint is not None
    assert "key=['member', 'shop']" in caught.value.hint
    with pytest.raises(PlanError, match="'views' is partitioned by 'member' and 'shop'"):
        windowed(["member", "shop"])


def recorded(*names: str, **types: pl.DataType) -> dict[str, Any]:
    return {"key": names, "columns": POLARS | types}


def test_an_input_has_the_key_that_was_recorded_with_its_stream() -> None:
    of_stream = recorded("member")
    app = hr.App("keys")
    views = app.input("views", COLUMNS, event_time="ts")
    views.window(hr.tumbling("1m"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
    planned = plan(app.graph(), {"views": replace(StreamInfo("views", 4), **of_stream)})
    assert planned.streams["views"].key == ("member",)
    # Not where the app doesn't read the column, or as a type with other hashes.
    for columns in ({"shop": pl.String}, {"ts": pl.Float64}):
        app = hr.App("keys")
        app.input("views", columns).send_to(app.output("out"))
        facts = replace(StreamInfo("views", 4), **recorded("ts"))
        assert plan(app.graph(), {"views": facts}).streams["views"].key == ()


def test_a_key_that_contradicts_the_recorded_one_is_refused() -> None:
    with pytest.raises(PlanError, match=r"source 'views' .* is declared with key=\['shop'\], and is partitioned by me"):
        plan_of_input(key="shop")
    plan_of_input(key="member")
    with pytest.raises(PlanError, match="declares its key 'member' as Int64, and its writers choose partitions by Str"):
        plan_of_input({**COLUMNS, "member": pl.Int64}, key="member")


def plan_of_input(columns: dict[str, Any] = COLUMNS, **options: Any) -> None:
    app = hr.App("keys")
    app.input("views", columns, **options).send_to(app.output("out"))
    check_facts(app.graph(), {"views": replace(StreamInfo("views", 4), **recorded("member"))})


def test_a_stream_with_a_recorded_key_is_written_by_that_key() -> None:
    def written_by(*key: str) -> None:
        app = hr.App("keys")
        app.input("views", COLUMNS).send_to(app.output("out"), key=key or None)
        facts = {"views": StreamInfo("views", 4), "out": replace(StreamInfo("out", 4), **recorded("member"))}
        check_facts(app.graph(), facts)

    written_by("member")
    for key in ((), ("shop",), ("member", "shop")):
        with pytest.raises(PlanError, match=r"writes sink 'out' .* which is partitioned by member") as caught:
            written_by(*key)
        assert caught.value.hint is not None
        assert "send_to(out, key=['member'])" in caught.value.hint


def test_a_topic_keyed_by_kafkas_hash_is_not_partitioned_like_a_stream_of_ours() -> None:
    def app(theirs: Flow) -> hr.App:
        app = hr.App("keys")
        topic = hr.io.kafka("views", brokers="b:1", record_columns={"member": "key"}, key_format="text")
        views = app.input("views", COLUMNS, key="member", event_time="ts", system=topic)
        other = hr.io.kafka("carts", brokers="b:1", record_columns={"member": "key"}, key_format="text")
        carts = app.input("carts", COLUMNS, key="member", event_time="ts", system=other)
        right = theirs(app.input("orders", COLUMNS, event_time="ts")) if theirs is not as_it_is else carts
        views.join(right, on="member", within="1m", id="pairs").send_to(app.output("out"))
        return app

    planned(app(as_it_is))
    with pytest.raises(PlanError, match="messages that belong together are in different tasks") as caught:
        planned(app(BY_MEMBER))
    assert caught.value.hint is not None
    assert "Kafka's hash of a key differs from Headrace's" in caught.value.hint


def test_deduplicate_needs_a_key_too() -> None:
    app = hr.App("keys")
    app.input("views", COLUMNS, event_time="ts").deduplicate("member", within="1m", id="once").send_to(
        app.output("out")
    )
    with pytest.raises(PlanError, match=r"deduplicate 'once' .* keeps state by 'member', but nothing says"):
        planned(app)


# -- functions


def mapped(function: Callable[[dict[str, Any]], dict[str, Any]], steps: Flow = as_it_is) -> hr.App:
    app = hr.App("keys")
    flow = app.input("views", COLUMNS, event_time="ts").partition_by("member", id="by-member", partitions=3)
    flow = steps(flow.map(function, COLUMNS))
    flow.window(hr.tumbling("1m"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
    return app


VIEWS = [{"member": name, "shop": "s", "ts": n} for n, name in enumerate("abcdefgh")]


@pytest.mark.parametrize("steps", [as_it_is, lambda s: s.filter(pl.col("ts") >= 0), lambda s: s.pipe(BY_UNKNOWN)])
def test_a_function_may_leave_the_key_unchanged(steps: Flow) -> None:
    with mapped(lambda row: {**row, "shop": "t"}, steps).test() as t:
        t.feed("views", VIEWS)
        t.end()
        assert sorted(t.read("out")["member"]) == list("abcdefgh")


def test_a_function_that_changes_the_key_before_state_by_it_stops_the_app() -> None:
    with mapped(lambda row: {**row, "member": row["member"] * 2}).test() as t:
        with pytest.raises(hr.errors.DataError, match=r"map 'map-1' \(.*has changed 'member', by which") as caught:
            t.feed("views", VIEWS)
        assert caught.value.hint is not None
        assert ".partition_by('member', id=...) after it" in caught.value.hint


def test_a_function_may_change_a_key_that_no_state_depends_on() -> None:
    app = hr.App("keys")
    flow = app.input("views", COLUMNS).partition_by("member", id="by-member", partitions=3)
    flow.map(lambda row: {**row, "member": row["member"] * 2}, COLUMNS).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", VIEWS)
        assert t.read("out").height == len(VIEWS)


class Sends(hr.tasks.Task):
    """Sends each message on under a changed key, if the shop says so."""

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        changed = message["shop"] == "changes"
        out.send("out", {**message, "member": message["member"] * 2} if changed else dict(message))


def test_what_a_low_level_task_sends_has_to_have_the_key_too() -> None:
    def app() -> hr.App:
        app = hr.App("keys")
        flow = app.input("views", COLUMNS, event_time="ts").partition_by("member", id="by-member", partitions=3)
        sent = app.task(Sends(), {"in": flow}, {"out": COLUMNS}, id="sends")["out"]
        sent.window(hr.tumbling("1m"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
        return app

    with app().test() as t:
        t.feed("views", VIEWS)
        t.end()
        assert sorted(t.read("out")["member"]) == list("abcdefgh")
    with app().test() as t, pytest.raises(hr.errors.DataError, match="has changed 'member'"):
        t.feed("views", [{**view, "shop": "changes"} for view in VIEWS])


def test_with_broadcast_messages_among_those_of_a_key_there_is_no_state_by_it() -> None:
    app = hr.App("keys")
    both = by("member")(app.input("views", COLUMNS, event_time="ts")).merge(
        app.input("more", COLUMNS, event_time="ts").broadcast(id="to-all")
    )
    both.window(hr.tumbling("1m"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
    with pytest.raises(PlanError, match="every task would give a result of them"):
        planned(app)
