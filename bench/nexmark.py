"""Nexmark: the queries of examples/nexmark against the same queries in Structured Streaming, where it can express them.

Both read the same Parquet files. The results of each are compared with Polars'. A query of Structured Streaming has no
end of stream: results that its last watermark doesn't reach are never emitted, and aren't expected.

It can't express query 4, whose second aggregate covers everything so far, nor query 6, whose windows count rows. For
those only Headrace is measured. Of equally hot auctions (query 5) it returns only the oldest, which is less work for
it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from bench.data import digest
from bench.measure import CORES, WrongResultError
from bench.pipelines import run
from bench.structured import append, written
from bench.turns import Contestant, Throughput, Turns

EXAMPLES = Path(__file__).parents[1] / "examples" / "nexmark"
RATE = 10_000
DISORDER_MS = 500
LATENESS = "1 second"
LATENESS_MS = 1000

BIDS, AUCTIONS, PERSONS = 46, 3, 1
"""How many of 50 events are of each kind."""
READS = {
    "q0": BIDS,
    "q1": BIDS,
    "q2": BIDS,
    "q3": PERSONS + AUCTIONS,
    "q4": AUCTIONS + BIDS,
    "q5": BIDS,
    "q6": AUCTIONS + BIDS,
    "q7": BIDS,
    "q8": PERSONS + AUCTIONS,
    "q11": BIDS,
}
"""The queries, and how many of 50 events each of them reads."""

SCHEMAS = {
    "persons": "id long, name string, email string, credit_card string, city string, state string, ts long, "
    "extra string",
    "auctions": "id long, item string, description string, initial_bid long, reserve long, ts long, expires long, "
    "seller long, category long, extra string",
    "bids": "auction long, bidder long, price long, channel string, url string, ts long, extra string",
}


def data(folder: Path, events: int) -> Path:
    """Generate one file of each kind for each core, and return their folder."""
    generator = example("generator")
    generator.write(generator.Settings(events, 7, RATE, DISORDER_MS), folder, files=CORES)
    return folder


def measure(session: SparkSession, files: Path, query: str, events: int, turns: Turns) -> dict[str, Throughput]:
    """Measure one query in Headrace, and in Structured Streaming if it can express it."""
    right: pl.DataFrame = example("answers").answer(query, files)
    contestants = [Contestant("headrace", partial(_by_headrace, query, files), partial(_check_headrace, query, right))]
    if query in STRUCTURED:
        contestants.insert(
            0,
            Contestant(
                "structured-streaming",
                lambda out: append(STRUCTURED[query](Streams(session, files)), out),
                partial(check_structured, query, right, _last_time(query, files)),
            ),
        )
    return turns.alternate(contestants, events * READS[query] // 50)


def example(name: str) -> Any:
    """Import a file of examples/nexmark as a new module."""
    spec = importlib.util.spec_from_file_location(f"nexmark_{name}", EXAMPLES / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{EXAMPLES / name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


# -- Headrace


def _by_headrace(query: str, files: Path, home: Path) -> None:
    os.environ |= {"NEXMARK_DATA": str(files), "HEADRACE_HOME": str(home)}
    run(example(query).app)


def _check_headrace(query: str, right: pl.DataFrame, home: Path) -> None:
    check(f"{query} by Headrace", hr.streams.read_stream(query, home=home), right)


def check(what: str, found: pl.DataFrame, right: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` if the results are others."""
    if "pane" not in found.columns and digest(found.select(right.columns)) == digest(right):
        return
    wrong = example("answers").difference(found, right)
    if wrong:
        raise WrongResultError(f"{what}: {wrong}")


# -- Structured Streaming


class Streams:
    """The three streams for Structured Streaming."""

    def __init__(self, session: SparkSession, files: Path) -> None:
        self.session = session
        self.files = files

    def read(self, kind: str) -> DataFrame:
        """Return a stream."""
        return self.session.readStream.schema(SCHEMAS[kind]).parquet(str(self.files / f"{kind}-*.parquet"))

    def timed(self, kind: str) -> DataFrame:
        """Return a stream with its event time as a timestamp, and a watermark."""
        return self.read(kind).withColumn("time", F.timestamp_millis("ts")).withWatermark("time", LATENESS)


