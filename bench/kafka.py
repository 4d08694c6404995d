"""Kafka: throughput and latency against a bare loop, Quix Streams and Kafka Streams, on one Apache Kafka.

All contestants are processes beside the broker, on the same cores, and read the same JSON. What is measured is held
back in an open transaction until a contestant has started, joined its group and worked through some page views. Then
the transaction is committed, and time runs until the last result is. Processor time is the contestant's own; the
broker's isn't in it. Every result is compared with what Polars makes of the same page views.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import polars as pl

from bench import kafka_output
from bench.data import HEALTH, page_views
from bench.kafka_topics import LATE, Committed, Views, create, read_committed
from bench.measure import Taken, WrongResultError, median, percentile
from bench.report import Report
from bench.turns import Contestant, Throughput, Turns, compare, folder
from chaos.kafka_server import KafkaServer
from chaos.processes import cpu_seconds
from headrace.connectors.kafka.client import Consumer, TopicPartition, open_plain_producer
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.core.clock import WallClock
from headrace.core.errors import InfrastructureError

LOOK_S, SETTLED_S, LIMIT_S = 0.02, 2.5, 180.0
KEYS = 10_000
COMMIT_MS = 100
"""As Kafka Streams has it by itself with exactly-once."""
WARM_SHARE = 5
"""So many times fewer messages come before the measured ones."""
INTERVALS_MS = (100, 1000)
RATE = 1000
WARM_S, WATCHED_S = 8.0, 20.0
QUIX_SHARE = 5
"""Quix gets this part of the messages: with all of them it would take minutes."""
FRAMED_SHARE = 4
"""So many times as many go through Headrace's own streams: they take less time than others."""
_PEERS = Path(sys.prefix) / "peers"
_QUIX = _PEERS / "quix" / "bin" / "python"
_STREAMS = _PEERS / "kafka-streams"
_HERE = Path(__file__).parent / "peers"
_BROKER = {"log.retention.ms": "-1"}
"""Page views have timestamps of years ago."""

Say = Callable[[str], None]
Command = Callable[[str, str, str, int, Path], list[str]]
"""From what to do, the input, the output, the commit interval and a folder."""


@dataclass(frozen=True, slots=True)
class Latency:
    """From the call of produce until a plain consumer of committed records has the result, in ms."""

    name: str
    interval_ms: int
    runs: list[tuple[float, float]] = field(default_factory=list)
    """The median and the 99th percentile of each run."""
    loads: list[float] = field(default_factory=list)
    why: str = ""

    def row(self, first: Latency) -> list[object]:
        """A line of the table, with ratios to another's runs, pair by pair: both take turns."""
        pairs = [(b / a, d / c) for (a, c), (b, d) in zip(first.runs, self.runs, strict=False)]
        spreads = [_spread([run[number] for run in self.runs]) for number in (0, 1)]
        p50, p99 = _medians(pairs)
        return [self.name, self.interval_ms, spreads[0], p50, spreads[1], p99, _spread(self.loads), self.why]


def _spread(figures: list[float]) -> str:
    return f"{median(figures):,.0f} ({min(figures):,.0f}-{max(figures):,.0f})" if figures else ""


