"""A batch job over files, against what others make of the same files.

The contestants of the windowed count run in the same open and warm session, and read the same Parquet files:

- Headrace as a batch job: ``App.to_dataframe`` over files, and over a DataFrame of Spark, from which Spark leaves out
  columns and row groups; and ``App.run(batch=True)``, which also publishes the results in a stream of the log,
- Spark SQL: the same count by hand, with ``window`` and ``groupBy``,
- Headrace live, until its input has ended,
- Polars in this process, without Spark, with a thread for each core.

Each writes all of its results, the first ones and Spark SQL to Parquet files. Those of Nexmark are only a batch job
over files and Spark SQL, with the same DataFrames as in Structured Streaming. There Spark SQL has no query 4 and 6.

Streams as DataFrames are measured against Parquet files of the same rows: Spark copies them from one to the other.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typing_extensions import override

import headrace as hr
from bench import nexmark, pipelines, structured
from bench.data import HEALTH, SCHEMA, WINDOW_MS, fill_log, windowed_counts
from bench.measure import CORES, WrongResultError
from bench.throughput import counting, files_of
from bench.turns import Contestant, Throughput, Turns

FILES = 4 * CORES
"""More than cores, as files of a longer time are."""

OURS, PEER = "headrace, batch", "spark sql"


def windowed_count(session: SparkSession, views: Path, messages: int, turns: Turns) -> dict[str, Throughput]:
    """Measure the windowed count of (b)."""
    expected = windowed_counts(views)
    check = partial(_check_counts, expected)

    def published(home: Path) -> None:
        pipelines.windowed_count(home, files_of(views)).run(batch=True, progress=False)

    def of_dataframe(out: Path) -> None:
        _batch_count(session, hr.io.dataframe(_read(session, views)), out)

    contestants = [
        Contestant(PEER, lambda out: _write(_count_by_spark(session, views), out), partial(check, PEER)),
        Contestant(OURS, lambda out: _batch_count(session, files_of(views), out), partial(check, OURS)),
        Contestant(f"{OURS}, of a dataframe", of_dataframe, partial(check, f"{OURS}, of a dataframe")),
        Contestant(f"{OURS}, published", published, lambda home: pipelines.check_counts(home, expected)),
        Contestant("headrace, live", *counting(expected, files_of(views))),
        polars_alone(views, expected),
    ]
    return turns.alternate(contestants, messages)


def polars_alone(views: Path, expected: pl.DataFrame) -> Contestant:
    """Return the contestant that only computes the counts, from all files at once."""
    return Contestant("polars", partial(_count_by_polars, views), partial(_check_counts, expected, "polars"))


def nexmark_query(session: SparkSession, files: Path, query: str, events: int, turns: Turns) -> dict[str, Throughput]:
    """Measure a query of Nexmark as a batch job, and in Spark SQL if there it is written by hand."""
    right: pl.DataFrame = nexmark.example("answers").answer(query, files)
    contestants = [
        Contestant(
            OURS,
            partial(_batch_nexmark, session, query, files),
            lambda out: nexmark.check(f"{query} by {OURS}", pl.read_parquet(structured.written(out)), right),
        )
    ]
    if query in nexmark.STRUCTURED:
        contestants.insert(
            0,
            Contestant(
                PEER,
                lambda out: _write(nexmark.STRUCTURED[query](_Tables(session, files)), out),
                partial(nexmark.check_structured, query, right, sys.maxsize),
            ),
        )
    return turns.alternate(contestants, events * nexmark.READS[query] // 50)


def streams_as_dataframes(session: SparkSession, views: Path, messages: int, turns: Turns) -> dict[str, Throughput]:
    """Measure how fast Spark reads a stream and writes one."""
    home = turns.base / "streams"
    fill_log(views, "views", home)
    hr.spark.register(session, home=home)

    def copied(out: Path) -> None:
        _check_copy(views, pl.read_parquet(structured.written(out)))

    def written(out: Path) -> None:
        _check_copy(views, hr.streams.read_stream("copy", home=out, committed=True))

    contestants = [
        Contestant("parquet to parquet", lambda out: _write(_read(session, views), out), copied),
        Contestant("stream to parquet", lambda out: _write(_stream(session, home), out), copied),
        Contestant("parquet to stream", lambda out: _write_stream(_read(session, views), out), written),
    ]
    return turns.alternate(contestants, messages)


# -- contestants


def _stream(session: SparkSession, home: Path) -> DataFrame:
    return session.read.format("headrace").option("home", str(home)).load("views")


def _write_stream(rows: DataFrame, home: Path) -> None:
    hr.streams.create_stream("copy", CORES, SCHEMA, home=home)
    rows.write.format("headrace").option("home", str(home)).mode("append").save("copy")


def _check_copy(views: Path, found: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` unless these are the rows of the files."""
    right = pl.scan_parquet(views / "*.parquet").select(pl.len(), pl.col("ts").sum()).collect().row(0)
    if (found.height, found["ts"].sum()) != right:
        raise WrongResultError(f"the copy has {found.height} rows, and the sum of their times is {found['ts'].sum()}")


def _batch_count(session: SparkSession, source: object, out: Path) -> None:
    _write(pipelines.windowed_count(out / "home", source).to_dataframe("counts", session), out)


def _batch_nexmark(session: SparkSession, query: str, files: Path, out: Path) -> None:
    os.environ |= {"NEXMARK_DATA": str(files), "HEADRACE_HOME": str(out / "home")}
    _write(nexmark.example(query).app.to_dataframe(query, session), out)


def _count_by_spark(session: SparkSession, views: Path) -> DataFrame:
    counts = (
        _read(session, views)
        .where(F.col("url") != HEALTH)
        .groupBy(F.window(F.timestamp_millis("ts"), "10 seconds"), "member")
        .agg(F.count("*").alias("views"))
    )
    return counts.select(F.unix_millis("window.start").alias("window_start"), "member", "views")


def _count_by_polars(views: Path, out: Path) -> None:
    counts = (
        pl.scan_parquet(views / "*.parquet")
        .filter(pl.col("url") != HEALTH)
        .group_by((pl.col("ts") // WINDOW_MS * WINDOW_MS).alias("window_start"), "member")
        .agg(views=pl.len())
    )
    counts.sink_parquet(out / "rows" / "0.parquet", mkdir=True)


class _Tables(nexmark.Streams):
    """The three streams of Nexmark as tables, for the same queries: Spark ignores a watermark in a batch."""

    @override
    def read(self, kind: str) -> DataFrame:
        return self.session.read.schema(nexmark.SCHEMAS[kind]).parquet(str(self.files / f"{kind}-*.parquet"))


def _read(session: SparkSession, views: Path) -> DataFrame:
    return session.read.schema(structured.SCHEMA).parquet(str(views))


def _write(rows: DataFrame, out: Path) -> None:
    rows.write.parquet(str(out / "rows"))


def _check_counts(expected: pl.DataFrame, name: str, out: Path) -> None:
    """Raise ``WrongResultError`` if any count is wrong."""
    found = (
        pl.read_parquet(structured.written(out))
        .select(pl.col("window_start").cast(pl.Int64).alias("start"), "member", pl.col("views").cast(pl.Int64))
        .sort("start", "member")
    )
    if not found.equals(expected):
        raise WrongResultError(
            f"the windowed count by {name}: {found.height} counts, {found['views'].sum()} views; "
            f"expected {expected.height} and {expected['views'].sum()}"
        )
