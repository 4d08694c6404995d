"""A key is said once: what comes after a partitioning has its key, wherever that is still there."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr

VIEW = {"member": pl.String, "url": pl.String, "ts": pl.Int64}
COUNT = {"n": pl.len()}


@pytest.fixture
def app() -> hr.App:
    return hr.App("keys")


@pytest.fixture
def views(app: hr.App) -> hr.Stream:
    return app.input("views", VIEW, event_time="ts")


def renamed(row: dict[str, object]) -> dict[str, object]:
    return row


KEPT: list[tuple[str, Callable[[hr.Stream], hr.Stream], tuple[str, ...]]] = [
    ("filter", lambda s: s.filter(pl.col("url") != "/"), ("member",)),
    ("another column", lambda s: s.with_columns(n=pl.lit(1)), ("member",)),
    ("renamed", lambda s: s.rename({"member": "who"}), ("who",)),
    ("a copy", lambda s: s.with_columns(who="member"), ("member",)),
    ("dropped", lambda s: s.drop("member"), ()),
    ("computed anew", lambda s: s.with_columns(member=pl.lit("x")), ()),
    ("a function that keeps it", lambda s: s.map(renamed, VIEW), ("member",)),
    ("a function without it", lambda s: s.map(renamed, {"url": pl.String, "ts": pl.Int64}), ()),
    ("sampled", lambda s: s.sample(0.5), ("member",)),
    ("windowed", lambda s: s.window(hr.tumbling("1s")).agg(**COUNT), ("member",)),
    ("merged with itself", lambda s: s.filter(pl.col("url") == "/").merge(s.filter(pl.col("url") != "/")), ("member",)),
    ("partitioned again", lambda s: s.partition_by(["url", "member"]), ("url", "member")),
]


@pytest.mark.parametrize(("then", "key"), [case[1:] for case in KEPT], ids=[case[0] for case in KEPT])
def test_the_key_of_a_flow(
    app: hr.App, views: hr.Stream, then: Callable[[hr.Stream], hr.Stream], key: tuple[str, ...]
) -> None:
    flow = then(views.partition_by("member"))
    assert app._draft.key_at(flow.node) == (key or None)
    if key:
        assert list(flow.window(hr.tumbling("1m"), id="w").agg(**COUNT).schema.columns)[: len(key)] == list(key)
    else:
        with pytest.raises(hr.errors.DeclarationError, match="window needs a key"):
            flow.window(hr.tumbling("1m"), id="w")


def test_the_key_of_an_input(app: hr.App) -> None:
    views = app.input("views", VIEW, key="member", event_time="ts")
    assert app._draft.key_at(views.node) == ("member",)
    assert views.deduplicate(within="1m").node == "deduplicate-member"


def test_flows_by_different_keys_have_none(app: hr.App, views: hr.Stream) -> None:
    merged = views.partition_by("member").merge(views.partition_by("url"))
    assert app._draft.key_at(merged.node) is None


def test_flows_that_part_and_meet_often_are_followed_once(app: hr.App, views: hr.Stream) -> None:
    flow = views.partition_by("member")
    for _ in range(40):
        flow = flow.filter(pl.col("url") == "/").merge(flow.filter(pl.col("url") != "/"))
    assert app._draft.key_at(flow.node) == ("member",)


def test_joins_use_what_both_sides_are_partitioned_by(app: hr.App, views: hr.Stream) -> None:
    orders = app.input("orders", VIEW, event_time="ts").partition_by("member", id="orders-by-member")
    by_member = views.partition_by("member")
    assert by_member.join(orders, within="1m").node == "join-member"
    assert by_member.join_latest(orders, ttl="1h").node == "join-latest-member"
    for other in (views, views.partition_by("url")):
        with pytest.raises(hr.errors.DeclarationError, match="needs on=, unless both are partitioned by the same key"):
            by_member.join(other, within="1m")


def test_a_key_said_once_gives_the_results_of_one_said_thrice() -> None:
    def counted(said: bool) -> list[tuple[object, ...]]:
        app = hr.App("counted")
        views = app.input("views", VIEW, event_time="ts")
        flow = views.partition_by("member", id="by-member") if said else views.partition_by("member")
        window = flow.window(hr.tumbling("1s"), key="member", id="w") if said else flow.window(hr.tumbling("1s"))
        window.agg(**COUNT).send_to(app.output("counts"))
        with app.test(partitions=2) as t:
            t.feed("views", [{"member": m, "url": "/", "ts": at} for m, at in [("a", 1), ("b", 2), ("a", 1500)]])
            t.end()
            return sorted(t.read("counts").rows())

    assert counted(said=False) == counted(said=True) != []


def test_all_messages_in_one_partition_are_one_group() -> None:
    app = hr.App("total")
    app.input("views", VIEW, event_time="ts").partition_by(None).window(hr.tumbling("1s")).agg(**COUNT).send_to(
        app.output("totals")
    )
    with app.test(partitions=3) as t:
        for partition in range(3):
            t.feed("views", [{"member": "a", "url": "/", "ts": 1 + partition}], partition=partition)
        t.end()
        assert t.read("totals")["n"].to_list() == [3]
        assert t.plan.streams["to-one"].partitions == 1
    with pytest.raises(hr.errors.DeclarationError, match="leads to one partition"):
        hr.App("many").input("views", VIEW).partition_by(None, partitions=2)
