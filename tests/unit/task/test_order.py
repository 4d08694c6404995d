"""A batch is invisible: results are those of one message at a time, in every way in which flows can meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from tests.unit.task.one_at_a_time import Flow, OneAtATime, Restarted, plan_of

COLUMNS = {"k": pl.Int64, "v": pl.Int64, "ts": pl.Int64}
Declare = Callable[[hr.App, hr.Stream], None]

odd = pl.col("v") % 2 == 1


def table(app: hr.App, **settings: Any) -> hr.tables.Table:
    return app.table("t", key="k", schema={"k": pl.Int64, "v": pl.Int64}, **settings)


def change_feed(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    i.filter(~odd).select("k", "v").send_to(t)
    i.filter(odd).delete_from(t)


def change_feed_in_memory(app: hr.App, i: hr.Stream) -> None:
    t = table(app, storage="memory")
    i.filter(~odd).select("k", "v").send_to(t)
    i.filter(odd).select("k").delete_from(t)


def increments(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    joined = i.join(t, how="left", suffix="_old")
    joined.select("k", v=pl.col("v_old").fill_null(0) + 1).send_to(t)


def increments_seen(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    joined = i.join(t, how="left", suffix="_old").filter(pl.col("v") > 0)
    joined.select("k", v=pl.col("v_old").fill_null(0) + 1).send_to(t)
    joined.select("k", "v", "v_old").send_to(app.output("out"))


def increments_by_function(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    joined = i.join(t, how="left", suffix="_old")
    added = joined.map(lambda r: {"k": r["k"], "v": (r["v_old"] or 0) + r["v"]}, {"k": pl.Int64, "v": pl.Int64})
    added.send_to(t)
    added.send_to(app.output("out"))


def increments_of_other_keys(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    joined = i.join(t, how="left", suffix="_old")
    joined.select(k=(pl.col("k") + 1) % 4, v=pl.col("v_old").fill_null(0) + pl.col("v")).send_to(t)
    joined.select("k", "v_old").send_to(app.output("out"))


def increments_spread(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    spread = i.flat_map(lambda r: [{**r, "k": r["k"]}, {**r, "k": r["k"] + 1}], COLUMNS)
    spread.join(t, how="left", suffix="_old").select("k", v=pl.col("v_old").fill_null(0) + 1).send_to(t)


def joins_and_writes(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    i.join(t, how="left", suffix="_old").send_to(app.output("out"))
    i.select("k", "v").send_to(t)


def writes_and_joins(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    i.filter(odd).map(lambda r: {"k": r["k"], "v": r["v"]}, {"k": pl.Int64, "v": pl.Int64}).send_to(t)
    i.join(t, how="inner", suffix="_old").send_to(app.output("out"))


def two_joins_and_a_write(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    first = i.join(t, how="left", suffix="_first", id="first")
    i.select("k", "v").send_to(t)
    again = first.with_columns(k2=pl.col("k")).join(t, on="k2", how="left", suffix="_again", id="again")
    again.send_to(app.output("out"))


def two_tables(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    u = app.table("u", key="k", schema={"k": pl.Int64, "v": pl.Int64})
    joined = i.join(t, how="left", suffix="_t", id="in-t").join(u, how="left", suffix="_u", id="in-u")
    joined.select("k", v=pl.col("v_t").fill_null(0) + 1).send_to(u)
    joined.select("k", v=pl.col("v_u").fill_null(0) + 1).send_to(t)


def split_and_merged(app: hr.App, i: hr.Stream) -> None:
    even = i.filter(~odd).with_columns(v=pl.col("v") * 10)
    i.filter(odd).merge(even).send_to(app.output("out"))


def split_in_three(app: hr.App, i: hr.Stream) -> None:
    a = i.filter(odd)
    b = i.filter(lambda r: r["v"] % 3 == 0)
    c = i.flat_map(lambda r: [r] * (r["v"] % 3), COLUMNS)
    a.merge(b).merge(c.filter(pl.col("k") != 1)).send_to(app.output("out"))


def split_twice(app: hr.App, i: hr.Stream) -> None:
    a = i.filter(pl.col("v") > 2)
    b, c = a.filter(odd), a.filter(lambda r: r["k"] > 0)
    inner = b.merge(c)
    inner.merge(i.with_columns(v=-pl.col("v"))).send_to(app.output("out"))
    inner.select("k").send_to(app.output("inside"))


def merged_before_a_shuffle(app: hr.App, i: hr.Stream) -> None:
    merged = i.filter(odd).merge(i.filter(~odd))
    merged.partition_by("k", id="p", partitions=2).send_to(app.output("out"))


def two_writers(app: hr.App, i: hr.Stream) -> None:
    out = app.output("out")
    i.filter(odd).send_to(out)
    i.filter(~odd).map(lambda r: {**r, "v": -r["v"]}, COLUMNS).send_to(out)


def batch_functions(app: hr.App, i: hr.Stream) -> None:
    a = i.map_batches(lambda rows: rows.filter(odd), COLUMNS)
    b = i.map_batches(lambda rows: pl.concat([rows, rows]).sort("v"), COLUMNS)
    a.merge(b).merge(i).send_to(app.output("out"))


def latest_of_two_branches(app: hr.App, i: hr.Stream) -> None:
    joined = i.filter(odd).join_latest(i.filter(~odd), "k", ttl="1h", id="latest")
    joined.send_to(app.output("out"))


def latest_with_itself(app: hr.App, i: hr.Stream) -> None:
    i.join_latest(i, "k", ttl="1h", how="full", id="latest").send_to(app.output("out"))


def pairs_of_two_branches(app: hr.App, i: hr.Stream) -> None:
    joined = i.filter(odd).join(i.filter(pl.col("v") > 3), on="k", within="10ms", id="pairs")
    joined.send_to(app.output("out"))


def pairs_of_all(app: hr.App, i: hr.Stream) -> None:
    joined = i.join(i.with_columns(v=-pl.col("v")), on="k", within="5ms", how="full", id="pairs")
    joined.send_to(app.output("out"))


def latest_pair(app: hr.App, i: hr.Stream) -> None:
    """A table that gets pairs: which is last depends on their order."""
    t = table(app)
    i.filter(odd).join(i.filter(~odd), on="k", within="20ms", id="pairs").select("k", v="v_right").send_to(t)


def repeated(app: hr.App, i: hr.Stream) -> None:
    merged = i.filter(odd).merge(i.filter(pl.col("v") < 5))
    merged.deduplicate(["k", "v"], within="50ms", id="once").send_to(app.output("out"))


def counted(app: hr.App, i: hr.Stream) -> None:
    merged = i.filter(odd).merge(i.filter(pl.col("v") < 5))
    counts = merged.window(hr.windows.count(3), key="k", id="three").agg(vs=pl.col("v").implode())
    counts.send_to(app.output("out"))


def counted_and_merged(app: hr.App, i: hr.Stream) -> None:
    counts = i.window(hr.windows.count(2), key="k", id="two").agg(v=pl.col("v").sum())
    counts.select("k", "v").merge(i.select("k", "v")).send_to(app.output("out"))


def windows_of_branches(app: hr.App, i: hr.Stream) -> None:
    first = i.window(hr.tumbling("10ms"), key="k", id="first").agg(v=pl.col("v").sum(), n=pl.len())
    a, b = first.filter(pl.col("n") > 1), first.filter(pl.col("v") > 3)
    a.merge(b).send_to(app.output("out"))
    i.filter(odd).merge(i.filter(~odd)).window(hr.tumbling("10ms"), key="k", id="second").agg(
        vs=pl.col("v").implode()
    ).send_to(app.output("windows"))


class Notes(hr.tasks.Task):
    """Puts down what it was given, in order, and from which input."""

    seen = hr.tasks.Store(key={"k": pl.Int64}, value={"n": pl.Int64})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        before = self.seen.get(message["k"])
        n = 0 if before is None else before["n"]
        self.seen.put(message["k"], {"n": n * 3 + (1 if out.input == "left" else 2)})
        out.send("notes", {"k": message["k"], "v": message["v"], "n": n, "side": out.input})
        if message["v"] % 4 == 0:
            out.send("fours", {"k": message["k"], "v": message["v"], "n": n, "side": "four"})


NOTES = {"k": pl.Int64, "v": pl.Int64, "n": pl.Int64, "side": pl.String}


def tasks(app: hr.App, i: hr.Stream) -> None:
    outputs = app.task(
        Notes(), inputs={"left": i.filter(odd), "right": i}, outputs={"notes": NOTES, "fours": NOTES}, id="notes"
    )
    outputs["notes"].merge(outputs["fours"]).send_to(app.output("out"))


class Tables(hr.tasks.Task):
    """Tells what the table has of the next key, and may put down how often its own has come."""

    def __init__(self, *, puts: bool) -> None:
        self.puts = puts

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        t, k = out.tables["t"], message["k"]
        found = t.get((k + 1) % 4)
        if self.puts:
            t.put(k, {"v": (t.get(k) or {"v": 0})["v"] + 1})
        if self.puts and message["v"] == 7:
            t.delete((k + 2) % 4)
        out.send("told", {"k": k, "v": -1 if found is None else found["v"]})


def with_tables(i: hr.Stream, t: hr.tables.Table, *, puts: bool, id_: str = "step") -> hr.Stream:
    told = {"told": {"k": pl.Int64, "v": pl.Int64}}
    return i.process(Tables(puts=puts), told, id=id_, tables={"t": t}, writes=["t"] if puts else [])["told"]


def a_task_with_a_table(app: hr.App, i: hr.Stream) -> None:
    with_tables(i, table(app), puts=True).send_to(app.output("out"))


def a_task_reads_what_its_input_writes(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    i.filter(odd).select("k", "v").send_to(t)
    with_tables(i, t, puts=False).send_to(app.output("out"))
    i.filter(pl.col("v") == 4).delete_from(t)


def a_task_writes_what_its_input_joins(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    i.join(t, how="left", suffix="_old").send_to(app.output("before"))
    with_tables(i.filter(odd), t, puts=True).join(t, how="left", suffix="_new").send_to(app.output("after"))


def two_tasks_with_a_table(app: hr.App, i: hr.Stream) -> None:
    t = table(app)
    with_tables(i, t, puts=True, id_="first").send_to(app.output("one"))
    with_tables(i.filter(odd), t, puts=True, id_="second").send_to(app.output("other"))


def letters(app: hr.App, i: hr.Stream) -> None:
    """Rows that fail and rows that don't go into one low-level task."""
    fine = i.map(lambda r: {**r, "v": 12 // (r["v"] % 3)}, COLUMNS, on_error="skip")
    i.filter(odd).merge(fine).send_to(app.output("out"))


def late_and_timely(app: hr.App, i: hr.Stream) -> None:
    late = app.output("late")
    timely = i.drop_late(late_to=late)
    timely.merge(i.filter(odd)).send_to(app.output("out"))


def versions(app: hr.App, i: hr.Stream) -> None:
    t = app.table("versions", key="k", schema={"k": pl.Int64, "v": pl.Int64, "ts": pl.Int64}, versions="1h")
    i.filter(odd).send_to(t)
    i.filter(~odd).select("k", "ts").delete_from(t)
    i.join(t, how="left", suffix="_then", id="as-of").send_to(app.output("out"))


class Reminders(hr.tasks.Task):
    """Sets timers, some of which are due at once: they fire before the next message."""

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        out.send("notes", {**message, "n": 0, "side": "message"})
        out.set_timer(message["k"], max(0, message["ts"] - 3 * message["v"]))

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("notes", {"k": timer.key, "v": 0, "n": timer.time, "side": "timer", "ts": timer.time})


def reminders(app: hr.App, i: hr.Stream) -> None:
    notes = {**NOTES, "ts": pl.Int64}
    app.task(Reminders(), inputs={"i": i}, outputs={"notes": notes}, id="remind")["notes"].send_to(app.output("out"))


def panes_in_time(app: hr.App, i: hr.Stream) -> None:
    """Panes that are due so long after the first message, or the last one: perhaps at once."""
    for number, early in enumerate(
        (hr.triggers.since_first("3ms"), hr.triggers.since_last("3ms"), hr.triggers.every("4ms"))
    ):
        window = i.window(hr.tumbling("30ms"), key="k", early=early, allowed_lateness="5ms", id=f"w{number}")
        window.agg(n=pl.len(), v=pl.col("v").sum()).send_to(app.output(f"out{number}"))


KEYS = pl.DataFrame({"k": range(-1, 12)})

CASES: list[Declare] = [
    change_feed,
    change_feed_in_memory,
    increments,
    increments_seen,
    increments_by_function,
    increments_of_other_keys,
    increments_spread,
    joins_and_writes,
    writes_and_joins,
    two_joins_and_a_write,
    two_tables,
    split_and_merged,
    split_in_three,
    split_twice,
    merged_before_a_shuffle,
    two_writers,
    batch_functions,
    latest_of_two_branches,
    latest_with_itself,
    pairs_of_two_branches,
    pairs_of_all,
    latest_pair,
    repeated,
    counted,
    counted_and_merged,
    windows_of_branches,
    tasks,
    a_task_with_a_table,
    a_task_reads_what_its_input_writes,
    a_task_writes_what_its_input_joins,
    two_tasks_with_a_table,
    letters,
    late_and_timely,
    versions,
    reminders,
    panes_in_time,
]

messages = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 8)), min_size=1, max_size=40)
cuts = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def declared(declare: Declare) -> hr.App:
    app = hr.App("order")
    declare(app, app.input("i", COLUMNS, event_time="ts", lateness="8ms"))
    return app


