"""Headrace's contestants: the apps that are measured, and the checks of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from bench.data import GAP_MS, HEALTH, ORDERS, SCHEMA, WINDOW_MS, WITHIN_MS, check_rows
from bench.measure import CORES, WrongResultError
from headrace.api.specs import Guarantee

LATENESS = "1s"


def filter_and_project(home: Path, source: Any, *, physical: str | None = None) -> hr.App:
    """Declare (a), into a stream of the log. ``source`` is ``hr.io.files(...)``; None: the stream ``physical``."""
    app = hr.App("bench-filter", home=str(home))
    views = app.input("views", SCHEMA, event_time="ts", lateness=LATENESS, system=source, physical=physical)
    (
        views.filter(pl.col("url") != HEALTH)
        .select("member", s=pl.col("ts") // 1000)
        .send_to(app.output("kept", partitions=CORES))
    )
    return app


def windowed_count(
    home: Path,
    source: Any,
    *,
    physical: str | None = None,
    guarantee: Guarantee = "exactly_once",
    partitions: int = CORES,
    **settings: Any,
) -> hr.App:
    """Declare (b): filter, shuffle by member, count in windows of 10 s of event time."""
    app = hr.App("bench-count", home=str(home), guarantee=guarantee, **settings)
    views = app.input("views", SCHEMA, event_time="ts", lateness=LATENESS, system=source, physical=physical)
    (
        views.filter(pl.col("url") != HEALTH)
        .partition_by("member", id="by-member", partitions=partitions)
        .window(hr.tumbling("10s"), key="member", id="per-10s")
        .agg(views=hr.count())
        .send_to(app.output("counts", partitions=partitions))
    )
    return app


def sessions(home: Path, source: Any) -> hr.App:
    """Declare the sessions. A view just ``hr.session``'s gap later begins a new one, so the gap is 1 ms longer."""
    app = hr.App("bench-sessions", home=str(home))
    views = app.input("views", SCHEMA, event_time="ts", lateness=LATENESS, system=source)
    (
        views.filter(pl.col("url") != HEALTH)
        .partition_by("member", id="by-member", partitions=CORES)
        .window(hr.session(f"{GAP_MS + 1}ms"), key="member", id="by-gap")
        .agg(views=hr.count())
        .send_to(app.output("sessions", partitions=CORES))
    )
    return app


def check_sessions(home: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if a session is wrong."""
    found = hr.streams.read_stream("sessions", home=home).with_columns(
        start=pl.col("window_start"), end=pl.col("window_end").cast(pl.Int64) - 1
    )
    check_rows("sessions by Headrace", found, expected)


def interval_join(home: Path, views: Any, orders: Any) -> hr.App:
    """Declare the join of views with the orders of the same member soon afterwards."""
    app = hr.App("bench-join", home=str(home))
    viewed = app.input("views", SCHEMA, event_time="ts", lateness=LATENESS, system=views)
    ordered = app.input("orders", ORDERS, event_time="ts", lateness=LATENESS, system=orders)
    by_member = ordered.partition_by("member", id="orders-by-member", partitions=CORES)
    (
        viewed.filter(pl.col("url") != HEALTH)
        .partition_by("member", id="views-by-member", partitions=CORES)
        .join(by_member, on="member", within=("0s", f"{WITHIN_MS}ms"), id="views-then-orders")
        .select("member", "url", "ts", "cents")
        .send_to(app.output("joined", partitions=CORES))
    )
    return app


def check_joined(home: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if a pair is wrong."""
    check_rows("the join by Headrace", hr.streams.read_stream("joined", home=home), expected)


COUNTS = {"member": pl.String, "n": pl.Int64}


class Count(hr.tasks.Task):
    """Counts the messages of each member, and sends the count with each of them."""

    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        member = message["member"]
        before = self.seen.get(member)
        n = 1 if before is None else before["n"] + 1
        self.seen.put(member, {"n": n})
        out.send("out", {"member": member, "n": n})


def running_count(home: Path, source: Any) -> hr.App:
    """Declare the running count: a low-level task that reads, writes and sends for each message."""
    app = hr.App("bench-running", home=str(home))
    views = app.input("views", SCHEMA, system=source).filter(pl.col("url") != HEALTH).select("member")
    keyed = views.partition_by("member", id="by-member", partitions=CORES)
    counted = app.task(Count(), {"in": keyed}, {"out": COUNTS}, id="count")["out"]
    counted.send_to(app.output("counts", partitions=CORES))
    return app


def check_running(home: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if a row of the running count is wrong."""
    check_rows("the running count by Headrace", hr.streams.read_stream("counts", home=home), expected)


def run(app: hr.App) -> None:
    """Run the app in the open Spark session, in one container for each core."""
    app.run(containers=CORES, progress=False)


def check_kept(home: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if the results of (a) are wrong."""
    found = hr.streams.read_stream("kept", home=home).select(
        pl.len().alias("rows"), pl.col("member").str.len_bytes().sum(), pl.col("s").sum()
    )
    if not found.equals(expected):
        raise WrongResultError(f"(a) by Headrace: {found.rows()}, not {expected.rows()}")


def check_counts(home: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if (b) has a wrong count for any window and member."""
    found = (
        hr.streams.read_stream("counts", home=home)
        .select(pl.col("window_start").cast(pl.Int64).alias("start"), "member", pl.col("views").cast(pl.Int64))
        .sort("start", "member")
    )
    if not found.equals(expected):
        raise WrongResultError(
            f"(b) by Headrace: {found.height} counts, {found['views'].sum()} views; "
            f"expected {expected.height} and {expected['views'].sum()} in windows of {WINDOW_MS} ms"
        )
