"""Flows of any steps, with restarts at any moment: calls that take time change nothing in what comes of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from headrace.api.specs import Guarantee, Role

# The time has the name that results of windows give it, so that steps can come in any order.
ROW = {"k": pl.Int64, "v": pl.Int64, "window_end": pl.Int64}
RATES = {"k": pl.Int64, "rate": pl.Int64, "window_end": pl.Int64}
LATENESS_MS = 30
SPAN_MS = 40

Step = Callable[[hr.App, hr.Stream, str, bool], hr.Stream]


def plus_one(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"v": row["v"] + 1}


async def plus_one_later(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(random.choice((0, 0, 0.001, 0.003)))
    return plus_one(row)


def called(app: hr.App, flow: hr.Stream, id_: str, waits: bool, *, ordered: bool = True) -> hr.Stream:
    return flow.map_async(plus_one_later, ROW, ordered=ordered, concurrency=3) if waits else flow.map(plus_one, ROW)


def called_as_it_comes(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    return called(app, flow, id_, waits, ordered=False)


def names_of(keys: pl.DataFrame) -> pl.DataFrame:
    return keys.filter(pl.col("k") % 3 != 0).with_columns(name=pl.col("k") * 10)


async def names_later(keys: pl.DataFrame) -> pl.DataFrame:
    await asyncio.sleep(random.choice((0, 0.001, 0.003)))
    return names_of(keys)


def named(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    if not waits:
        by_name = pl.when(pl.col("k") % 3 != 0).then(pl.col("k") * 10).otherwise(0)
        return flow.with_columns(v=pl.col("v") + by_name)
    table = app.table(
        id_, key="k", schema={"k": pl.Int64, "name": pl.Int64}, remote=hr.tables.remote(names_later, batch=2)
    )
    found = flow.join(table, how="left").with_columns(v=pl.col("v") + pl.col("name").fill_null(0))
    return found.select(*ROW)


def filtered(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    return flow.filter(pl.col("v") % 7 != 0)


def dealt(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    return flow.partition_by("k", id=id_)


def windowed(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    summed = {"v": hr.sum("v")}
    dealt = flow.partition_by("k", id=f"{id_}-dealt")
    return dealt.window(hr.tumbling(f"{SPAN_MS}ms"), key="k", id=id_).agg(**summed).select(*ROW)


class Summing(hr.tasks.Task):
    """What ``windowed`` does, by timers."""

    sums = hr.tasks.Store(key={"k": pl.Int64, "end": pl.Int64}, value={"v": pl.Int64})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        end = (message["window_end"] // SPAN_MS + 1) * SPAN_MS
        key = (message["k"], end)
        known = self.sums.get(key)
        self.sums.put(key, {"v": message["v"] + (known["v"] if known else 0)})
        out.set_timer(key, end)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        found = self.sums.get(timer.key)
        assert found is not None
        self.sums.delete(timer.key)
        out.send("sums", {"k": timer.key[0], "v": found["v"], "window_end": timer.time})


def summed(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    dealt = flow.partition_by("k", id=f"{id_}-dealt")
    return app.task(Summing(), {"rows": dealt}, {"sums": ROW}, id=id_)["sums"]


def rated(app: hr.App, flow: hr.Stream, id_: str, waits: bool) -> hr.Stream:
    """As of their times, from a table that a flow with calls fills."""
    table = app.table(id_, key="k", schema=RATES, versions="1h")
    rates = app.input(f"{id_}-in", RATES, event_time="window_end", lateness=f"{LATENESS_MS}ms")
    if waits:
        rates = rates.map_async(kept_later, RATES, ordered=False)
    rates.partition_by("k", id=f"{id_}-rates").send_to(table)
    dealt = flow.partition_by("k", id=f"{id_}-dealt").join(table, how="left", id=f"{id_}-join")
    return dealt.with_columns(v=pl.col("v") + pl.col("rate").fill_null(0)).select(*ROW)


async def kept_later(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(random.choice((0, 0, 0.001)))
    return row


STEPS: list[Step] = [called, called_as_it_comes, named, filtered, dealt, windowed, summed, rated]


def flow_of(steps: list[Step], waits: bool, guarantee: Guarantee) -> hr.App:
    app = hr.App("flows", guarantee=guarantee, intermediate_partitions=2)
    flow = app.input("rows", ROW, event_time="window_end", lateness=f"{LATENESS_MS}ms")
    other = app.input("others", ROW, event_time="window_end", lateness=f"{LATENESS_MS}ms")
    flow = flow.merge(called(app, other, "", waits))
    for number, step in enumerate(steps):
        flow = step(app, flow, f"{step.__name__.replace('_', '-')}-{number}", waits)
    flow.send_to(app.output("out"))
    return app


def rows_of(seed: int, batches: int) -> list[pl.DataFrame]:
    """Batches that are shuffled in time, never later than allowed."""
    draw = random.Random(seed)
    found = []
    for batch in range(batches):
        count = draw.randrange(1, 8)
        times = [1_000 + batch * 50 + draw.randrange(50) for _ in range(count)]
        highest = max(0, 1_000 + batch * 50 - LATENESS_MS)
        times = [max(time - draw.randrange(LATENESS_MS), highest) for time in times]
        values = [[draw.randrange(4), draw.randrange(100), time] for time in times]
        found.append(pl.DataFrame(values, schema=ROW, orient="row"))
    return found


MOMENTS = ["turn", "second", "restart", "settle"]


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    moments=st.lists(st.lists(st.sampled_from(MOMENTS), max_size=4), min_size=1, max_size=5),
)
def test_calls_change_nothing_in_what_comes_of_a_flow(steps: list[Step], seed: int, moments: list[list[str]]) -> None:
    assert outcome(steps, seed, moments, waits=True) == outcome(steps, seed, [[] for _ in moments], waits=False)


@settings(max_examples=examples(30), deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=4),
    seed=st.integers(0, 2**31),
    moments=st.lists(st.lists(st.sampled_from(["turn", "second", "settle"]), max_size=4), min_size=1, max_size=5),
)
def test_calls_change_nothing_without_barriers_either(steps: list[Step], seed: int, moments: list[list[str]]) -> None:
    found = outcome(steps, seed, moments, waits=True, guarantee="at_least_once")
    assert found == outcome(steps, seed, [[] for _ in moments], waits=False, guarantee="at_least_once")


def outcome(
    steps: list[Step], seed: int, moments: list[list[str]], *, waits: bool, guarantee: Guarantee = "exactly_once"
) -> list[tuple[int, ...]]:
    """What the app has sent in the end. ``moments`` say what happens behind each round of messages."""
    app = flow_of(steps, waits, guarantee)
    inputs = sorted(name for name, spec in app.graph().streams.items() if spec.role is Role.SOURCE)
    batches = {name: rows_of(seed + n, len(moments)) for n, name in enumerate(inputs)}
    partitions = {name: 1 + (seed + n) % 2 for n, name in enumerate(inputs)}
    partitions["rows"] = partitions["others"]
    with app.test(partitions) as t:
        for batch, between in enumerate(moments):
            for name in inputs:
                for partition in range(partitions[name]):
                    part = batches[name][batch][partition :: partitions[name]]
                    if name not in ("rows", "others"):
                        part = part.select("k", pl.col("window_end").alias("rate"), "window_end")
                    t.feed(name, part, partition=partition, settle=False)
            for moment in between:
                if moment == "turn":
                    t._container.turn()
                elif moment == "second":
                    t.clock.advance(1000)
                    t._container.turn()
                elif moment == "restart":
                    t.restart()
                elif moment == "settle":
                    t.settle()
            if not waits:
                t.settle()
        t.end()
        assert t.ended
        assert t.counter("late") == 0
        return sorted(t.read("out", committed=guarantee == "exactly_once").select(*ROW).rows())