class Scene:
    """A running broker, and who can be measured on it."""

    def __init__(self, brokers: str, base: Path, say: Say) -> None:
        self.brokers = brokers
        self.base = base
        self.say = say

    # -- contestants

    def ours(self, what: str, source: str, output: str, commit_ms: int, home: Path) -> list[str]:
        """The command of one of Headrace's apps."""
        return [sys.executable, "-m", "bench.kafka_apps", what, str(home), self.brokers, source, output, str(commit_ms)]

    def ours_in_kafka(self, what: str, source: str, output: str, commit_ms: int, home: Path) -> list[str]:
        """The same with its own streams in Kafka."""
        return self.ours(f"{what}-in-kafka", source, output, commit_ms, home)

    def quix(self, what: str, source: str, output: str, commit_ms: int, state: Path) -> list[str]:
        """The command of Quix Streams. Raises ``InfrastructureError`` if it isn't here."""
        if not _QUIX.is_file():
            raise InfrastructureError("Quix Streams is not installed", hint="run `make bench-peers`")
        args = [self.brokers, output, what, source, output, str(commit_ms), str(state)]
        return [str(_QUIX), str(_HERE / "quix_streams.py"), *args]

    def streams(self, what: str, source: str, output: str, commit_ms: int, state: Path) -> list[str]:
        """The command of Kafka Streams. Raises ``InfrastructureError`` if it isn't here."""
        classes = str(_STREAMS / "classes")
        jars = str(_STREAMS / "jars" / "*")
        if not any((_STREAMS / "jars").glob("kafka-streams-*.jar")) or shutil.which("javac") is None:
            raise InfrastructureError(
                "Kafka Streams is not installed", hint="install a JDK, and run `make bench-peers`"
            )
        subprocess.run(["javac", "-cp", jars, "-d", classes, str(_HERE / "Streams.java")], check=True, timeout=120)
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        args = [self.brokers, output, what, source, output, str(commit_ms), str(state)]
        return ["java", "-Xmx1g", quiet, "-cp", f"{classes}{os.pathsep}{jars}", "Streams", *args]

    # -- one run

    def contestant(self, name: str, command: Command, what: str, views: Views) -> Contestant:
        """One who reads a topic and writes another. Its time is until the last result is committed; it is checked."""
        return Contestant(name, lambda place: self.rate(command, what, views, place), lambda _: None, views.messages)

    def rate(self, command: Command, what: str, views: Views, place: Path) -> Taken:
        """The times of a run, whose results are checked."""
        source, output = (create(self.brokers, f"{name}-{uuid.uuid4().hex[:8]}") for name in ("in", "out"))
        results = Committed(self.brokers, output)
        with (
            views.held(self.brokers, source) as release,
            running(command(what, source, output, COMMIT_MS, place)) as pid,
        ):
            _settled(results, views.warm(what), pid)
            cpu_s, began_s = cpu_seconds(pid), time.monotonic()
            release()
            done = _settled(results, views.results.expected(what).height, pid)
        _check(what, read_committed(self.brokers, output), views)
        return Taken(done.at_s - began_s, done.cpu_s - cpu_s)

    def latency(self, command: Command, interval_ms: int) -> tuple[float, float]:
        """The median and the 99th percentile of a run in ms."""
        source, output = (create(self.brokers, f"{name}-{uuid.uuid4().hex[:8]}") for name in ("in", "out"))
        sent = int((WARM_S + WATCHED_S) * RATE)
        with folder(self.base) as place, running(command("filter", source, output, interval_ms, place)):
            writer = threading.Thread(target=_produce, args=(self.brokers, source, sent))
            writer.start()
            ages = _read_ages(self.brokers, output, sent, 2 * interval_ms / 1000)  # no result may come twice
            writer.join()
        if len(ages) != sent:
            raise WrongResultError(f"{len(ages)} results came of {sent} messages")
        warm = ages[0][0] + WARM_S
        watched = [age for at, age in ages if at >= warm]
        return percentile(watched, 0.5), percentile(watched, 0.99)


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    cpu_s: float
    offsets: int


def _settled(results: Committed, offsets: int, pid: int) -> _Seen:
    """When a topic had so many offsets or more, and then no more came. Raises if it takes long."""
    seen = _Seen(0.0, 0.0, 0)
    end_s = time.monotonic() + LIMIT_S
    while seen.offsets < offsets or time.monotonic() - seen.at_s < SETTLED_S:
        if time.monotonic() > end_s:
            raise InfrastructureError(f"only {seen.offsets} of {offsets} results came in {LIMIT_S:.0f} s")
        found = results.offsets()
        if found > seen.offsets:
            seen = _Seen(time.monotonic(), cpu_seconds(pid), found)
        time.sleep(LOOK_S)
    return seen