def fed(flow: Flow, rows: pl.DataFrame, heights: list[int]) -> Flow:
    start = turn = 0
    while start < rows.height:
        batch = rows[start : start + heights[turn % len(heights)]]
        flow.rows("i", batch)
        start += batch.height
        turn += 1
        flow.watermark(i=int(rows[:start]["ts"].max()) - 8)  # type: ignore[arg-type]
        flow.clock(1000 + start)
    flow.watermark(i=10_000)
    return flow


@pytest.mark.parametrize("declare", CASES, ids=lambda declare: declare.__name__)
@settings(max_examples=examples(20), deadline=None)
@given(messages=messages, heights=cuts)
def test_results_are_those_of_one_message_at_a_time(
    declare: Declare, messages: list[tuple[int, int, int]], heights: list[int]
) -> None:
    rows = pl.DataFrame(
        [(k, v, 3 * n + early) for n, (k, v, early) in enumerate(messages)], schema=COLUMNS, orient="row"
    )
    plan = plan_of(declared(declare), "i")
    together, single = fed(Flow(plan), rows, heights), fed(OneAtATime(plan), rows, heights)
    assert together.written.rows == single.written.rows
    assert together.tables(KEYS) == single.tables(KEYS)
    assert together.metrics.counters == single.metrics.counters


