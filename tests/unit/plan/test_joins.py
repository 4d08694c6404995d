"""Which streams meet at which operator: both traversals of seed 004, and the conversion to streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from graph_builder import AppBuilder

import headrace as hr
from headrace.api.operators.spec import EventTime
from headrace.api.operators.window import Deduplicate
from headrace.core.errors import PlanError
from headrace.plan.partitions import inputs_of_meetings, join_groups, joins_of_table_writes
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo


def groups_of(app: AppBuilder) -> dict[str, tuple[str, ...]]:
    return {group.at: group.streams for group in join_groups(app.graph())}


def test_a_join_groups_the_streams_of_both_its_sides():
    app = AppBuilder()
    s1, s2 = app.input("s1", 8), app.input("s2", 8)
    app.output("out", app.join("j", app.filter("f", s1), s2))
    assert groups_of(app) == {"j": ("s1", "s2")}


def test_sending_to_a_table_is_associated_with_all_joins_of_that_table():
    # The graph of the seed's figure 8.
    app = AppBuilder()
    t, other = app.table("t"), app.table("other")
    fill = app.fill(t, app.filter("f", app.input("s1", 8)))
    app.fill(other, app.input("s4", 8))
    app.output("out", app.table_join("b", app.input("s2", 8), t))
    app.output("out", app.table_join("a", app.input("s3", 8), t))
    writes = joins_of_table_writes(app.graph())
    assert writes == {fill: ("a", "b"), "in-s4-fills-other": ()}
    assert inputs_of_meetings(app.graph(), writes) == {
        "a": {"in-s1", "in-s3"},
        "b": {"in-s1", "in-s2"},
        fill: {"in-s1"},
        "in-s4-fills-other": {"in-s4"},
    }
    assert groups_of(app) == {"a": ("s1", "s3"), "b": ("s1", "s2")}


def test_an_intermediate_stream_ends_what_its_writer_reaches():
    app = AppBuilder()
    s1, s2 = app.input("s1", 8), app.input("s2", 4)
    app.output("out", app.join("j", s1, app.partition_by("s2-by-k", s2)))
    assert groups_of(app) == {"j": ("s1", "s2-by-k")}


def test_what_fills_a_table_reaches_the_joins_after_the_join_with_the_table():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.partition_by("a", app.input("s1", 2)))
    first = app.table_join("first", app.partition_by("b", app.input("s2", 4)), t)
    app.output("out", app.join("second", first, app.input("s3", 8)))
    assert groups_of(app) == {"first": ("a", "b"), "second": ("a", "b", "s3")}


def test_side_inputs_join_the_group_of_each_join_with_their_table():
    app = AppBuilder()
    t = app.table("t", app.side_input("side1", 8), app.side_input("side2", 8))
    app.output("out", app.table_join("j", app.input("s1", 8), t))
    assert groups_of(app) == {"j": ("s1", "side1", "side2")}


def test_what_writes_a_table_meets_in_it_if_nothing_joins_it():
    app = AppBuilder()
    t, looked_up = app.table("t"), app.table("looked-up")
    app.fill(t, app.partition_by("a", app.input("s1", 2)))
    app.fill(t, app.table_join("j", app.input("s2", 4), looked_up))
    app.fill(looked_up, app.input("s3", 4))
    assert groups_of(app) == {"j": ("s2", "s3"), "t": ("a", "s2", "s3")}


def test_what_writes_a_global_table_meets_nothing():
    app = AppBuilder()
    t = app.table("t", kind="global")
    app.fill(t, app.broadcast("all", app.input("s1", 2)))
    app.fill(t, app.input("s2", 4, broadcast=True))
    assert groups_of(app) == {}


def test_a_table_that_is_joined_and_then_written_ends_the_traversal():
    app = AppBuilder()
    t = app.table("t")
    joined = app.table_join("j", app.input("s1", 8), t)
    app.fill(t, joined)
    app.fill(t, app.input("s2", 8))
    assert groups_of(app) == {"j": ("s1", "s2")}


def test_two_tables_that_feed_each_other_end_the_traversal():
    app = AppBuilder()
    t, u = app.table("t"), app.table("u")
    app.fill(u, app.table_join("a", app.input("s1", 8), t))
    app.fill(t, app.table_join("b", app.input("s2", 8), u))
    assert groups_of(app) == {"a": ("s1", "s2"), "b": ("s1", "s2")}


def test_broadcast_streams_and_global_tables_meet_no_stream():
    app = AppBuilder()
    rules = app.broadcast("rules", app.input("s1", 2))
    t, u = app.table("t", app.side_input("side", 3), kind="global"), app.table("u", kind="global")
    app.fill(u, rules)
    first = app.join("j", app.input("s2", 8), rules)
    app.output("out", app.table_join("k", app.table_join("l", first, t), u))
    assert groups_of(app) == {}


def test_a_table_filled_by_a_broadcast_stream_needs_no_equal_counts():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.broadcast("rules", app.input("s1", 2)))
    app.output("out", app.table_join("j", app.input("s2", 8), t))
    assert groups_of(app) == {}


def test_a_merge_does_not_tie_counts_but_a_keyed_window_after_it_does():
    app = AppBuilder()
    s1, s2 = app.input("s1", 8), app.input("s2", 4)
    app.output("out", app.merge("m", s1, s2))
    assert groups_of(app) == {}
    app.output("out", app.window("whole", "m", keys=()))
    assert groups_of(app) == {}
    app.output("out", app.window("w", "m"))
    assert groups_of(app) == {"w": ("s1", "s2")}


def test_deduplicate_is_a_meeting():
    app = AppBuilder()
    app.merge("m", app.input("s1", 8), app.input("s2", 4))
    app.output("out", app.node("d", Deduplicate(("k",), 1_000, EventTime("ts")), "m"))
    assert groups_of(app) == {"d": ("s1", "s2")}


RULE, MEMBER = {"k": pl.String, "ts": pl.Int64}, {"k": pl.String, "v": pl.Int64, "at": pl.Int64}
OUTER: list[tuple[str, Callable[[hr.Stream, hr.Stream, hr.Table], hr.Stream], bool]] = [
    ("left, table", lambda rules, members, table: rules.join(table, how="left"), True),
    ("inner, table", lambda rules, members, table: rules.join(table), False),
    ("left", lambda rules, members, table: rules.join(members, on="k", within="1s", how="left", id="j"), True),
    ("full", lambda rules, members, table: members.join(rules, on="k", within="1s", how="full", id="j"), True),
    ("inner", lambda rules, members, table: rules.join(members, on="k", within="1s", id="j"), False),
    ("of parts", lambda rules, members, table: members.join(rules, on="k", within="1s", how="left", id="j"), False),
    ("latest", lambda rules, members, table: rules.join_latest(members, "k", ttl="1h", how="left", id="j"), True),
    ("of itself", lambda rules, members, table: rules.join_latest(rules, "k", ttl="1h", how="full", id="j"), False),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize("filled", ["by side inputs", "by a flow"])
@pytest.mark.parametrize("through", ["broadcast", "input", "merge"])
@pytest.mark.parametrize(("name", "join", "refused"), OUTER)
def test_an_outer_join_of_what_every_task_gets_with_what_is_divided_is_refused(
    name: str, join: Any, refused: bool, through: str, filled: str, kind: Any
) -> None:
    app = hr.App("outer")
    rules = app.input("rules", RULE, event_time="ts", broadcast=through == "input")
    if through != "input":
        rules = rules.broadcast(id="to-all")
    if through == "merge":
        rules = rules.merge(app.input("more", RULE, event_time="ts").partition_by("k", id="more-by-k"))
    side = filled == "by side inputs"
    sides = [app.input("side", MEMBER, key="k")] if side else []
    table = app.table("t", key="k", schema=MEMBER, kind=kind, side_inputs=sides)
    members = app.input("members", MEMBER, event_time="at").partition_by("k", id="by-k")
    if not side:
        (members if kind == "local" else app.input("rows", MEMBER).broadcast(id="rows-to-all")).send_to(table)
    join(rules, members, table).send_to(app.output("out"))
    members.sink(print)
    facts = dict.fromkeys(("rules", "more", "members", "side", "rows"), 3)
    refused |= (through, name) == ("merge", "of itself")  # a part of the flow is divided
    if refused and (kind == "local" or "table" not in name):
        with pytest.raises(PlanError, match=r"keeps messages without a partner, and every task gets") as raised:
            plan(app.graph(), {id_: StreamInfo(id_, count) for id_, count in facts.items()})
        assert 'how="inner"' in (raised.value.hint or "")
    else:
        plan(app.graph(), {id_: StreamInfo(id_, count) for id_, count in facts.items()})
