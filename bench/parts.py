"""The parts of the benchmark: each measures with the module of its name, and shows what it has found."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import SparkSession

from bench import (
    checkpoints,
    control,
    growth,
    history,
    kafka,
    kinesis,
    latency,
    memory,
    nexmark,
    rescaled,
    restarts,
    structured,
    throughput,
    wide,
)
from bench.budget import Deadline
from bench.data import first_views, page_views, views_and_orders, windowed_counts
from bench.measure import CORES
from bench.peer import Peer
from bench.report import Report
from bench.session import open_bench_session
from bench.state_apps import Shape
from bench.tail import WHICH
from bench.turns import Contestant, Throughput, Turns, compare, folder

KEYS = 10_000
RATES = (1_000, 10_000, 50_000)
HISTORY = 50_000_000
"""Messages of a batch job's input, if no other number is asked for."""
STEADY_S = 50.0
"""How long the runs about commits would take at the rate of short ones, so that they take 30 s without fixed costs."""
COMMITS_MIN = 30
FEWER = 10
"""How many times fewer messages a full run has in parts where peers are slow: the running count, sessions, the join."""

Measure = Callable[[SparkSession, Path, int, Sequence[Peer], Turns], dict[str, Throughput]]
MeasureQuery = Callable[[SparkSession, Path, str, int, Turns], dict[str, Throughput]]