def sessions_by_the_clock(app: hr.App, i: hr.Stream) -> None:
    near = i.window(hr.session("7ms"), key="k", time="processing", id="near")
    near.agg(n=pl.len(), vs=hr.aggregates.implode("v")).send_to(app.output("out"))


def windows_by_the_clock(app: hr.App, i: hr.Stream) -> None:
    for number, early in enumerate((None, hr.triggers.every(2), hr.triggers.every("4ms", time="processing"))):
        window = i.window(hr.tumbling("10ms"), key="k", time="processing", early=early, id=f"w{number}")
        window.agg(n=pl.len(), vs=hr.aggregates.implode("v")).send_to(app.output(f"out{number}"))


def branches_into_windows_by_the_clock(app: hr.App, i: hr.Stream) -> None:
    both = i.filter(odd).merge(i.filter(pl.col("v") < 5))
    sessions_by_the_clock(app, both)


def windows_by_the_clock_into_branches(app: hr.App, i: hr.Stream) -> None:
    near = i.window(hr.session("7ms"), key="k", time="processing", id="near").agg(n=pl.len(), v=pl.col("v").sum())
    few = near.filter(pl.col("n") < 3)
    few.merge(near.filter(odd)).select("k", "v").send_to(app.output("out"))
    t = table(app)
    near.join(t, how="left", suffix="_old").select("k", v=pl.col("v_old").fill_null(0) + pl.col("v")).send_to(t)
    few.join(t, how="left", suffix="_sum").send_to(app.output("sums"))


