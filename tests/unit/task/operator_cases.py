"""Apps with each operator, as users declare them: one ``Case`` for each way in which it can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import polars as pl
from both_ways import COLUMNS, NO_KEY, Case
from typing_extensions import override
from window_apps import (
    PAIR,
    Shape,
    another_time,
    as_sets,
    by_k,
    by_the_clock,
    by_time,
    computed_time,
    corrected,
    counts_in_windows,
    dates,
    final,
    global_window,
    like_ours,
    lists,
    merging,
    read,
    summed,
    ungrouped,
    whatever_order,
    window,
    window_of_rows,
    window_of_two,
    windows_in_one_task,
    windows_over_windows,
)

import headrace as hr
from headrace.api.operators.join import JoinHow
from headrace.rows.changes import CHANGE, KIND, added_up

# -- joins and tables -------------------------------------------------------------------------------


def interval(how: JoinHow) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        left, right = by_k(app, "views", lateness), by_k(app, "orders", lateness)
        left.join(right, "k", within=("-20ms", "30ms"), how=how, id="pairs").send_to(app.output("out"))

    return declare


def pairs_counted(app: hr.App, lateness: str) -> None:
    left, right = by_k(app, "views", lateness), by_k(app, "orders", lateness)
    pairs = left.join(right, "k", within="30ms", how="left", id="pairs").partition_by("g", id="by-g", partitions=2)
    pairs.window(hr.tumbling("100ms"), key="g", id="w").agg(n=pl.len(), r=hr.sum("id_right")).send_to(app.output("out"))


def latest(how: JoinHow) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        left, right = by_k(app, "views", lateness), by_k(app, "orders", lateness)
        left.join_latest(right, "k", ttl="1h", how=how, id="latest").send_to(app.output("out"))

    return declare


def filled_table(kind: str, storage: str) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        gone = pl.col("v") < 5
        columns = {"k": pl.Int64, "v": pl.Int64, "order": pl.Int64}
        table = app.table("known", "k", columns, kind=kind, storage=storage, deleted=gone, ttl="1d")
        filling = read(app, "orders", lateness).select("k", "v", "ts", order="id")
        if kind == "local":
            filling = filling.partition_by("k", id="orders-by-k", partitions=2)
        else:
            filling = filling.broadcast(id="orders-to-all")
        filling.select("k", "v", "order").send_to(table)
        looking = by_k(app, "views", lateness)
        looking.join(table, how="left").send_to(app.output("out"))
        filling.filter(pl.col("order") % 5 == 0).delete_from(table)

    return declare


def same_flow_fills_and_joins(app: hr.App, lateness: str) -> None:
    table = app.table("seen", "k", {"k": pl.Int64, "last": pl.Int64})
    flow = by_k(app, "views", lateness)
    flow.join(table, how="left").with_columns(new=pl.col("id")).select("k", "id", "last").send_to(app.output("out"))
    by_k(app, "orders", lateness).select("k", last="id").send_to(table)


def side_table(kind: str) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        table = app.table("known", "k", side_inputs=app.input("facts", COLUMNS), kind=kind)
        flow = read(app, "views", lateness).partition_by("k", id="views-by-k", partitions=1 if kind == "local" else 2)
        flow.join(table, how="inner").send_to(app.output("out"))

    return declare


def versions(app: hr.App, lateness: str) -> None:
    columns = {"k": pl.Int64, "rate": pl.Int64, "ts": pl.Int64}
    table = app.table("rates", "k", columns, versions="1h", deleted=pl.col("rate") % 7 == 0)
    filling = by_k(app, "orders", lateness)
    filling.select("k", pl.col("id").alias("rate"), "ts").send_to(table)
    by_k(app, "views", lateness).join(table, how="left", id="as-of").send_to(app.output("out"))


def side_versions(app: hr.App, lateness: str) -> None:
    facts = app.input("facts", COLUMNS, event_time="ts")
    table = app.table("known", "k", side_inputs=facts, kind="global", versions="1h")
    read(app, "views", lateness).join(table, how="left", id="as-of").send_to(app.output("out"))


def versions_and_more(app: hr.App, lateness: str) -> None:
    """Windows after a look-up in a table of versions, in the same task and behind a shuffle."""
    columns = {"k": pl.Int64, "rate": pl.Int64, "ts": pl.Int64}
    table = app.table("rates", "k", columns, versions="1h")
    by_k(app, "orders", lateness).select("k", pl.col("id").alias("rate"), "ts").send_to(table)
    rated = by_k(app, "views", lateness).join(table, how="inner", id="as-of")
    rated.window(hr.tumbling("80ms"), key="k", id="here").agg(r=hr.sum("rate"), n=pl.len()).send_to(
        app.output("in-task")
    )
    there = rated.partition_by("g", id="by-g", partitions=2).window(hr.session("40ms"), key="g", id="there")
    there.agg(r=hr.sum("rate"), **by_time()).send_to(app.output("in-stage"))


def _fetched(keys: pl.DataFrame) -> list[dict[str, object]]:
    return [{"k": key, "name": f"n{key}"} for key in keys["k"] if key % 3]


async def _awaited(keys: pl.DataFrame) -> list[dict[str, object]]:
    await asyncio.sleep(0)
    return _fetched(keys)


def remote(cached: bool) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        far = hr.tables.cached(hr.tables.remote(_awaited)) if cached else hr.tables.remote(_fetched)
        table = app.table("names", "k", {"k": pl.Int64, "name": pl.String}, remote=far)
        named = read(app, "views", lateness).join(table, how="left" if cached else "inner")
        named.send_to(app.output("out"))
        counts = named.partition_by("name", id="by-name").window(hr.tumbling("60ms"), key="name", id="w")
        counts.agg(n=pl.len(), last=hr.aggregates.last("id")).send_to(app.output("counts"))

    return declare


# -- other operators with state ---------------------------------------------------------------------


def deduplicate(app: hr.App, lateness: str) -> None:
    once = by_k(app, "views", lateness).deduplicate(["k", "g"], within="50ms", id="once")
    once.send_to(app.output("out"))
    once.window(hr.tumbling("90ms"), key="k", id="w").agg(n=pl.len()).send_to(app.output("counts"))


def deduplicate_two(app: hr.App, lateness: str) -> None:
    both = by_k(app, "views", lateness).merge(by_k(app, "orders", lateness))
    both.deduplicate("k", within="40ms", id="once").send_to(app.output("out"))


def deduplicated_times(app: hr.App, lateness: str) -> None:
    by_k(app, "views", lateness).deduplicate("k", within="50ms", id="once").select("k", "ts").send_to(app.output("out"))


class Machine(hr.tasks.Task):
    """Keeps a sum and a count by key; reports what a key had when nothing came for 25 ms, and at the end."""

    sums = hr.tasks.Store(key={"k": pl.Int64}, value={"total": pl.Int64, "n": pl.Int64})

    @override
    def process(self, message: dict[str, object], out: hr.tasks.Out) -> None:
        if message["k"] == NO_KEY:
            return
        key, so_far = message["k"], self.sums.get(message["k"]) or {"total": 7, "n": 0}
        if message["id"] == 13:
            raise ValueError("unlucky")
        total = (so_far["total"] * 31 + message["id"]) % 1_000_003
        self.sums.put(key, {"total": total, "n": so_far["n"] + 1})
        out.set_timer(key, message["ts"] + 25)
        if so_far["n"] % 3 == 2:
            out.delete_timer(key)
            out.set_timer(key, message["ts"] + 71, name="later")
        out.send("each", {"k": key, "total": total, "ts": message["ts"]})

    @override
    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        kept = self.sums.get(timer.key)
        out.send("quiet", {"k": timer.key, "name": timer.name, "ts": timer.time, **kept})
        if timer.name:
            self.sums.delete(timer.key)
        elif kept["n"] % 2:
            out.set_timer(timer.key, timer.time + 12)
            self.sums.put(timer.key, {"total": kept["total"], "n": kept["n"] + 1})

    @override
    def on_end_of_stream(self, out: hr.tasks.Out) -> None:
        for key, kept in self.sums.items():
            out.send("rest", {"k": key[0] if isinstance(key, tuple) else key, **kept})


MACHINE_OUT = {
    "each": {"k": pl.Int64, "total": pl.Int64, "ts": pl.Int64},
    "quiet": {"k": pl.Int64, "name": pl.String, "ts": pl.Int64, "total": pl.Int64, "n": pl.Int64},
    "rest": {"k": pl.Int64, "total": pl.Int64, "n": pl.Int64},
}


def low_level(on_error: str, *inputs: str) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        letters = app.output("letters") if on_error == "dead_letter" else None
        flows = app.task(
            Kept(),
            {name: by_k(app, name, lateness) for name in inputs},
            MACHINE_OUT,
            id="machine",
            on_error=on_error,
            dead_letter=letters,
        )
        for name, flow in flows.items():
            flow.send_to(app.output(name))
        counts = flows["quiet"].partition_by("n", id="by-n", partitions=2).window(hr.tumbling("50ms"), key="n", id="w")
        counts.agg(of=pl.len(), last=hr.max("total")).send_to(app.output("counts"))

    return declare


class Kept(Machine):
    """The same; its timers may find that the other one of the key has deleted what they report."""

    sums = hr.tasks.Store(key={"k": pl.Int64}, value={"total": pl.Int64, "n": pl.Int64})

    @override
    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        if timer.key in self.sums:
            super().on_timer(timer, out)


class InBatches(hr.tasks.Task):
    """Counts by key, a DataFrame at a time."""

    counts = hr.tasks.Store(key={"k": pl.Int64}, value={"n": pl.Int64})

    @override
    def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None:
        new = rows.group_by("k").agg(n=pl.len().cast(pl.Int64))
        before = self.counts.get_rows(new.select("k")).get_column("n").fill_null(0)
        self.counts.put_rows(new.with_columns(n=pl.col("n") + before))

    @override
    def on_end_of_stream(self, out: hr.tasks.Out) -> None:
        for rows in self.counts.scan():
            out.send("counts", rows)


def task_of_batches(app: hr.App, lateness: str) -> None:
    flow = by_k(app, "views", lateness).process(InBatches(), {"counts": {"k": pl.Int64, "n": pl.Int64}}, id="n")
    flow["counts"].send_to(app.output("out"))


# -- without state ----------------------------------------------------------------------------------


def flows(app: hr.App, lateness: str) -> None:
    """Expressions, split, sample, merge, drop_late, and a stage of each."""
    views, orders = read(app, "views", lateness), read(app, "orders", lateness)
    parts = views.split({"odd": pl.col("id") % 2 == 1, "low": pl.col("v") < 10}, others="rest")
    parts["odd"].select("id", "ts", twice=pl.col("v") * 2).drop("ts").send_to(app.output("odd"))
    parts["low"].rename({"v": "low"}).send_to(app.output("low"))
    parts["rest"].sample(0.5, key="k").merge(orders).drop_late(late_to=app.output("late")).send_to(app.output("rest"))


def chain(app: hr.App, lateness: str) -> None:
    flow = by_k(app, "views", lateness).partition_by(["g", (pl.col("v") % 3).alias("m")], id="by-g-m", partitions=3)
    again = flow.broadcast(id="to-all").filter(pl.col("id") > 2).partition_by("id", id="by-id", partitions=2)
    again.deduplicate("id", within="1ms", id="once").send_to(app.output("out"), key="id")


def broadcast_input(app: hr.App, lateness: str) -> None:
    """Every task gets every message, and here there are as many tasks live as in batch: each counts its own."""
    views = app.input("views", COLUMNS, event_time="ts", lateness=lateness)
    to_all = views.broadcast(id="to-all")
    seen = by_k(app, "orders", lateness).merge(to_all)
    seen.window(hr.tumbling("100ms"), key=None, id="w").agg(n=pl.len(), first=hr.aggregates.first("id")).send_to(
        app.output("out")
    )


def _positive(row: dict[str, int]) -> bool:
    return (10 // (row["id"] % 4)) > 3  # raises for every fourth


def _mapped(row: dict[str, int]) -> dict[str, object]:
    return {"id": row["id"], "k": row["k"], "inverse": 100 // (row["id"] % 5), "ts": row["ts"]}


def _several(row: dict[str, int]) -> list[dict[str, object]]:
    return [{"id": row["id"], "part": 60 // (row["k"] - part), "ts": row["ts"]} for part in range(row["id"] % 3)]


def _doubled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("id", "ts", double=pl.col("v") * 2)


async def _located(row: dict[str, int]) -> dict[str, object]:
    await asyncio.sleep(0)
    return _mapped(row)


MAPPED = {"id": pl.Int64, "k": pl.Int64, "inverse": pl.Int64, "ts": pl.Int64}
PARTS = {"id": pl.Int64, "part": pl.Int64, "ts": pl.Int64}


def functions(on_error: str) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        letters = app.output("letters") if on_error == "dead_letter" else None
        policy = {"on_error": on_error, "dead_letter": letters}
        views = read(app, "views", lateness)
        views.filter(_positive, **policy).send_to(app.output("filtered"))
        views.map(_mapped, MAPPED, **policy).send_to(app.output("mapped"))
        views.flat_map(_several, PARTS, **policy).send_to(app.output("several"))
        views.map_batches(_doubled, {"id": pl.Int64, "ts": pl.Int64, "double": pl.Int64}).send_to(app.output("doubled"))

    return declare


def functions_with_state(app: hr.App, lateness: str) -> None:
    """Functions after a window, and before one."""
    views = by_k(app, "views", lateness).map(_mapped, MAPPED, on_error="skip")
    sums = views.window(hr.session("25ms"), key="k", id="w").agg(of=hr.sum("inverse"), id=pl.len())
    sums.flat_map(_named, {"k": pl.Int64, "of": pl.Int64}).send_to(app.output("out"))


def _named(row: dict[str, int]) -> list[dict[str, object]]:
    return [{"k": row["k"], "of": row["of"]}] * (row["id"] % 3)


def called(ordered: bool) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        retry = hr.calls.retry(attempts=1)
        views = read(app, "views", lateness)
        letters = app.output("letters")
        located = views.map_async(
            _located, MAPPED, concurrency=3, ordered=ordered, retry=retry, on_error="dead_letter", dead_letter=letters
        )
        located.send_to(app.output("located"))
        counts = located.partition_by("k", id="by-k", partitions=2).window(hr.tumbling("60ms"), key="k", id="w")
        counts.agg(n=pl.len(), v=hr.sum("inverse")).send_to(app.output("counts"))

    return declare


def letters(rows: pl.DataFrame) -> pl.DataFrame:
    """Without positions, if these are letters: there, messages are at others."""
    if "reason" not in rows.columns or "step" not in rows.columns:
        return rows
    return rows.select("step", "reason", "row", "line")


_EARLY = {"early": hr.triggers.every(2)}
_SHAPES: dict[str, Shape] = {
    "tumbling": hr.tumbling("100ms", offset="30ms"),
    "hopping": hr.hopping("120ms", "40ms"),
    "sliding": hr.windows.sliding("60ms"),
    "session": hr.session("40ms"),
}


def running(every: str | None, *, changes: bool) -> Callable[[hr.App, str], None]:
    def declare(app: hr.App, lateness: str) -> None:
        grouped = by_k(app, "views", lateness)
        if changes:  # the counts of k change, and so do those of g
            counted = grouped.group_by(id="counts").agg(v=pl.len(), g=pl.col("g").max(), ts=pl.col("ts").max())
            grouped = counted.partition_by("g", id="by-g").group_by(id="running", every=every)
        else:
            grouped = grouped.group_by(id="running", every=every)
        results = grouped.agg(
            n=pl.len(),
            sum=pl.col("v").sum(),
            least=pl.col("v").min(),
            different=pl.col("v").filter(pl.col("v") > 3).drop_nulls().n_unique(),
            last=hr.aggregates.last(pl.col("v")) if not changes else pl.col("v").max(),
            three=hr.aggregates.top_k("v", 3),
        )
        results.as_rows().send_to(app.output("out"))

    return declare


def what_is_left(changes: pl.DataFrame) -> pl.DataFrame:
    return added_up(changes.select(pl.exclude("change"), pl.col("change").cast(KIND).alias(CHANGE)))


CASES = [
    *(
        Case(f"group_by{' of changes' * changes}, every={every}", running(every, changes=changes), settled=what_is_left)
        for changes in (False, True)
        for every in (None, "50ms")
    ),
    *(Case(name, window(shape, whatever_order, by_time)) for name, shape in _SHAPES.items()),
    *(Case(f"{name} with ties", window(shape, whatever_order), ties=True) for name, shape in _SHAPES.items()),
    *(Case(f"{name} of rows", window_of_rows(shape)) for name, shape in _SHAPES.items()),
    *(Case(f"{name} of functions", window(shape, merging)) for name, shape in _SHAPES.items()),
    *(
        Case(f"{name} with early panes", window(_SHAPES[name], whatever_order, by_time, **_EARLY), settled=final)
        for name in ("tumbling", "hopping", "session")
    ),
    Case(
        "tumbling, discarding",
        window(_SHAPES["tumbling"], whatever_order, early=hr.triggers.every(2), panes="discarding"),
        settled=summed,
    ),
    Case("count", window_of_rows(hr.windows.count(4))),
    Case("count, each", window_of_rows(hr.windows.count(4, every=1))),
    Case("global", global_window),
    Case("lists before the shuffle", window(_SHAPES["tumbling"], lists), settled=as_sets),
    Case("no key", ungrouped),
    Case("two flows in a window", window_of_two, PAIR),
    Case("windows over windows", windows_over_windows),
    Case("windows in one task", windows_in_one_task),
    Case("windows over counts", counts_in_windows, settled=corrected),
    Case("event time of another column", dates),
    Case("window by another time", another_time),
    Case("time of a function", computed_time, PAIR),
    Case("columns named like ours", like_ours),
    Case("by the clock", by_the_clock),
    *(Case(f"interval join, {how}", interval(how), PAIR) for how in ("inner", "left", "full")),
    *(Case(f"interval join with ties, {how}", interval(how), PAIR, ties=True) for how in ("inner", "left", "full")),
    Case("interval join, counted", pairs_counted, PAIR),
    *(Case(f"latest join, {how}", latest(how), PAIR) for how in ("inner", "left", "full")),
    Case("table", filled_table("local", "disk"), PAIR),
    Case("table in memory", filled_table("local", "memory"), PAIR),
    Case("global table", filled_table("global", "disk"), PAIR),
    Case("table of two flows", same_flow_fills_and_joins, PAIR),
    Case("side input", side_table("local"), sides=("facts",)),
    Case("global side input", side_table("global"), sides=("facts",)),
    Case("side input of versions", side_versions, sides=("facts",)),
    Case("versions", versions, PAIR),
    Case("windows after versions", versions_and_more, PAIR),
    Case("remote table", remote(False)),
    Case("cached remote table", remote(True)),
    Case("deduplicate", deduplicate),
    Case("deduplicate with ties", deduplicated_times, ties=True),
    Case("deduplicate two flows", deduplicate_two, PAIR),
    Case("low-level task", low_level("skip", "views"), ticks=True),
    Case(
        "low-level task of two inputs", low_level("dead_letter", "views", "orders"), PAIR, ticks=True, settled=letters
    ),
    Case("low-level task of batches", task_of_batches),
    Case("flows", flows, PAIR),
    Case("chain", chain),
    Case("broadcast", broadcast_input, PAIR),
    Case("functions that raise", functions("skip")),
    Case("functions with letters", functions("dead_letter"), settled=letters),
    Case("functions around windows", functions_with_state),
    Case("calls in order", called(True), settled=letters),
    Case("calls in any order", called(False), settled=letters),
]
