"""Where flows of one input meet, and at which pace messages pass there."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.plan.order import Order, order_of
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo

COLUMNS = {"k": pl.Int64, "v": pl.Int64, "ts": pl.Int64}
Declare = Callable[[hr.App, hr.Stream, hr.Stream], object]


def order(declare: Declare) -> Order:
    app = hr.App("order")
    i, j = (app.input(name, COLUMNS, event_time="ts") for name in ("i", "j"))
    declare(app, i, j)
    planned = plan(app.graph(), {name: StreamInfo(name, 1) for name in ("i", "j")})
    return order_of(planned.graph, planned.stages[0].nodes)


def table(app: hr.App) -> hr.tables.Table:
    return app.table("t", key="k", schema={"k": pl.Int64, "v": pl.Int64})


def windowed(i: hr.Stream) -> hr.Stream:
    return i.window(hr.tumbling("1s"), key="k", id="w").agg(v=pl.col("v").sum())


NO_MEETING: dict[str, Declare] = {
    "no branch": lambda app, i, j: i.filter(pl.col("v") > 1).send_to(app.output("out")),
    "two outputs": lambda app, i, j: (i.send_to(app.output("a")), i.send_to(app.output("b"))),
    "merge of two inputs": lambda app, i, j: i.merge(j).send_to(app.output("out")),
    "join of two inputs": lambda app, i, j: i.join(j, on="k", within="1s", id="x").send_to(app.output("out")),
    "a table that another input fills": lambda app, i, j: (
        j.select("k", "v").send_to(t := table(app)),
        i.join(t, how="left").send_to(app.output("out")),
    ),
    "a table that the results of a window fill": lambda app, i, j: (
        windowed(i.join(t := table(app), how="left", suffix="_t").select("k", "v", "ts")).select("k", "v").send_to(t)
    ),
    "windows and their input": lambda app, i, j: (
        windowed(i).select("k", "v").merge(i.select("k", "v")).send_to(app.output("out"))
    ),
}


@pytest.mark.parametrize("name", NO_MEETING)
def test_flows_that_dont_meet_cost_nothing(name: str) -> None:
    assert not order(NO_MEETING[name]).meetings


def increments(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    i.join(t, how="left", suffix="_t").select("k", v=pl.col("v_t").fill_null(0) + 1).send_to(t)


def renamed_increments(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    joined = i.rename({"k": "m"}).join(t, on="m", how="left", suffix="_t")
    joined.select(k="m", v=pl.col("v_t").fill_null(0) + 1).send_to(t)


def increments_of_computed_keys(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    i.join(t, how="left", suffix="_t").select(k=pl.col("k") + 1, v="v_t").send_to(t)


def increments_once(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    joined = i.join(t, how="left", suffix="_t")
    joined.deduplicate("v", within="1s", id="once").select("k", v="v_t").send_to(t)


def changes(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    i.filter(pl.col("v") > 0).select("k", "v").send_to(t)
    i.filter(pl.col("v") == 0).delete_from(t)


def joined_and_written(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    t = table(app)
    i.join(t, how="left", suffix="_t").send_to(app.output("out"))
    i.map(lambda r: r, {"k": pl.Int64, "v": pl.Int64}).send_to(t)


def merged(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    i.filter(pl.col("v") > 0).merge(i.filter(pl.col("v") < 0)).send_to(app.output("out"))


def one_output(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    out = app.output("out")
    i.filter(pl.col("v") > 0).send_to(out)
    i.filter(pl.col("v") < 0).send_to(out)


def joined_with_itself(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    i.filter(pl.col("v") > 0).join_latest(i, "k", ttl="1h", id="x").send_to(app.output("out"))


def pairs(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    i.join(i.filter(pl.col("v") > 0), on="k", within="1s", id="x").send_to(app.output("out"))


def all_pairs(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
    i.join(i.filter(pl.col("v") > 0), on="k", ttl="never", id="x").send_to(app.output("out"))


PACES: list[tuple[Declare, str, list[tuple[str, ...]]]] = [
    (increments, "rounds", [("k",)]),
    (renamed_increments, "rounds", [("m",)]),
    (increments_of_computed_keys, "single", [()]),
    (increments_once, "single", [()]),
    (changes, "last", [("k",), ("k",)]),
    (joined_and_written, "rounds", [("k",), ("k",)]),
    (merged, "merged", [(), ()]),
    (one_output, "merged", [(), ()]),
    (pairs, "paired", [(), ()]),
    (all_pairs, "sides", [(), ()]),
    (joined_with_itself, "rounds", [("k",), ("k",)]),
]


@pytest.mark.parametrize(("declare", "pace", "keys"), PACES, ids=[declare.__name__ for declare, _, _ in PACES])
def test_where_flows_meet_the_pace_follows_from_what_meets(
    declare: Declare, pace: str, keys: list[tuple[str, ...]]
) -> None:
    (meeting,) = order(declare).meetings
    assert (meeting.pace, [entry.keys for entry in meeting.entries]) == (pace, keys)
    assert bool(meeting.why) is (pace == "single")


def test_a_join_of_changes_keeps_the_order_where_its_results_meet_their_input_again() -> None:
    def declare(app: hr.App, i: hr.Stream, j: hr.Stream) -> None:
        pairs = i.join(i.select("k", w="v"), on="k", ttl="never", id="x").select("k", "v")
        pairs.merge(i.select("k", "v")).send_to(app.output("out"))

    found = order(declare)
    assert ([meeting.pace for meeting in found.meetings], found.alone) == (["runs", "merged"], {"x"})