def panes_by_the_clock(app: hr.App, i: hr.Stream) -> None:
    for number, early in enumerate((hr.triggers.every("4ms", time="processing"), hr.triggers.every(3))):
        window = i.window(hr.tumbling("30ms"), key="k", early=early, id=f"w{number}")
        window.agg(n=pl.len(), vs=hr.aggregates.implode("v")).send_to(app.output(f"out{number}"))


class Alarms(hr.tasks.Task):
    """Sets alarms by the clock, and keeps the last message for some time."""

    last = hr.tasks.Store(key={"k": pl.Int64}, value={"v": pl.Int64}, ttl="12ms")

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        known = self.last.get(message["k"])
        out.send("notes", {"k": message["k"], "v": message["v"], "n": known["v"] if known else -1, "side": "message"})
        if message["v"] % 2:
            self.last.put(message["k"], {"v": message["v"]})
        out.set_timer(message["k"], out.now_ms + message["v"], axis="processing")

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        known = self.last.get(timer.key)
        out.send("notes", {"k": timer.key, "v": known["v"] if known else -1, "n": timer.time, "side": "timer"})


def alarms(app: hr.App, i: hr.Stream) -> None:
    both = i.filter(odd).merge(i.filter(pl.col("v") < 5))
    app.task(Alarms(), inputs={"i": both}, outputs={"notes": NOTES}, id="wake")["notes"].send_to(app.output("out"))


