"""Who takes part in the comparisons of throughput and of the two guarantees, and the checks of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

import headrace as hr
from bench import pipelines, structured
from bench.data import fill_log, joined, kept_views, running_counts, sessions, windowed_counts
from bench.peer import Peer
from bench.turns import Contestant, Throughput, Turns, folder
from headrace.core.frame import END_VERSION, UNVERSIONED, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem


def filter_and_project(
    session: SparkSession, views: Path, messages: int, peers: Sequence[Peer], turns: Turns
) -> dict[str, Throughput]:
    """Measure (a). Headrace writes its results to a stream of its log, others to Parquet files."""
    expected = kept_views(views)
    contestants = [
        Contestant(
            structured.NAME,
            lambda out: structured.filter_and_project(session, views, out),
            lambda out: structured.check_kept(out, expected),
        ),
        Contestant(
            "headrace",
            lambda home: pipelines.run(pipelines.filter_and_project(home, files_of(views))),
            lambda home: pipelines.check_kept(home, expected),
        ),
    ]
    return turns.alternate([*contestants, *(peer.filter(views, messages) for peer in peers)], messages)


def windowed_count(
    session: SparkSession, views: Path, messages: int, peers: Sequence[Peer], turns: Turns
) -> dict[str, Throughput]:
    """Measure (b), also with Headrace's own log as the source instead of files."""
    expected = windowed_counts(views)
    contestants = [
        Contestant(
            structured.NAME,
            lambda out: structured.windowed_count(session, views, out),
            lambda out: structured.check_counts(out, expected, views),
        ),
        Contestant("headrace", *counting(expected, files_of(views))),
    ]
    with folder(turns.base) as logged:
        fill_log(views, "page-views", logged)
        source = hr.io.log(logged / "streams", "bench-source")
        contestants.append(Contestant("headrace from its log", *counting(expected, source, physical="page-views")))
        return turns.alternate([*contestants, *(peer.count(views, messages) for peer in peers)], messages)


def running_count(
    session: SparkSession, views: Path, messages: int, peers: Sequence[Peer], turns: Turns
) -> dict[str, Throughput]:
    """Measure a running count of each key, in a Python function that is called for each message."""
    expected = running_counts(views)
    contestants = [
        Contestant(
            structured.NAME,
            lambda out: structured.running_count(session, views, out),
            lambda out: structured.check_running(out, expected),
        ),
        Contestant(
            "headrace",
            lambda home: pipelines.run(pipelines.running_count(home, files_of(views))),
            lambda home: pipelines.check_running(home, expected),
        ),
    ]
    return turns.alternate([*contestants, *(peer.running(views, messages) for peer in peers)], messages)


def session_windows(
    session: SparkSession, views: Path, messages: int, peers: Sequence[Peer], turns: Turns
) -> dict[str, Throughput]:
    """Measure the views of each session of a member."""
    expected = sessions(views)
    contestants = [
        Contestant(
            structured.NAME,
            lambda out: structured.sessions(session, views, out),
            lambda out: structured.check_sessions(out, expected, views),
        ),
        Contestant(
            "headrace",
            lambda home: pipelines.run(pipelines.sessions(home, files_of(views))),
            lambda home: pipelines.check_sessions(home, expected),
        ),
    ]
    return turns.alternate([*contestants, *(peer.sessions(views, messages) for peer in peers)], messages)


def interval_join(
    session: SparkSession, both: Path, messages: int, peers: Sequence[Peer], turns: Turns
) -> dict[str, Throughput]:
    """Measure the join of views with the orders soon afterwards. ``messages`` counts those of both streams."""
    expected = joined(both)
    contestants = [
        Contestant(
            structured.NAME,
            lambda out: structured.interval_join(session, both, out),
            lambda out: structured.check_joined(out, expected),
        ),
        Contestant(
            "headrace",
            lambda home: pipelines.run(
                pipelines.interval_join(home, files_of(both / "views"), files_of(both / "orders"))
            ),
            lambda home: pipelines.check_joined(home, expected),
        ),
    ]
    return turns.alternate([*contestants, *(peer.join(both, messages) for peer in peers)], messages)


PROMISES: dict[str, dict[str, Any]] = {
    "exactly_once": {},
    "at_least_once": {"guarantee": "at_least_once"},
    "exactly_once, process": {"durability": "process"},
    "exactly_once, 100ms": {"checkpoint_interval": "100ms"},
    "exactly_once, process, 100ms": {"checkpoint_interval": "100ms", "durability": "process"},
}


def guarantees(
    views: Path, messages: int, turns: Turns, warm_ups: int
) -> tuple[dict[str, Throughput], dict[str, list[int]]]:
    """Measure (b) with exactly-once and with at-least-once, and what surviving a power cut costs, at two intervals.

    Also return how often each run has committed. Frames of at-least-once belong to no commit.
    """
    expected = windowed_counts(views)
    seen: dict[str, list[int]] = {name: [] for name in PROMISES}

    def contestant(name: str, settings: dict[str, Any]) -> Contestant:
        work, check = counting(expected, files_of(views), **settings)
        return Contestant(name, work, lambda home: (check(home), seen[name].append(commits(home))))

    found = turns.alternate([contestant(*promise) for promise in PROMISES.items()], messages, warm_ups)
    return found, {name: numbers for name, numbers in seen.items() if max(numbers, default=0) > 0}


def commits(home: Path) -> int:
    """Return how many versions the frames in the results' first partition have: one for each commit with results."""
    consumer = LogSystem(home / "streams").consumer()
    consumer.register(SSP(StreamId("log", "counts"), 0), Edge.OLDEST)
    versions: set[int] = set()
    while polled := consumer.poll():
        for records in polled:
            payloads = records.payloads if isinstance(records, Records) else ()
            versions |= {decode_header(payload).version for payload in payloads}
    consumer.close()
    return len(versions - {UNVERSIONED, END_VERSION})


def files_of(folder: Path) -> object:
    """Return the files as a source."""
    return hr.io.files(folder / "*.parquet")


def counting(
    expected: pl.DataFrame, source: object, **settings: Any
) -> tuple[Callable[[Path], object], Callable[[Path], None]]:
    """Return the work and the check of Headrace's contestant for (b)."""

    def work(home: Path) -> None:
        pipelines.run(pipelines.windowed_count(home, source, **settings))

    return work, lambda home: pipelines.check_counts(home, expected)
