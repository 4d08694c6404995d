"""A flow partitioned by one key and joined on another: refused where the mistake is certain, and only there."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import PlanError
from headrace.plan.planner import plan
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


BY_MEMBER = by("member", id="right")
BY_SHOP = by("shop", id="right")
BY_UNKNOWN: Flow = lambda stream: stream.map_batches(lambda df: df)  # noqa: E731


@pytest.mark.parametrize(
    ("left", "right", "on"),
    [
        (by("member"), BY_MEMBER, "member"),
        (by("member"), BY_MEMBER, ["shop", "member"]),
        (as_it_is, BY_MEMBER, "member"),
        (as_it_is, as_it_is, "shop"),
        (lambda s: by("member")(s).pipe(BY_UNKNOWN), BY_SHOP, "shop"),
        # A computed key may follow from the key of the join, or be that key.
        (by(pl.col("member").str.to_lowercase().alias("m")), BY_MEMBER, "member"),
        (lambda s: by("member")(s.with_columns(member="shop")), BY_MEMBER, "member"),
        (lambda s: by("shop")(s.with_columns(shop=pl.col("member") + "!")), BY_MEMBER, "member"),
        (lambda s: by("shop")(s.pipe(BY_UNKNOWN)), lambda s: BY_SHOP(s.pipe(BY_UNKNOWN)), "member"),
        # A column that was dropped can't be checked.
        (lambda s: by("shop")(s).select("member", "ts"), BY_MEMBER, "member"),
        (lambda s: by("member")(s).rename({"member": "who"}).with_columns(member="who"), BY_MEMBER, "member"),
        (lambda s: by("member", id="one")(s).merge(by("shop", id="two")(s)), BY_SHOP, "shop"),
    ],
)
def test_what_is_right_or_not_certain_is_no_error(left: Flow, right: Flow, on: str | list[str]) -> None:
    planned(joined(left, right, on))


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

    app = joined(joined_before, as_it_is)
    with pytest.raises(PlanError, match="'left' is partitioned by 'shop'"):
        planned(app)


# -- tables


@pytest.mark.parametrize(
    ("left", "filling", "on"),
    [
        (by("member", "shop"), by("member", "shop", id="right"), None),
        (by("shop"), BY_SHOP, None),
        (by("member"), BY_SHOP, ["shop", "member"]),
        (as_it_is, BY_SHOP, None),
        (by("shop"), as_it_is, None),
    ],
)
def test_a_table_and_what_joins_it_partitioned_alike(left: Flow, filling: Flow, on: list[str] | None) -> None:
    planned(looked_up(left, filling, on))


@pytest.mark.parametrize(
    ("left", "filling", "says"),
    [
        (by("ts"), BY_SHOP, "the flow has messages of one 'member' and 'shop' in several tasks"),
        (by("member"), BY_SHOP, "they would look for rows of one key in different tasks"),
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
        lambda: written(as_it_is, delete=BY_SHOP),
        lambda: written(by("member"), as_it_is, delete=BY_MEMBER),
        # Whether a computed key follows from the table's isn't known.
        lambda: written(BY_MEMBER, delete=by(pl.col("member").str.to_lowercase().alias("m"))),
    ],
)
def test_writers_of_a_table_that_agree_or_may_agree(app: Callable[[], hr.App]) -> None:
    planned(app())


@pytest.mark.parametrize(
    ("app", "says"),
    [
        (lambda: written(by("ts")), "writes table 'members', whose key is 'member' and 'shop', but 'left' is"),
        (lambda: written(by("member"), delete=by("ts", id="right")), "rows of one 'member' and 'shop' would be in"),
        (lambda: written(by("member"), delete=BY_SHOP), "they would look for rows of one key in different tasks"),
        (lambda: written(by("member", "shop"), by("shop", "member", id="right")), "in different tasks"),
        (lambda: written(by("member"), BY_SHOP), "send_to 'send_to-1' ("),
    ],
)
def test_writers_of_a_table_that_certainly_disagree(app: Callable[[], hr.App], says: str) -> None:
    with pytest.raises(PlanError, match=re.escape(says)):
        planned(app())


def test_two_flows_that_join_a_table_agree_though_nothing_is_known_of_what_fills_it() -> None:
    app = hr.App("keys")
    table = app.table("members", key=["member", "shop"], side_inputs=app.input("changes", COLUMNS))
    by("member")(app.input("views", COLUMNS)).join(table).send_to(app.output("one"))
    BY_SHOP(app.input("orders", COLUMNS)).join(table).send_to(app.output("two"))
    with pytest.raises(PlanError, match=r"join 'join-1' .* and join 'join-2' .* use table 'members'"):
        planned(app)