def expiring_table(app: hr.App, i: hr.Stream) -> None:
    t = table(app, ttl="12ms")
    i.filter(odd).select("k", "v").send_to(t)
    i.join(t, how="left", suffix="_then").send_to(app.output("out"))


def expiring_pairs(app: hr.App, i: hr.Stream) -> None:
    pairs = i.filter(odd).join_latest(i.filter(~odd), "k", how="full", ttl="12ms", id="pairs")
    pairs.send_to(app.output("out"))


BY_CLOCK: list[Declare] = [
    sessions_by_the_clock,
    windows_by_the_clock,
    branches_into_windows_by_the_clock,
    windows_by_the_clock_into_branches,
    panes_by_the_clock,
    alarms,
    expiring_table,
    expiring_pairs,
]

turns = st.lists(st.tuples(st.sampled_from(("rows", "clock", "restart")), st.integers(-40, 40)), max_size=12)


@pytest.mark.parametrize("declare", BY_CLOCK, ids=lambda declare: declare.__name__)
@settings(max_examples=examples(30), deadline=None)
@given(messages=messages, heights=cuts, turns=turns)
@example(  # a clock that a restart has set back
    messages=[(1, 1, 0), (1, 2, 0), (2, 2, 0)],
    heights=[1],
    turns=[("rows", 0), ("restart", -40), ("rows", 10), ("rows", 10), ("clock", 40)],
)
@example(  # what expires goes by the clock that was set back
    messages=[(1, 1, 0), (1, 2, 0)], heights=[1], turns=[("clock", 0), ("restart", -40), ("rows", 0), ("rows", 15)]
)
def test_what_goes_by_the_clock_is_that_of_one_message_at_a_time_after_restarts(
    declare: Declare, messages: list[tuple[int, int, int]], heights: list[int], turns: list[tuple[str, int]]
) -> None:
    rows = pl.DataFrame(messages, schema=COLUMNS, orient="row")
    task, now = Restarted(declared(declare), "i"), 1000
    task.begin(now)
    start = 0
    for turn, (what, moves) in enumerate([*turns, *[("rows", 3)] * len(messages), ("clock", 1000)]):
        now += moves
        batch = rows[start : start + heights[turn % len(heights)]]
        if what == "restart":
            task.restart(now)
        elif what == "clock" or not batch.height:
            task.clock(now)
        else:
            task.tell_time(now)
            task.rows("i", batch)
            start += batch.height
    assert task.written.rows == task.one_at_a_time()


def test_a_task_that_alone_uses_a_table_takes_whole_batches() -> None:
    assert not plan_of(declared(a_task_with_a_table), "i").order.meetings
    found = plan_of(declared(a_task_writes_what_its_input_joins), "i").order
    assert {"step"} < set(found.slow)