@contextmanager
def running(command: Sequence[str]) -> Iterator[int]:
    """Run a contestant that says when it begins, and kill it at the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise WrongResultError(f"{' '.join(command[:3])} has ended with {process.wait(10)}")
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()  # type: ignore[union-attr]


def _check(what: str, values: list[bytes], views: Views) -> None:
    made = pl.read_ndjson(b"\n".join(values))
    right = views.results.expected(what)
    if what == "filter":
        sums = (pl.len(), pl.col("ts").sum(), pl.col("member").str.len_bytes().sum())
        right, made = right.select(sums), made.select(sums)
    else:
        made = made.filter(~pl.col("member").str.starts_with(LATE)).select("member", "start", "views")
        made = made.sort("member", "start")
    if not made.equals(right):
        raise WrongResultError(f"{what}: {made}, not {right}")


def _produce(brokers: str, topic: str, count: int) -> None:
    producer = open_plain_producer(KafkaSettings(brokers)).raw
    began = time.monotonic()
    for number in range(count):
        producer.poll(0)
        while (left := began + number / RATE - time.monotonic()) > 0:
            producer.poll(min(left, 0.01))
        view = {"member": f"member-{number % KEYS}", "url": "/", "ts": WallClock().now_ms()}
        producer.produce(topic, msgspec.json.encode(view))
    producer.flush(10)


def _read_ages(brokers: str, topic: str, wanted: int, more_s: float) -> list[tuple[float, float]]:
    """When results came, and after how many ms: as many as wanted, and those that come in the time after them."""
    ages: list[tuple[float, float]] = []
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "ages", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    end_s = time.monotonic() + WARM_S + WATCHED_S + LIMIT_S
    while time.monotonic() < end_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and (value := message.value()) is not None:
            sent_ms: int = msgspec.json.decode(value)["ts"]
            ages.append((time.monotonic(), time.time_ns() / 1e6 - sent_ms))
            if len(ages) == wanted:
                end_s = time.monotonic() + more_s
    consumer.close()
    return ages


def _own(command: Sequence[str]) -> dict[str, float]:
    """The figures that a contestant prints itself."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- parts ---------------------------------------------------------------------------------------------


def filters(scene: Scene, views: Views, fewer: Views, turns: Turns) -> dict[str, Throughput]:
    """Kafka in, filter, framed or Kafka out."""

    end = views.fill(scene.brokers, "views")

    def own(name: str, what: str) -> Contestant:
        def work(place: Path) -> Taken:
            found = _own(scene.ours(what, "views", str(end), COMMIT_MS, place))
            if found["kept"] != views.results.kept.height:
                raise WrongResultError(f"{what} has kept {found['kept']} of {views.results.kept.height}")
            share = views.messages / found["messages"]
            return Taken(found["wall_s"] * share, found["cpu_s"] * share)

        return Contestant(name, work, lambda _: None, views.messages)

    contestants = [
        own("bare loop, no output", "loop"),
        own("headrace, into its log", "framed"),
        scene.contestant("headrace, into Kafka", scene.ours, "filter", views),
        scene.contestant("Kafka Streams", scene.streams, "filter", views),
        scene.contestant("Quix Streams", scene.quix, "filter", fewer),
    ]
    return turns.alternate(contestants, views.messages, 0)


def counts(scene: Scene, views: Views, fewer: Views, turns: Turns) -> dict[str, Throughput]:
    """The windowed count in two stages, from Kafka into Kafka."""
    contestants = [
        scene.contestant("headrace", scene.ours, "count", views),
        scene.contestant("headrace, all streams in Kafka", scene.ours_in_kafka, "count", views),
        scene.contestant("Kafka Streams", scene.streams, "count", views),
        scene.contestant("Quix Streams", scene.quix, "count", fewer),
    ]
    return turns.alternate(contestants, views.messages, 0)