def _q3(streams: Streams) -> DataFrame:
    local = streams.read("persons").where(F.col("state").isin("OR", "ID", "CA"))
    items = streams.read("auctions").where(F.col("category") == 10).select(F.col("id").alias("auction"), "seller")
    return items.join(local, items["seller"] == local["id"]).select("name", "city", "state", "auction")


def _q5(streams: Streams) -> DataFrame:
    counts = streams.timed("bids").groupBy(F.window("time", "10 seconds", "2 seconds"), "auction").count()
    hottest = counts.groupBy("window").agg(F.max(F.struct("count", -F.col("auction"))).alias("hot"))
    return hottest.select(
        _ms("window.end", "window_end"), F.col("hot.count").alias("bids"), (-F.col("hot.col2")).alias("auction")
    )


def _q7(streams: Streams) -> DataFrame:
    bid = F.struct("price", -F.col("ts"), "auction", "bidder")
    highest = streams.timed("bids").groupBy(F.window("time", "10 seconds")).agg(F.max(bid).alias("bid"))
    return highest.select(_ms("window.end", "window_end"), "bid.price", (-F.col("bid.col2")).alias("ts"))


def _q8(streams: Streams) -> DataFrame:
    # One aggregate over both kinds took two thirds of the processor time of a join of two aggregates.
    persons = streams.timed("persons").select("id", "name", "time", F.lit(0).alias("one"))
    sellers = streams.timed("auctions").select(
        F.col("seller").alias("id"), F.lit(None).cast("string").alias("name"), "time", F.lit(1).alias("one")
    )
    both = persons.unionByName(sellers).groupBy(F.window("time", "10 seconds").alias("window"), "id")
    counted = both.agg(F.max("name").alias("name"), F.sum("one").alias("auctions"))
    new = counted.where(F.col("name").isNotNull() & (F.col("auctions") > 0))
    return new.select("id", "name", _ms("window.start", "window_start"), "auctions")


def _q11(streams: Streams) -> DataFrame:
    sessions = streams.timed("bids").groupBy(F.session_window("time", "10 seconds").alias("session"), "bidder").count()
    return sessions.select(
        "bidder", _ms("session.start", "window_start"), _ms("session.end", "window_end"), F.col("count").alias("bids")
    )


STRUCTURED: Mapping[str, Callable[[Streams], DataFrame]] = {
    "q0": lambda streams: streams.read("bids"),
    "q1": lambda streams: streams.read("bids").select(
        "auction", "bidder", (F.col("price") * F.lit(0.908)).alias("price"), "ts", "extra"
    ),
    "q2": lambda streams: streams.read("bids").select("auction", "price").where(F.col("auction") % 123 == 0),
    "q3": _q3,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q11": _q11,
}


def _ms(column: str, name: str) -> Column:
    return F.unix_millis(column).alias(name)


def _last_time(query: str, files: Path) -> int:
    """Return the event time that all inputs have reached at the end."""
    kinds = ("persons", "auctions") if query in {"q3", "q8"} else ("bids",)
    latest = [
        pl.scan_parquet(files / f"{kind}-*.parquet").select(pl.col("ts").max()).collect().item() for kind in kinds
    ]
    return int(min(latest))


def check_structured(query: str, right: pl.DataFrame, last: int, out: Path) -> None:
    """Raise ``WrongResultError`` if a result in a window is wrong that the time ``last`` closes."""
    if query == "q5":
        right = right.select("window_end", "bids", auction=pl.col("auctions").list.min())
    ends = pl.col("window_start") + 10_000 if query == "q8" else pl.col("window_end")
    if query in {"q5", "q7", "q8", "q11"}:
        right = right.filter(ends <= last - LATENESS_MS)
    check(f"{query} by Structured Streaming", pl.read_parquet(written(out)), right)