class Bench:
    """One run of the chosen parts."""

    def __init__(self, base: Path, options: argparse.Namespace, report: Report, peers: Sequence[Peer]) -> None:
        self._session: SparkSession | None = None
        self.base = base
        self.peers = peers
        self.large: bool = options.large
        self.quick: bool = options.quick
        self.messages: int = options.messages or (2_000_000 if self.quick else 10_000_000)
        self.fewer = 1 if self.quick else FEWER
        self.repeats: int = options.repeats or (1 if self.quick else 5)
        self.turns = Turns(base, report.say, self.repeats)
        self.part_s = float("inf")
        """The seconds that the part which runs should take."""
        self.queries: tuple[str, ...] = options.queries
        self.history_messages: int = options.messages or (2_000_000 if self.quick else HISTORY)
        self.report = report
        self._views: Path | None = None

    @property
    def session(self) -> SparkSession:
        """The open session. Its JVM takes gigabytes, so parts without Spark don't open it."""
        return self._session or self.open()

    def open(self) -> SparkSession:
        """Open the session, if it isn't open: an app that finds none starts one of its own, in every run."""
        self._session = self._session or open_bench_session()
        return self._session

    def abandon(self) -> None:
        """Don't talk to the session again: a call to it may have been interrupted. It ends with this process."""
        self._session = None

    def close(self) -> None:
        """Stop the session, if it is open."""
        if self._session is not None:
            self._session.stop()

    def views(self) -> Path:
        """Return the data of (a) and (b), one file for each core; generate it at the first call."""
        if self._views is None:
            self.report.head(f"{self.messages:,} page views of {KEYS:,} members in {CORES} Parquet files")
            self._views = page_views(self.base / "views", self.messages, KEYS, CORES)
        return self._views

    def a(self) -> None:
        """Measure a filter and a projection."""
        self._rivals("a", "(a) filter + projection", throughput.filter_and_project)

    def b(self) -> None:
        """Measure the windowed count."""
        found = self._rivals("b", "(b) windowed count in two stages", throughput.windowed_count)
        self.report.keep("ratio_b", found["headrace"].messages_per_s / found[structured.NAME].messages_per_s)

    def running(self) -> None:
        """Measure a Python function with state."""
        title = "running count of each key in a Python function"
        self._rivals("running", title, throughput.running_count, self.fewer)

    def sessions(self) -> None:
        """Measure sessions."""
        self._rivals("sessions", "views of each session", throughput.session_windows, self.fewer)

    def join(self) -> None:
        """Measure an interval join of two streams."""
        messages = self.messages // self.fewer
        half = messages // 2
        self.report.head(f"{half:,} page views and {half:,} orders of {KEYS:,} members, each in {CORES} Parquet files")
        with folder(self.base) as place:
            both = views_and_orders(place / "both", messages, KEYS, CORES)
            self._measured(
                "join", "join of views with orders soon afterwards", throughput.interval_join, both, self.fewer
            )

    def _rivals(self, part: str, title: str, measure: Measure, share: int = 1) -> dict[str, Throughput]:
        views = first_views(self.views(), self.base / f"views-{share}", share)
        return self._measured(part, title, measure, views, share)

    def _measured(self, part: str, title: str, measure: Measure, files: Path, share: int = 1) -> dict[str, Throughput]:
        self.report.head(title)
        found = measure(self.session, files, self.messages // share, self.peers, self.turns)
        self._compare(part, title, found)
        return found

    def guarantee(self) -> None:
        """Measure what exactly-once costs: in a full run, in runs of more than 30 s and 30 commits."""
        self.report.head("(b) exactly-once and at-least-once")
        self.open()
        with folder(self.base) as place:
            views, messages = self.views(), self.messages
            if not self.quick:
                short, _ = throughput.guarantees(views, messages, Turns(self.base, self.report.say, 1), 1)
                messages = int(STEADY_S * max(one.messages_per_s for one in short.values()))
                views = page_views(place / "steady", messages, KEYS, CORES)
                self.report.say(f"{messages:,} messages, for at least {STEADY_S:.0f} s")
            found, commits = throughput.guarantees(views, messages, self.turns, 1 if self.quick else 0)
        least = {"at_least_once": found.pop("at_least_once")}
        self._compare("guarantee", "(b) by guarantee (expected ratio: 0.97 or better)", least | found)
        self.report.keep("commits", commits)
        if not self.quick and (fewest := min(map(min, commits.values()))) < COMMITS_MIN:
            self.turns.deadline.cut.append(f"a run had only {fewest} commits")
        self.report.table("commits of a run", ["", "fewest"], [[name, min(found)] for name, found in commits.items()])

    def c(self) -> None:
        """Measure end-to-end latency."""
        seconds = 5.0 if self.quick else 15.0
        self.open()
        kept: dict[str, dict[str, dict[str, Any]]] = {}
        try:  # what is measured counts, even if the rest takes too long
            for rate in self.turns.deadline.each(RATES):
                self.report.head(f"(c) latency at {rate:,} messages/s")
                found = kept[str(rate)] = {}
                for name, shuffle in (("filter + projection", False), ("with a shuffle", True)):
                    found[f"headrace, {name}"] = latency.headrace_latency(self.base, rate, seconds, shuffle=shuffle)
                found["structured-streaming, filter + projection"] = latency.better(
                    [
                        latency.structured_latency(self.session, self.base, rate, seconds, source) | {"source": source}
                        for source in ("socket", "files")
                    ]
                )
        finally:
            self._latencies(kept)

    def _latencies(self, kept: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        rows = [
            [name, int(rate), *(one.get(f"{which}_ms") for which in WHICH), one["messages"], one["load"]]
            for rate, found in kept.items()
            for name, one in found.items()
        ]
        self.report.keep("c", kept)
        columns = ["", "messages/s", *(f"{which} ms" for which in WHICH), "messages", "load"]
        self.report.table("(c) end-to-end latency (expected at 1,000/s: p99 below 25 ms)", columns, rows)

    def control(self) -> None:
        """Measure the cost of control messages."""
        self.report.head("control messages")
        costs = [control.control_cost(self.base, partitions) for partitions in (4, 16, 64)]
        self.report.keep("control", costs)
        self.report.table(
            "a round of watermarks from n tasks to n partitions (at most one every 10 ms)",
            ["n", "frames", "write µs/frame", "read µs/frame", "reconcile µs/frame", "round ms of one core"],
            [[str(c.partitions), c.frames, c.write_us, c.read_us, c.reconcile_us, c.round_ms] for c in costs],
        )

    def keys(self) -> None:
        """Measure the cost of a message by number of keys."""
        messages = self.messages // 2
        self.report.head("cost of a message by number of keys")
        self.open()
        rows, kept = [], {}
        for keys in self.turns.deadline.each((1_000, 10_000, 100_000, 1_000_000)):
            with folder(self.base) as place:
                views = page_views(place / "views", messages, keys, CORES)
                expected = windowed_counts(views)
                ours = Contestant(f"{keys:,} keys", *throughput.counting(expected, throughput.files_of(views)))
                bare = history.polars_alone(views, expected)
                one, polars = self.turns.alternate([ours, bare], messages, 1).values()
            kept[str(keys)] = {"figures": one, "polars": polars, "results": expected.height}
            costs = [1000 * one.cpu_us, 1000 * polars.cpu_us, polars.cpu_s / one.cpu_s]
            rows.append([f"{keys:,}", expected.height, one.messages_per_s, *costs, one.spread, one.doubt])
        self.report.keep("keys", {"messages": messages, **kept})
        self.report.table(
            f"(b) by number of keys, {messages:,} messages",
            ["keys", "results", "messages/s", "processor ns/message", "of Polars alone", "ratio", "spread", "doubt"],
            rows,
        )

    def checkpoint(self) -> None:
        """Measure the cost of checkpoints."""
        self.report.head("checkpoints")
        sizes = (10_000, 100_000) if self.quick else (10_000, 100_000, 1_000_000)
        shapes = [*((tasks, 10_000) for tasks in (1, 4, 16)), *((1, keys) for keys in sizes[1:])]
        costs = [checkpoints.checkpoint_cost(self.base, *shape) for shape in self.turns.deadline.each(shapes)]
        self.report.keep("checkpoint", costs)
        self.report.table(
            f"a checkpoint while {checkpoints.TRICKLE} messages change the state every 250 ms",
            ["tasks", "keys in state", "ms a task", "ms for all tasks", "checkpoints"],
            [[str(c.tasks), c.keys, c.task_ms, c.all_ms, c.checkpoints] for c in costs],
        )

    def restart(self) -> None:
        """Measure starts with local state, and with state that has to be restored."""
        self.report.head("starts of a task")
        sizes = (10_000, 100_000) if self.quick else (100_000, 1_000_000, 10_000_000)
        shapes: tuple[Shape, ...] = ("table", "tumbling", "session")
        costs = [
            cost
            for keys, shape in self.turns.deadline.each([(keys, shape) for keys in sizes for shape in shapes])
            for cost in restarts.restart_costs(self.base, shape, keys, self.report.say)
        ]
        self.report.keep("restart", costs)
        self.report.table(
            "a start of one task (expected after a kill or a stop: the same for any number of keys)",
            ["state", "keys", "after, or restored from", "running s", "slowest s", "first batch s", "RSS MB"],
            [[c.shape, c.keys, c.case, c.seconds, max(c.runs_s), c.first_s, c.rss_mb] for c in costs],
        )

    def rescale(self) -> None:
        """Measure restores of a savepoint, without and with a rescale."""
        self.report.head("restores of a savepoint")
        keys = 100_000 if self.quick else 1_000_000
        costs = rescaled.rescale_costs(self.base, keys, self.report.say)
        same, twice = costs
        ratio = twice.seconds / same.seconds
        self.report.keep("rescale", {"costs": costs, "ratio": ratio})
        rows: list[list[object]] = [
            [f"{c.partitions}", c.restore_s, c.running_s, c.committed_s, c.seconds] for c in costs
        ]
        rows.append(["ratio", None, None, None, ratio])
        self.report.table(
            f"until all tasks of a savepoint of {keys:,} keys have committed (expected ratio: below 2)",
            ["partitions", "restore s", "start until running s", "until committed s", "in all s"],
            rows,
        )

    def memory(self) -> None:
        """Measure memory by kind and size of state."""
        self.report.head("memory of a task")
        sizes = (10_000, 100_000) if self.quick else (100_000, 1_000_000, 10_000_000)
        costs = [
            memory.memory_cost(self.base, shape, keys, self.report.say)
            for keys, shape in self.turns.deadline.each([(keys, shape) for keys in sizes for shape in get_args(Shape)])
        ]
        self.report.keep("memory", costs)
        self.report.table(
            "one task that reads one message for each key, until its input ends",
            ["state", "keys", "RSS MB with all keys", "peak MB until then", "peak MB until the end", "seconds"],
            [[c.shape, c.keys, c.full_mb, c.taking_mb, c.peak_mb, c.seconds] for c in costs],
        )

    def wide(self) -> None:
        """Measure containers with many tasks."""
        numbers = (10, 100) if self.quick else (10, 100, 1000)
        shapes = [(partitions, shuffle) for partitions in numbers for shuffle in (False, True)]
        costs = []
        for partitions, shuffle in self.turns.deadline.each(shapes[:5]):
            costs.append({"shuffle": shuffle} | wide.measured_apart(partitions, shuffle=shuffle))
            self.report.say(json.dumps(costs[-1]))
        self.report.keep("wide", costs)
        self.report.table("containers with many tasks", list(costs[0]), [list(one.values()) for one in costs])

    def kafka(self) -> None:
        """Measure Kafka. See ``bench.kafka``."""
        kafka.report(self.turns, self.report, 200_000 if self.quick else 1_000_000)

    def kafka_latency(self) -> None:
        """Measure latency over Kafka."""
        kafka.report_latency(self.turns, self.report)

    def kinesis(self) -> None:
        """Measure a Kinesis input, against a server that stands in for Kinesis."""
        self.report.head("Kinesis")
        costs = kinesis.read_costs(self.base, 100_000 if self.quick else 400_000, self.report.say)
        waits = kinesis.standstills(self.base, self.report.say)
        self.report.keep("kinesis", {"reads": costs, "standstills": waits})
        self.report.table(
            f"{costs[0].records:,} records of {kinesis.SHARDS} shards",
            ["", "records/s", "processor µs/record"],
            [[c.name, c.records_per_s, c.cpu_us] for c in costs],
        )
        self.report.table(
            f"{kinesis.RATE} records a second, until each is committed",
            ["at", "usual ms", "longest ms", "longest without any ms"],
            [[w.event, w.before_ms, w.oldest_ms, w.pause_ms] for w in waits],
        )

    def history(self) -> None:
        """Measure batch jobs over files."""
        messages = self.history_messages
        self.report.head(f"batch: {messages:,} page views of {KEYS:,} members in {history.FILES} Parquet files")
        with folder(self.base) as place:
            views = page_views(place / "views", messages, KEYS, history.FILES)
            for part, what, measure in (
                ("history", "windowed count of {:,} messages in files", history.windowed_count),
                ("history-dataframes", "{:,} messages copied by Spark", history.streams_as_dataframes),
            ):
                found = measure(self.session, views, messages, self.turns)
                self._compare(part, what.format(messages), found)
        self._nexmark_history()

    def _nexmark_history(self) -> None:
        self.report.head(f"batch: {self.messages:,} events of Nexmark in {CORES} Parquet files of each kind")
        self._queries("history-nexmark", "nexmark as batch jobs", history.nexmark_query, (history.OURS, history.PEER))

    def nexmark(self) -> None:
        """Measure Nexmark's queries."""
        self.report.head(f"{self.messages:,} events of Nexmark in {CORES} Parquet files of each kind")
        title = "nexmark (expected ratio: 3 or better)"
        self._queries("nexmark", title, nexmark.measure, ("headrace", structured.NAME))

    def _queries(self, part: str, title: str, measure: MeasureQuery, names: tuple[str, str]) -> None:
        """Measure queries of Nexmark, each by Headrace and, where it can express it, by another."""
        rows: list[list[object]] = []
        kept: dict[str, object] = {}
        with folder(self.base) as place, ExitStack() as stack:
            stack.callback(self._tell_queries, part, title, names[1], rows, kept)
            files = nexmark.data(place / "nexmark", self.messages)
            for query in self.turns.deadline.each(self.queries):
                self.report.head(f"{part} {query}")
                found = measure(self.session, files, query, self.messages, self.within(1 / len(self.queries)))
                ours, peer = found[names[0]], found.get(names[1])
                ratios = (peer.wall_s / ours.wall_s, peer.cpu_s / ours.cpu_s) if peer is not None else (None, None)
                kept[query] = found | {"ratio": ratios[0], "ratio_by_processor": ratios[1]}
                theirs = peer.messages_per_s if peer is not None else None
                doubts = dict.fromkeys(one.doubt for one in found.values() if one.doubt)
                rows.append([query, ours.messages_per_s, ours.cpu_us, theirs, *ratios, "; ".join(doubts)])

    def _tell_queries(
        self, part: str, title: str, peer: str, rows: Sequence[Sequence[object]], kept: Mapping[str, object]
    ) -> None:
        """Tell what was measured, also if a query has failed."""
        self.report.keep(part, kept)
        columns = ["", "messages/s", "processor µs/message", f"{peer}, messages/s", "ratio", "ratio by processor"]
        self.report.table(title, [*columns, "doubt"], rows)

    def growth(self) -> None:
        """Measure how time and memory grow."""
        growth.report(self.base, self.report, self.turns.deadline, large=self.large)

    def within(self, share: float) -> Turns:
        """Turns that should end within a share of this part's time; three at most."""
        own, now = self.turns.deadline, self.turns.deadline.now()
        ends = Deadline(min(own.at_s, now + share * self.part_s), cut=own.cut)
        return replace(self.turns, repeats=min(3, self.repeats), deadline=ends)

    def _compare(self, part: str, title: str, found: Mapping[str, Throughput]) -> None:
        """Compare contestants with the first of them."""
        self.report.keep(part, found)
        compare(self.report, title, found, self.turns.missing)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark, and its weight when the time of a run is shared out."""

    about: str
    weight: float
    run: Callable[[Bench], None]


PARTS = {
    "a": Part("throughput of a filter and a projection", 3, Bench.a),
    "b": Part("throughput of a windowed count after a shuffle (10,000 keys, 10 s of event time)", 5, Bench.b),
    "running": Part("throughput of a running count of each key in a Python function", 5, Bench.running),
    "sessions": Part("throughput of sessions (10,000 keys, ten or so messages in each)", 5, Bench.sessions),
    "join": Part("throughput of an interval join of two streams (10,000 keys, one partner on average)", 5, Bench.join),
    "c": Part("end-to-end latency by rate", 6, Bench.c),
    "guarantee": Part("(b) with exactly-once against at-least-once", 16, Bench.guarantee),
    "nexmark": Part("throughput of ten Nexmark queries", 8, Bench.nexmark),
    "kafka": Part("throughput over Kafka, against a bare loop, Kafka Streams and Quix Streams", 5, Bench.kafka),
    "kafka-latency": Part("latency from Kafka into Kafka, against Kafka Streams", 4, Bench.kafka_latency),
    "history": Part("throughput of batch jobs against Spark SQL, a live run and Polars", 5, Bench.history),
    "control": Part("cost of control messages for 4, 16 and 64 partitions", 0.5, Bench.control),
    "keys": Part("cost of a message for 1,000 to 1,000,000 keys", 2, Bench.keys),
    "checkpoint": Part("cost of a checkpoint by number of tasks, and by size of the state", 2, Bench.checkpoint),
    "restart": Part("time and memory of a task's start by size of its state", 3, Bench.restart),
    "rescale": Part("time to begin at a savepoint, as it is and with twice the partitions", 1.5, Bench.rescale),
    "memory": Part("peak memory of a task that reads one message for each of many keys, and ends", 3, Bench.memory),
    "wide": Part("start, idling and descriptors of a container with 10 to 1,000 tasks", 2.5, Bench.wide),
    "kinesis": Part("a Kinesis input against a bare loop over boto3; split, merge and kill", 1.5, Bench.kinesis),
    "growth": Part("time and memory against messages, keys, tasks, stages and partitions", 3, Bench.growth),
}
