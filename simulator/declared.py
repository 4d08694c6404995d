"""The apps whose real operators are simulated: declared as users declare them, planned once, small and hard.

``CASES`` says of each how it is declared, and what its outputs must hold for given inputs (``expected``). All inputs
have the same columns; ``lateness`` covers the disorder that is drawn, so nothing is ever late and the outputs follow
from the messages alone, whatever order they arrive in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl
from typing_extensions import override

from headrace.api.aggregates import count, max, sum
from headrace.api.descriptors import files
from headrace.api.operators.join import JoinHow
from headrace.api.remote import cached, remote, retry
from headrace.api.tasks import Out, Store, Task, Timer
from headrace.api.windows import every, hopping, session, sliding, tumbling
from headrace.app import App
from headrace.core.errors import DataError
from simulator import (
    apart,
    branched,
    caching,
    changed,
    changing_rows,
    clocked,
    counted,
    expected,
    expiry,
    idleness,
    lateness,
    mapped,
    slotted,
)
from simulator.calls import answer, write
from simulator.case import COLUMNS, DISORDER, AppCase, read, ticks
from simulator.expected import TICK_MS


def _declare_counts(app: App, lateness: int = DISORDER) -> None:
    """Windows over windows: two shuffles, both of partial results."""
    per_key = (
        read(app, "views", lateness)
        .partition_by("k", id="by-k", partitions=2)
        .window(tumbling(ticks(20)), key="k", id="per-key")
        .agg(n=count(), ids=sum("id"))
    )
    (
        per_key.with_columns(g=pl.col("k") % 2)
        .partition_by("g", id="by-g", partitions=2)
        .window(tumbling(ticks(60)), key="g", id="per-group")
        .agg(n=sum("n"), ids=sum("ids"), most=max("n"))
        .send_to(app.output("counts", partitions=1))
    )


def _declare_panes(app: App) -> None:
    """Hopping windows that emit early, after a shuffle of messages as they are."""
    (
        read(app, "views")
        .partition_by("k", id="by-k", partitions=2)
        .filter(pl.col("id") > 0)
        .window(hopping(ticks(40), every=ticks(20)), key="k", id="per-hop", early=every(2))
        .agg(n=count(), ids=sum("id"))
        .partition_by("k", id="again", partitions=1)
        .send_to(app.output("panes", partitions=1))
    )


def _declare_sessions(app: App) -> None:
    """Sessions, summed up by windows behind a second shuffle."""
    (
        read(app, "views")
        .partition_by("k", id="by-k", partitions=2)
        .window(session(ticks(15)), key="k", id="sessions")
        .agg(n=count(), ids=sum("id"))
        .partition_by("n", id="by-length", partitions=2)
        .window(tumbling(ticks(80)), key="n", id="per-length")
        .agg(sessions=count(), ids=sum("ids"))
        .send_to(app.output("lengths", partitions=2))
    )


def _declare_sliding(app: App) -> None:
    """What a key had in the last ticks, at each message."""
    (
        read(app, "views")
        .partition_by("k", id="by-k", partitions=2)
        .window(sliding(ticks(12)), key="k", id="near")
        .agg(n=count(), ids=sum("id"))
        .send_to(app.output("lately", partitions=2))
    )


def _declare_latest(app: App) -> None:
    """The last message of each key on the other side, whichever it is by then."""
    left = read(app, "views").partition_by("k", id="left", partitions=2)
    right = read(app, "orders").partition_by("k", id="right", partitions=2)
    left.join_latest(right, "k", ttl="1h", id="latest").send_to(app.output("pairs", partitions=1))


def _declare_versions(app: App) -> None:
    """What a table had at the time of a message; messages wait for the tasks that fill it."""
    rates = app.table("rates", key="k", schema={"k": pl.Int64, "rate": pl.Int64, "ts": pl.Int64}, versions="1h")
    filling = read(app, "orders").partition_by("k", id="orders-by-k", partitions=2)
    filling.select("k", "ts", rate="id").select("k", "rate", "ts").send_to(rates)
    looking = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    looking.join(rates, how="left", id="as-of").select("id", "rate").send_to(app.output("rated", partitions=1))


def _declare_join(app: App, how: JoinHow, lateness: int = DISORDER) -> None:
    left = read(app, "views", lateness).partition_by("k", id="left", partitions=2)
    right = read(app, "orders", lateness).partition_by("k", id="right", partitions=2)
    joined = left.join(right, on="k", how=how, within=(ticks(-15), ticks(25)), id="paired")
    joined.send_to(app.output("pairs", partitions=2))


def _declare_counted_pairs(app: App) -> None:
    """A join of two shuffles, counted behind a third."""
    left = read(app, "views").partition_by("k", id="left", partitions=2)
    right = read(app, "orders").partition_by("k", id="right", partitions=2)
    (
        left.join(right, on="k", within=ticks(20), id="paired")
        .with_columns(g=pl.col("id") % 2)
        .partition_by("g", id="by-g", partitions=1)
        .window(tumbling(ticks(8)), key="g", id="counted")
        .agg(n=count(), ids=sum("id_right"))
        .send_to(app.output("pairs", partitions=1))
    )


def _declare_table(app: App) -> None:
    """A table that one flow fills and another looks up, both behind a shuffle: one stage."""
    profiles = app.table("profiles", key="k", schema={"k": pl.Int64, "profile": pl.Int64})
    filling = read(app, "changes").partition_by("k", id="changes-by-k", partitions=2)
    filling.select("k", profile="id").send_to(profiles)
    looking = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    looking.join(profiles, how="left").send_to(app.output("found", partitions=1))


def _declare_side_input(app: App) -> None:
    """A table kept by a side input, which is read to its end before anything else."""
    changes = app.input("changes", COLUMNS)
    known = app.table("known", key="k", side_inputs=[changes], kind="global")
    looking = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    looking.join(known, how="left").send_to(app.output("found", partitions=1))


def _declare_mixed(app: App) -> None:
    """A stage that reads a source and an intermediate stream, and another shuffle behind it."""
    shuffled = read(app, "views").partition_by("k", id="by-k", partitions=2)
    (
        shuffled.merge(read(app, "orders", key=("k",)))
        .window(tumbling(ticks(30)), key="k", id="by-task")
        .agg(n=count(), ids=sum("id"))
        .partition_by("k", id="again", partitions=2)
        .window(tumbling(ticks(30)), key="k", id="together")
        .agg(n=sum("n"), ids=sum("ids"))
        .send_to(app.output("counts", partitions=1))
    )


def _declare_distinct(app: App) -> None:
    """The second message of an id is left out; then what is left is counted."""
    once = (
        read(app, "views").partition_by("id", id="by-id", partitions=2).deduplicate("id", within=ticks(20), id="once")
    )
    once.select("id").send_to(app.output("ids", partitions=1))
    (
        once.partition_by("k", id="by-k", partitions=2)
        .window(tumbling(ticks(1000)), key="k", id="per-key")
        .agg(n=count())
        .send_to(app.output("counts", partitions=1))
    )


def _declare_outbox(app: App, lateness: int = DISORDER) -> None:
    """Results go into a foreign system, from a windowed stage and from one without other state."""
    views = read(app, "views", lateness).partition_by("k", id="by-k", partitions=2)
    views.select("id", "k").send_to(app.output("seen", system=files("seen", format="parquet")))
    views.window(tumbling(ticks(20)), key="k", id="per-key").agg(n=count(), ids=sum("id")).send_to(
        app.output("report", system=files("report", format="parquet"))
    )


_PATIENT = retry(None, "2ms", longest="20ms")
_PRICED: dict[str, pl.DataType] = {**COLUMNS, "price": pl.Int64()}


async def _priced(row: dict[str, int]) -> dict[str, int]:
    """Ask what a message costs; of some nobody knows."""
    await answer()
    if expected.unpriced(row["id"]):
        raise DataError(f"message {row['id']} has no price")  # asking again is of no use
    return {**row, "price": expected.price(row["id"])}


async def _checked(row: dict[str, int]) -> dict[str, int]:
    await answer()
    return row


def _declare_async(app: App, *, ordered: bool) -> None:
    """Calls in a stage that commits by the clock, and others in one that commits on command and counts them itself."""
    asked = read(app, "views").map_async(
        _priced,
        _PRICED,
        concurrency=3,
        ordered=ordered,
        timeout="50ms",
        retry=_PATIENT,
        on_error="dead_letter",
        dead_letter=app.output("unpriced"),
        id="priced",
    )
    (
        asked.partition_by("k", id="by-k", partitions=2)
        .map_async(_checked, _PRICED, concurrency=2, ordered=not ordered, timeout="50ms", retry=_PATIENT, id="checked")
        .window(tumbling(ticks(20)), key="k", id="per-key")
        .agg(n=count(), prices=sum("price"))
        .with_columns(g=pl.col("k") % 2)
        .partition_by("g", id="by-g", partitions=2)
        .window(tumbling(ticks(60)), key="g", id="per-group")
        .agg(n=sum("n"), prices=sum("prices"))
        .send_to(app.output("prices", partitions=1))
    )


async def _fetch_names(keys: pl.DataFrame) -> list[dict[str, int]]:
    await answer()
    return [{"k": k, "name": expected.name_of(k)} for k in keys["k"] if expected.named(k)]


async def _fetch_groups(keys: pl.DataFrame) -> pl.DataFrame:
    await answer()
    return keys.with_columns(group=pl.col("name") % 2)


def _declare_remote(app: App) -> None:
    """A remote table with a cache before a shuffle, one with a rate behind it; both before windows."""
    columns = {"k": pl.Int64, "name": pl.Int64}
    names = remote(_fetch_names, batch=2, concurrency=2, timeout="50ms", retry=_PATIENT)
    table = app.table("names", key="k", schema=columns, remote=cached(names, rows=2, ttl="100ms"))
    named = read(app, "views").join(table, how="left").partition_by("k", id="by-k", partitions=2)
    asked = remote(_fetch_groups, batch=3, concurrency=1, timeout="50ms", retry=_PATIENT, reads_per_s=2000)
    groups = app.table("groups", key="name", schema={"name": pl.Int64, "group": pl.Int64}, remote=asked)
    (
        named.join(groups, on="name", how="inner")
        .window(tumbling(ticks(20)), key=["k", "group"], id="by-task")
        .agg(n=count(), ids=sum("id"))
        .partition_by("group", id="by-group", partitions=2)
        .window(tumbling(ticks(20)), key="group", id="per-group")
        .agg(n=sum("n"), ids=sum("ids"))
        .send_to(app.output("groups-out", partitions=1))
    )


async def _write_counts(rows: pl.DataFrame) -> None:
    """The answer gets lost at times, when the rows are there already."""
    await answer()
    write("per-key", (((row["k"], row["start"]), row) for row in rows.to_dicts()))
    await answer()


def _declare_written(app: App) -> None:
    """Results into a remote table, by calls that may be made more than once."""
    columns = {"k": pl.Int64, "start": pl.Int64, "n": pl.Int64, "ids": pl.Int64}
    kept = remote(write=_write_counts, batch=2, timeout="50ms", retry=_PATIENT)
    table = app.table("counts", key=("k", "start"), schema=columns, remote=kept)
    (
        read(app, "views")
        .partition_by("k", id="by-k", partitions=2)
        .window(tumbling(ticks(20)), key="k", id="per-key")
        .agg(n=count(), ids=sum("id"))
        .select("k", "n", "ids", start="window_start")
        .send_to(table)
    )


_BY_HAND_MS = 30 * TICK_MS


class _ByHand(Task):
    """Counts by key and 30 ticks, with a store and timers; a timer lets the orders of its window go as well."""

    windows = Store(key={"k": pl.Int64, "start": pl.Int64}, value={"n": pl.Int64, "ids": pl.Int64})
    orders = Store(key={"k": pl.Int64, "id": pl.Int64}, value={"ts": pl.Int64})

    @override
    def process(self, message: dict[str, int], out: Out) -> None:
        """Add to the window of a message."""
        key = message["k"], expected.start_of(message["ts"], 30)
        before = self.windows.get(key) or {"n": 0, "ids": 0}
        self.windows.put(key, {"n": before["n"] + 1, "ids": before["ids"] + message["id"]})
        out.set_timer(key, key[1] + _BY_HAND_MS)
        if out.input == "orders":
            self.orders.put((message["k"], message["id"]), {"ts": message["ts"]})

    @override
    def on_timer(self, timer: Timer, out: Out) -> None:
        """The window is complete."""
        k, start = timer.key
        out.send("windows", {"k": k, "start": start, "end": start + _BY_HAND_MS - 1, **self.windows.get(timer.key)})
        self.windows.delete(timer.key)
        for key, order in list(self.orders.items(k)):
            if order["ts"] < start + _BY_HAND_MS:
                out.send("orders", {"k": k, "id": key[1], "end": start + _BY_HAND_MS - 1})
                self.orders.delete(key)


def _declare_task(app: App) -> None:
    """A low-level task with two inputs and two outputs, between shuffles; a window counts what it counted."""
    views = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    orders = read(app, "orders").partition_by("k", id="orders-by-k", partitions=2)
    flows = app.task(
        _ByHand(),
        {"views": views, "orders": orders},
        {
            "windows": {"k": pl.Int64, "start": pl.Int64, "end": pl.Int64, "n": pl.Int64, "ids": pl.Int64},
            "orders": {"k": pl.Int64, "id": pl.Int64, "end": pl.Int64},
        },
        event_time="end",
        id="by-hand",
    )
    flows["orders"].send_to(app.output("orders-out", partitions=1))
    (
        flows["windows"]
        .partition_by("start", id="by-start", partitions=2)
        .window(tumbling(ticks(30)), key="start", id="together")
        .agg(n=sum("n"), ids=sum("ids"))
        .send_to(app.output("windows", partitions=1))
    )


class _Tallying(Task):
    """Counts the views of each key in a table, and reads another one, which a flow fills."""

    @override
    def process(self, message: dict[str, int], out: Out) -> None:
        """Send the message with its number among those of its key."""
        tallies = out.tables["tallies"]
        n = (tallies.get(message["k"]) or {"n": 0})["n"] + 1
        tallies.put(message["k"], {"n": n})
        found = out.tables["profiles"].get(message["k"])
        out.send("tallied", {"id": message["id"], "k": message["k"], "n": n, "profile": found and found["profile"]})


def _declare_tallies(app: App) -> None:
    """A low-level task that reads one table and writes another, which a flow joins: one stage."""
    profiles = app.table("profiles", key="k", schema={"k": pl.Int64, "profile": pl.Int64})
    tallies = app.table("tallies", key="k", schema={"k": pl.Int64, "n": pl.Int64})
    filling = read(app, "changes").partition_by("k", id="changes-by-k", partitions=2)
    filling.select("k", profile="id").send_to(profiles)
    views = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    columns = {"id": pl.Int64, "k": pl.Int64, "n": pl.Int64, "profile": pl.Int64}
    tables = {"profiles": profiles, "tallies": tallies}
    flows = views.process(_Tallying(), {"tallied": columns}, id="tally", tables=tables, writes="tallies")
    flows["tallied"].send_to(app.output("tallied", partitions=1))
    orders = read(app, "orders").partition_by("k", id="orders-by-k", partitions=2)
    orders.join(tallies, how="left").send_to(app.output("found", partitions=1))


_NEVER_LATE = 100_000
"""The lateness, in ticks, of inputs in which users move positions: event time closes nothing before the end."""


_MOVED = (
    AppCase(
        "app-moved-counts", {"views": 2}, lambda app: _declare_counts(app, _NEVER_LATE), expected.counts, moved=True
    ),
    AppCase(
        "app-moved-inner",
        {"views": 2, "orders": 1},
        lambda app: _declare_join(app, "inner", _NEVER_LATE),
        expected.pairs("inner"),
        moved=True,
    ),
    AppCase(
        "app-moved-table",
        {"views": 1, "changes": 2},
        _declare_table,
        expected.found,
        expected.profiles,
        "profile",
        moved=True,
    ),
    AppCase(
        "app-moved-outbox", {"views": 2}, lambda app: _declare_outbox(app, _NEVER_LATE), expected.reported, moved=True
    ),
    *(replace(case, name=case.name.replace("app-", "app-moved-"), moved=True) for case in counted.CASES),
)
"""Users move positions in their sources. Results follow from what the commits say was read, as often as it was."""

CASES: Mapping[str, AppCase] = {
    case.name: case
    for case in (
        AppCase("app-counts", {"views": 2}, _declare_counts, expected.counts),
        AppCase("app-panes", {"views": 2}, _declare_panes, expected.panes),
        AppCase("app-sessions", {"views": 2}, _declare_sessions, expected.sessions),
        AppCase("app-sliding", {"views": 2}, _declare_sliding, expected.lately),
        AppCase("app-latest", {"views": 1, "orders": 1}, _declare_latest, expected.latest),
        AppCase(
            "app-versions", {"views": 2, "orders": 2}, _declare_versions, expected.rated, lasting=("rates.history",)
        ),
        AppCase(
            "app-inner", {"views": 2, "orders": 1}, lambda app: _declare_join(app, "inner"), expected.pairs("inner")
        ),
        AppCase("app-left", {"views": 1, "orders": 2}, lambda app: _declare_join(app, "left"), expected.pairs("left")),
        AppCase("app-outer", {"views": 1, "orders": 1}, lambda app: _declare_join(app, "full"), expected.pairs("full")),
        AppCase("app-pairs", {"views": 1, "orders": 1}, _declare_counted_pairs, expected.counted_pairs),
        AppCase("app-table", {"views": 1, "changes": 2}, _declare_table, expected.found, expected.profiles, "profile"),
        AppCase("app-side", {"views": 1, "changes": 1}, _declare_side_input, expected.found_aside),
        AppCase("app-mixed", {"views": 1, "orders": 2}, _declare_mixed, expected.together),
        AppCase("app-distinct", {"views": 2}, _declare_distinct, expected.distinct, repeats=True),
        # The keys of its timers aren't those of the shuffle alone, which only shows when they are dealt.
        AppCase("app-task", {"views": 2, "orders": 1}, _declare_task, expected.by_hand, rescales=False),
        AppCase(
            "app-tallies",
            {"views": 2, "changes": 1, "orders": 1},
            _declare_tallies,
            expected.tallied,
            expected.tallies,
            "n",
        ),
        AppCase("app-async", {"views": 2}, lambda app: _declare_async(app, ordered=False), expected.priced),
        AppCase("app-ordered", {"views": 1}, lambda app: _declare_async(app, ordered=True), expected.priced),
        AppCase("app-remote", {"views": 2}, _declare_remote, expected.grouped),
        AppCase("app-written", {"views": 2}, _declare_written, expected.written),
        AppCase("app-outbox", {"views": 2}, _declare_outbox, expected.reported),
        *counted.CASES,
        *branched.CASES,
        *lateness.CASES,
        *idleness.CASES,
        *expiry.CASES,
        *clocked.CASES,
        *mapped.CASES,
        *caching.CASES,
        *apart.CASES,
        *changed.CASES,
        *changing_rows.CASES,
        *slotted.CASES,
        *_MOVED,
    )
}