def frames(scene: Scene, messages: int, turns: Turns) -> dict[str, Throughput]:
    """Rows of files through a shuffle into an output, with both streams in the log or in Kafka."""
    with folder(scene.base) as place:
        views = page_views(place / "views", messages, KEYS, 2)
        expected = pl.read_parquet(views).filter(pl.col("url") != HEALTH)["ts"]

        def run(what: str, home: Path) -> Taken:
            found = _own(scene.ours(what, str(views), f"frames-{uuid.uuid4().hex[:8]}", COMMIT_MS, home))
            if (found["kept"], found["sum"]) != (expected.len(), expected.sum()):
                raise WrongResultError(f"{what} has kept {found['kept']} of {expected.len()}")
            return Taken(found["wall_s"], found["cpu_s"])

        contestants = [
            Contestant("frames in the log", partial(run, "frames-log"), lambda _: None),
            Contestant("frames in Kafka", partial(run, "frames-kafka"), lambda _: None),
        ]
        return turns.alternate(contestants, messages, 0)


def latencies(scene: Scene, turns: Turns) -> list[Latency]:
    """Latency by checkpoint interval."""
    found = []
    for interval_ms in INTERVALS_MS:
        those = [Latency("headrace", interval_ms), Latency("Kafka Streams", interval_ms)]
        for _ in turns.deadline.each(range(turns.repeats)):
            for number, command in enumerate((scene.ours, scene.streams)):
                one = those[number]
                try:
                    one.loads.append(os.getloadavg()[0])
                    one.runs.append(scene.latency(command, interval_ms))
                except InfrastructureError as error:
                    those[number] = replace(one, why=error.message)
                    continue
                p50, p99 = one.runs[-1]
                said = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms (load {one.loads[-1]:.1f})"
                scene.say(f"{one.name}, commits every {interval_ms} ms: {said}")
        found += those
    return found


def _medians(runs: list[tuple[float, float]]) -> tuple[float | None, float | None]:
    return (median([one for one, _ in runs]), median([two for _, two in runs])) if runs else (None, None)


@contextmanager
def scene_of(base: Path, say: Say) -> Iterator[Scene]:
    """A broker with nothing in it."""
    with KafkaServer(settings=_BROKER) as broker:
        yield Scene(broker.address, base, say)


def page_views_of(messages: int, say: Say) -> tuple[Views, Views]:
    """The page views, and fewer of them for Quix Streams."""
    views, fewer = (Views(n // WARM_SHARE, n, KEYS) for n in (messages, messages // QUIX_SHARE))
    say(f"{messages:,} page views of 200 bytes, and {messages // QUIX_SHARE:,} for Quix Streams")
    return views, fewer


def report(turns: Turns, to: Report, messages: int) -> None:
    """Measure everything but latency, and show it."""
    to.head(f"Kafka: load {os.getloadavg()[0]:.1f}")
    with scene_of(turns.base, to.say) as scene:
        views, fewer = page_views_of(messages, to.say)
        for part, title, measure in (
            ("filter", "Kafka in, filter", lambda: filters(scene, views, fewer, turns)),
            ("count", "windowed count from Kafka into Kafka", lambda: counts(scene, views, fewer, turns)),
            ("frames", "rows of files through two streams", lambda: frames(scene, FRAMED_SHARE * messages, turns)),
        ):
            to.keep(f"kafka-{part}", found := measure())
            compare(to, title, found, turns.missing)
        costs = kafka_output.measure(scene.brokers, messages, turns.repeats)
        to.keep("kafka-transactions", costs)
        to.table(
            "an output with transactions against one without",
            ["", "rows/s", "processor µs/row", "a version of 1,000 rows, p50 ms", "p99 ms"],
            [[name, *costs[name].values()] for name in ("transactions", "at_least_once")],
        )


def report_latency(turns: Turns, to: Report) -> None:
    """Measure latency, and show it."""
    to.head(f"Kafka: load {os.getloadavg()[0]:.1f}")
    with scene_of(turns.base, to.say) as scene:
        found = latencies(scene, turns)
    to.keep("kafka-latency", found)
    to.table(
        f"filter from Kafka into Kafka at {RATE} messages/s, until a consumer of committed records has it: "
        "median and range",
        ["", "commits every ms", "p50 ms", "ratio", "p99 ms", "ratio", "load", ""],
        [one.row(found[number // 2 * 2]) for number, one in enumerate(found)],
    )
