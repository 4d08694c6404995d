"""By which columns state can be dealt to another number of tasks, and where it can't be."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.inventory import Dealing, StageRecord, inventory_of
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

VIEWS = {"member": pl.String, "shop": pl.String, "ts": pl.Int64}


@pytest.fixture
def app() -> hr.App:
    return hr.App("shares")


def record(app: hr.App, part: str) -> StageRecord:
    """What is recorded of the stage that keeps this part."""
    graph = app.graph()
    facts = {id_: StreamInfo(id_, 2) for id_, spec in graph.streams.items() if spec.role.value != "intermediate"}
    stages = inventory_of(plan(graph, facts, 4)).stages.values()
    return next(stage for stage in stages if part in stage.parts)


def dealing(app: hr.App, part: str) -> Dealing:
    return record(app, part).parts[part].dealing


def views(app: hr.App, name: str = "views", key: tuple[str, ...] = ()) -> hr.Stream:
    return app.input(name, VIEWS, key=key, event_time="ts")


def test_a_window_is_dealt_by_the_columns_of_the_shuffle_that_are_in_its_key(app: hr.App) -> None:
    shuffled = views(app).partition_by(["shop", "member"], id="p")
    shuffled.window(hr.tumbling("10s"), key=["member", "ts", "shop"], id="w").agg(n=pl.len()).send_to(app.output("out"))
    assert dealing(app, "w") == Dealing(by=("shop", "member"))


def test_a_key_is_followed_under_another_name(app: hr.App) -> None:
    renamed = views(app).partition_by("member", id="p").rename({"member": "who"})
    renamed.deduplicate("who", within="1m", id="once").send_to(app.output("out"))
    assert dealing(app, "once") == Dealing(by=("who",))


def test_a_key_that_the_step_does_not_have_deals_nothing(app: hr.App) -> None:
    shuffled = views(app).partition_by("member", id="p")
    shuffled.process(Visits(), id="visits")
    found = dealing(app, "visits.by_shop")
    assert found.why_not == "it keeps rows by 'shop', and its messages are partitioned by 'member' (p)"


def test_a_step_without_a_key_keeps_one_result_for_all(app: hr.App) -> None:
    views(app).partition_by("member", id="p").window(hr.tumbling("10s"), key=None, id="w").agg(n=pl.len()).send_to(
        app.output("out")
    )
    assert dealing(app, "w").why_not == "it has no key, so each task keeps one result for all of its messages"


def test_a_users_function_may_change_the_key(app: hr.App) -> None:
    mapped = views(app).partition_by("member", id="p").map_batches(lambda rows: rows)
    mapped.process(Visits(), id="visits")
    assert dealing(app, "visits.by_member").why_not == (
        "the key of 'p' can't be followed to it: a step between them computes other columns"
    )


def test_a_source_is_as_it_is(app: hr.App) -> None:
    views(app, key=("member",)).deduplicate("member", within="1m", id="once").send_to(app.output("out"))
    assert dealing(app, "once").why_not == "its messages come from 'views', as that is partitioned"


def test_both_sides_of_a_join_are_dealt_alike(app: hr.App) -> None:
    left = views(app).partition_by("member", id="p")
    right = views(app, "orders").partition_by("member", id="q", partitions=4)
    left.join(right, on=["shop", "member"], within="1m", id="pairs").send_to(app.output("out"))
    assert dealing(app, "pairs") == Dealing(by=("member",))


def test_the_sides_of_a_join_of_changes_are_dealt_by_their_own_names_of_the_key(app: hr.App) -> None:
    left = views(app).partition_by("member", id="p")
    right = views(app, "orders").rename({"member": "buyer"}).partition_by("buyer", id="q")
    pairs = left.join(right, left_on=["shop", "member"], right_on=["shop", "buyer"], ttl="1d", id="pairs")
    pairs.send_to(app.output("out"))
    assert dealing(app, "pairs.left") == Dealing(by=("member",))
    assert dealing(app, "pairs.right") == Dealing(by=("buyer",))


def test_tables_are_dealt_by_their_keys_copied_or_not_at_all(app: hr.App) -> None:
    own = app.table("own", key="member", schema=VIEWS)
    everywhere = app.table("everywhere", key="shop", schema=VIEWS, kind="global")
    fed = app.table("fed", key="member", side_inputs=[app.input("changes", VIEWS, key="member")])
    shuffled = views(app).partition_by("member", id="p", partitions=2)
    shuffled.send_to(own)
    views(app, "shops").broadcast(id="all-shops").send_to(everywhere)
    joined = shuffled.join(own, id="with-own").select("member", "shop", "ts")
    joined = joined.join(everywhere, on="shop", id="with-all").select("member", "shop", "ts")
    joined.join(fed, on="member", id="with-fed").send_to(app.output("out"))
    assert dealing(app, "own") == Dealing(by=("member",))
    assert dealing(app, "everywhere") == Dealing(copied=True)
    assert dealing(app, "fed").why_not == "its rows come from 'changes', as that is partitioned"


class Visits(hr.tasks.Task):
    """Keeps rows by the key of the shuffle, and by another one."""

    by_member = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})
    by_shop = hr.tasks.Store(key={"shop": pl.String}, value={"n": pl.Int64})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        self.by_member.put(message["member"], {"n": 1})


def test_a_task_is_dealt_by_stores_and_its_timers_by_what_they_were_set_for(app: hr.App) -> None:
    views(app).partition_by("member", id="p").process(Visits(), id="visits")
    found = record(app, "visits").parts
    assert found["visits.by_member"].dealing == Dealing(by=("member",))
    assert found["visits.by_shop"].dealing.why_not.startswith("it keeps rows by 'shop'")
    assert found["visits"].dealing == Dealing(by=("member",))
