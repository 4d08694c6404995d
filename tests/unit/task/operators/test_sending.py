"""partition_by, broadcast, send_to: which partition a message goes to, and what is sent with it."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples


def view(member: str | None, ts: int = 0) -> dict[str, Any]:
    return {"member": member, "ms": 1, "ts": ts}


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.text(max_size=3))), max_size=30))
def test_messages_of_one_key_meet_in_one_task(messages: list[tuple[int, str | None]]) -> None:
    """Each task counts separately, so a key in several tasks would have several counts."""
    app = hr.App("page-views", intermediate_partitions=3)
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts")
    counts = (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling("1s"), key="member", id="per-1s")
        .agg(n=hr.count())
    )
    counts.send_to(app.output("out"))
    with app.test(3) as t:
        for partition, member in messages:
            t.feed("views", [{"member": member, "ts": 1}], partition=partition, settle=False)
        t.end()
        rows = dict(t.read("out").select("member", "n").rows())
        assert t.read("out").height == len(rows)
    members = [member for _, member in messages]
    assert rows == {member: members.count(member) for member in members}


def test_a_null_key_is_a_key(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    by_member = views.partition_by("member", id="by-member", partitions=4)
    by_member.window(hr.tumbling("1s"), key="member", id="per-1s").agg(n=hr.count()).send_to(out)
    with app.test(2) as t:
        for partition in (0, 1):
            t.feed("views", [view(None), view("a"), view(None)], partition=partition)
        t.end()
        assert dict(t.read("out").select("member", "n").rows()) == {None: 4, "a": 2}


def test_a_key_may_be_computed(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    by_day = views.partition_by((pl.col("ts") // 10).alias("day"), id="by-day", partitions=2)
    by_day.select("member", "day").send_to(out)
    with app.test() as t:
        t.feed("views", [view("a", 5), view("b", 25)])
        assert sorted(t.read("out").rows()) == [("a", 0), ("b", 2)]


def test_messages_of_one_producer_and_key_keep_their_order(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.partition_by("member", id="by-member", partitions=2).send_to(out)
    with app.test() as t:
        for ts in range(50):
            t.feed("views", [view("a", 2 * ts), view("b", 2 * ts), view("a", 2 * ts + 1)], settle=False)
        t.settle()
        rows = t.read("out")
        assert rows.filter(member="a")["ts"].to_list() == list(range(100))


def test_send_to_with_a_key_puts_equal_keys_into_one_partition(app: hr.App, views: hr.Stream) -> None:
    views.send_to(app.output("out", partitions=4), key="member")
    again = app.input("again", {"member": pl.String}, physical="other")
    again.send_to(app.output("out-2", partitions=4), key="member")
    members = [f"m{n}" for n in range(40)]
    with app.test({"views": 2, "again": 1}) as t:
        t.feed("views", [view(member) for member in members], partition=0)
        t.feed("views", [view(member) for member in reversed(members)], partition=1)
        t.feed("again", [{"member": member} for member in members])
        order = t.read("out")["member"].unique(maintain_order=True).to_list()
        assert sorted(order) == sorted(members)
        assert t.read("out").height == 80
        # read() goes partition by partition, so equal keys are together in both outputs
        assert t.read("out-2")["member"].to_list() == order


def test_send_to_without_a_key_stays_in_the_tasks_partition(app: hr.App, views: hr.Stream) -> None:
    views.send_to(app.output("out", partitions=2))
    with app.test(2) as t:
        t.feed("views", [view("b")], partition=1)
        t.feed("views", [view("a")], partition=0)
        assert t.read("out")["member"].to_list() == ["a", "b"]


def test_every_task_reads_all_of_a_broadcast(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    rules = app.input("rules", {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}, event_time="ts")
    views.partition_by("member", id="by-member", partitions=3).merge(rules.broadcast(id="to-all")).send_to(out)
    with app.test() as t:
        t.feed("rules", [view("rule")])
        assert t.read("out")["member"].to_list() == ["rule"] * 3
        t.end()
        assert t.ended


def test_a_message_that_several_flows_want_goes_to_each(app: hr.App, views: hr.Stream) -> None:
    views.send_to(app.output("raw"))
    views.partition_by("member", id="by-member").send_to(app.output("sorted"))
    views.filter(pl.col("ms") > 5).send_to(app.output("slow"))
    with app.test() as t:
        t.feed("views", [view("a")])
        assert [t.read(name).height for name in ("raw", "sorted", "slow")] == [1, 1, 0]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_time_and_the_end_go_through_any_number_of_stages(stages: int) -> None:
    app = hr.App("long", intermediate_partitions=2)
    flow = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts", lateness="5ms")
    for number in range(1, stages):
        flow = flow.partition_by("member", id=f"step-{number}")
    flow.send_to(app.output("out"))
    with app.test(3) as t:
        for partition in range(3):
            assert t.watermark is None
            t.feed("views", [{"member": "a", "ts": 100 + partition}], partition=partition)
        assert t.watermark == 95
        t.end()
        assert (t.ended, t.read("out").height) == (True, 3)
