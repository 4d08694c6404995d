"""Structured Streaming's contestants, in the best setting found for each task.

``Trigger.AvailableNow`` reads the Parquet files without a limit per trigger. So there is a single micro-batch with
data, and one without, in which the watermark closes windows; each further batch would cost its commits. The Parquet
sink in append mode is the cheapest one that stores results: ``foreachBatch`` with a Parquet write, and the memory
sink, took longer in every comparison. Sessions and the join keep their state in memory and write it to files, the join
in the newest of Spark's formats: with RocksDB, or in the default format, they took longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from bench.data import GAP_MS, HEALTH, WITHIN_MS, check_rows, last_time
from bench.measure import WrongResultError

NAME = "structured-streaming"
SCHEMA = "member string, url string, ts long"
ORDERS = "member string, cents long, ts long"
IN_MEMORY = {
    "spark.sql.streaming.join.stateFormatVersion": "4",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "HDFSBackedStateStoreProvider",
}
LATENESS = "1 second"
LATENESS_MS = 1000


def filter_and_project(session: SparkSession, views: Path, out: Path) -> None:
    """Run (a)."""
    rows = _read(session, views).select("member", F.floor(F.col("ts") / 1000).cast("long").alias("s"))
    append(rows, out)


def windowed_count(session: SparkSession, views: Path, out: Path) -> None:
    """Run (b). Spark pre-aggregates in each input task before the shuffle by itself."""
    counts = (
        _timed(_read(session, views))
        .groupBy(F.window("time", "10 seconds"), "member")
        .count()
        .select(F.unix_millis("window.start").alias("start"), "member", F.col("count").alias("views"))
    )
    append(counts, out)


def sessions(session: SparkSession, views: Path, out: Path) -> None:
    """Run the sessions. Spark sorts what a batch has of a member, and merges it with the member's open sessions."""
    found = (
        _timed(_read(session, views))
        .groupBy(F.session_window("time", f"{GAP_MS} milliseconds").alias("session"), "member")
        .count()
        .select(
            "member",
            F.unix_millis("session.start").alias("start"),
            F.unix_millis("session.end").alias("end"),
            F.col("count").alias("views"),
        )
    )
    with _set(session, IN_MEMORY):
        append(found, out)


def interval_join(session: SparkSession, both: Path, out: Path) -> None:
    """Run the join. Pairs are emitted at once, so none waits for a watermark."""
    views = _timed(_read(session, both / "views")).alias("views")
    orders = _timed(session.readStream.schema(ORDERS).parquet(str(both / "orders"))).alias("orders")
    soon = F.col("views.time") + F.expr(f"INTERVAL {WITHIN_MS} MILLISECONDS")
    pairs = views.join(
        orders,
        (F.col("views.member") == F.col("orders.member")) & F.col("orders.time").between(F.col("views.time"), soon),
    )
    with _set(session, IN_MEMORY):
        append(pairs.select("views.member", "url", "views.ts", "cents"), out)


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def _numbered(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    (n,) = state.get if state.exists else (0,)
    for frame in frames:
        yield pd.DataFrame({"member": key[0], "n": range(n + 1, n + 1 + len(frame))})
        n += len(frame)
    state.update((n,))


def running_count(session: SparkSession, views: Path, out: Path) -> None:
    """Run the running count. The function gets all rows of a key in the batch at once, and its state with them.

    With ``transformWithState`` it would ask the JVM for the state of each key by a socket.
    """
    grouped = _read(session, views).select("member").groupBy("member")
    append(
        grouped.applyInPandasWithState(
            _numbered, "member string, n long", "n long", "append", GroupStateTimeout.NoTimeout
        ),
        out,
    )


def _read(session: SparkSession, views: Path) -> DataFrame:
    return session.readStream.schema(SCHEMA).parquet(str(views)).where(F.col("url") != HEALTH)


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withColumn("time", F.timestamp_millis("ts")).withWatermark("time", LATENESS)


def append(rows: DataFrame, out: Path) -> None:
    """Run a query until it has read everything, and store its results in the folder."""
    writer = rows.writeStream.trigger(availableNow=True).outputMode("append").format("parquet")
    query = writer.option("checkpointLocation", str(out / "checkpoint")).start(str(out / "rows"))
    query.awaitTermination()


def check_kept(out: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if the results of (a) are wrong."""
    found = (
        pl.scan_parquet(written(out))
        .select(pl.len().alias("rows"), pl.col("member").str.len_bytes().sum(), pl.col("s").sum())
        .collect()
    )
    if not found.equals(expected):
        raise WrongResultError(f"(a) by Structured Streaming: {found.rows()}, not {expected.rows()}")


def check_counts(out: Path, expected: pl.DataFrame, views: Path) -> None:
    """Raise ``WrongResultError`` if (b) has a wrong count in a window that the watermark closed.

    A query has no end of stream: windows that its last watermark doesn't reach stay in its state, and are never
    emitted.
    """
    closed = expected.filter(pl.col("start") + 10_000 <= last_time(views) - LATENESS_MS)
    found = pl.read_parquet(written(out)).select(closed.columns).sort("start", "member")
    if not found.equals(closed):
        raise WrongResultError(
            f"(b) by Structured Streaming: {found.height} counts, {found['views'].sum()} views; "
            f"expected {closed.height} and {closed['views'].sum()}"
        )


def check_sessions(out: Path, expected: pl.DataFrame, views: Path) -> None:
    """Raise ``WrongResultError`` if a session is wrong that the watermark closed."""
    closed = expected.filter(pl.col("end") <= last_time(views) - LATENESS_MS)
    check_rows(f"sessions by {NAME}", pl.read_parquet(written(out)), closed)


def check_joined(out: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if a pair is wrong."""
    check_rows(f"the join by {NAME}", pl.read_parquet(written(out)), expected)


def check_running(out: Path, expected: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if a row of the running count is wrong."""
    check_rows(f"the running count by {NAME}", pl.read_parquet(written(out)), expected)


def written(out: Path) -> list[Path]:
    """Return the files that ``append`` has written."""
    return sorted((out / "rows").glob("*.parquet"))
