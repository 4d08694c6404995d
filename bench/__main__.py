"""``python -m bench``: Headrace against Structured Streaming on this machine, and the costs of Headrace's own parts.

Parts, for ``--only``:
  a            throughput of a filter and a projection
  b            throughput of a windowed count after a shuffle (10,000 keys, 10 s tumbling windows of event time)
  c            end-to-end latency at 1,000 and at 50,000 messages a second
  control      cost of control messages for 4, 16 and 64 partitions
  keys         cost of a message for 1,000 to 1,000,000 keys
  guarantee    (b) with exactly-once against at-least-once
  checkpoint   cost of a checkpoint by number of tasks, and by size of the state
  nexmark      throughput of ten Nexmark queries
  restart      time and memory of a task's start by size of its state
  rescale      time to begin at a savepoint, as it is and with twice the partitions
  memory       peak memory of a task that reads one message for each of many keys, and ends
  wide         start, idling and descriptors of a container with 10 to 1,000 tasks, with a shuffle and without
  kafka        throughput over Kafka, against a bare loop, Kafka Streams and Quix Streams
  kafka-latency  latency from Kafka into Kafka, against Kafka Streams
  kinesis      throughput of a Kinesis input against a bare loop over boto3, and what a split, a merge and a kill cost
  history      throughput of a batch job over files against Spark SQL, a live run and Polars; and of Nexmark's queries

The times of (a) and (b): both contestants run in the same open and warm Spark session. For Structured Streaming the
time is from building the query until it has ended and its results are committed. For Headrace it is the whole of
``App.run``: planning, creating streams, starting the coordinator, launching and registering containers, the work, the
last checkpoint, and the end of the Spark job. Both read the same Parquet files. Contestants take turns, and medians
count. Every result is compared with what Polars computes from the same files, and a wrong result ends the run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from pyspark.sql import SparkSession
from rich.console import Console

from bench import (
    checkpoints,
    control,
    history,
    kafka,
    kinesis,
    latency,
    memory,
    nexmark,
    rescaled,
    restarts,
    throughput,
    wide,
)
from bench.data import page_views, windowed_counts
from bench.measure import WrongResultError
from bench.report import Report, machine
from bench.session import CORES, open_bench_session
from bench.state_apps import Shape

KEYS = 10_000
RATES = (1_000, 50_000)
HISTORY = 50_000_000
"""Messages of a batch job's input, if nobody asks for another number."""
PARTS = (
    "a",
    "b",
    "c",
    "control",
    "keys",
    "guarantee",
    "checkpoint",
    "nexmark",
    "restart",
    "rescale",
    "memory",
    "wide",
    "kafka",
    "kafka-latency",
    "kinesis",
    "history",
)


class Bench:
    """One run of the chosen parts."""

    def __init__(self, base: Path, options: argparse.Namespace, report: Report) -> None:
        self._session: SparkSession | None = None
        self.base = base
        self.quick: bool = options.quick
        self.messages: int = options.messages or (2_000_000 if self.quick else 10_000_000)
        self.repeats: int = options.repeats or (1 if self.quick else 5)
        self.queries: tuple[str, ...] = options.queries
        self.history_messages: int = options.messages or (2_000_000 if self.quick else HISTORY)
        self.report = report
        self.ratio: float | None = None
        self._views: Path | None = None

    @property
    def session(self) -> SparkSession:
        """The open session. Its JVM takes gigabytes, so parts without Spark don't open it."""
        if self._session is None:
            self._session = open_bench_session()
        return self._session

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
        views = self.views()
        self.report.head("(a) filter + projection")
        found = throughput.filter_and_project(
            self.session, views, self.messages, self.repeats, self.base, self.report.say
        )
        self._throughput("a", "(a) filter + projection", found)

    def b(self) -> None:
        """Measure the windowed count."""
        views = self.views()
        self.report.head("(b) windowed count in two stages")
        found = throughput.windowed_count(self.session, views, self.messages, self.repeats, self.base, self.report.say)
        self._throughput("b", "(b) windowed count in two stages", found)
        self.ratio = found["headrace"].messages_per_s / found["structured-streaming"].messages_per_s

    def guarantee(self) -> None:
        """Measure what exactly-once costs."""
        views = self.views()
        self.report.head("(b) exactly-once and at-least-once")
        found = throughput.guarantees(views, self.messages, self.repeats, self.base, self.report.say)
        once, least = found["exactly_once"], found["at_least_once"]
        rows = [[name, one.messages_per_s, one.wall_s, one.cpu_s] for name, one in found.items()]
        rows.append(["ratio", once.messages_per_s / least.messages_per_s, None, once.cpu_s / least.cpu_s])
        for interval in ("", ", 100ms"):
            cut, process = found[f"exactly_once{interval}"], found[f"exactly_once, process{interval}"]
            name = f"durability: commit to process{interval}"
            rows.append([name, cut.messages_per_s / process.messages_per_s, None, cut.cpu_s / process.cpu_s])
        self.report.keep("guarantee", found | {"ratio": once.messages_per_s / least.messages_per_s})
        self.report.table(
            "(b) by guarantee (expected ratio: 0.97 or better)", ["guarantee", "messages/s", "wall s", "cpu s"], rows
        )

    def c(self) -> None:
        """Measure end-to-end latency."""
        seconds = 5.0 if self.quick else 15.0
        rows, kept = [], {}
        for rate in RATES:
            self.report.head(f"(c) latency at {rate:,} messages/s")
            found = {
                "headrace, filter + projection": latency.headrace_latency(self.base, rate, seconds, shuffle=False),
                "headrace, with a shuffle": latency.headrace_latency(self.base, rate, seconds, shuffle=True),
                "structured-streaming, filter + projection": latency.better(
                    [
                        latency.structured_latency(self.session, self.base, rate, seconds, source) | {"source": source}
                        for source in ("socket", "files")
                    ]
                ),
            }
            kept[str(rate)] = found
            rows += [
                [name, rate, one.get("p50_ms"), one.get("p99_ms"), one.get("max_ms"), one["messages"]]
                for name, one in found.items()
            ]
        self.report.keep("c", kept)
        columns = ["", "messages/s", "p50 ms", "p99 ms", "max ms", "messages"]
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
        rows, kept = [], {}
        for keys in (1_000, 10_000, 100_000, 1_000_000):
            with throughput.folder(self.base) as place:
                views = page_views(place / "views", messages, keys, CORES)
                expected = windowed_counts(views)
                name = f"{keys:,} keys"
                counting = throughput.counting(expected, throughput.files_of(views))
                contestants = [throughput.Contestant(name, *counting)]
                repeats = 1 if self.quick else 3
                one = throughput.alternate(contestants, messages, repeats, self.base, self.report.say)[name]
            kept[str(keys)] = {"figures": one, "results": expected.height}
            rows.append([f"{keys:,}", expected.height, one.messages_per_s, one.cpu_s / messages * 1e9])
        self.report.keep("keys", {"messages": messages, **kept})
        self.report.table(
            f"(b) by number of keys, {messages:,} messages",
            ["keys", "results", "messages/s", "processor ns/message"],
            rows,
        )

    def checkpoint(self) -> None:
        """Measure the cost of checkpoints."""
        self.report.head("checkpoints")
        sizes = (10_000, 100_000) if self.quick else (10_000, 100_000, 1_000_000)
        costs = [checkpoints.checkpoint_cost(self.base, tasks, 10_000) for tasks in (1, 4, 16)]
        costs += [checkpoints.checkpoint_cost(self.base, 1, keys) for keys in sizes[1:]]
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
            for shape in shapes
            for keys in sizes
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
            memory.memory_cost(self.base, shape, keys, self.report.say) for shape in get_args(Shape) for keys in sizes
        ]
        self.report.keep("memory", costs)
        self.report.table(
            "one task that reads one message for each key, until its input ends",
            ["state", "keys", "RSS MB with all keys", "peak MB until then", "peak MB until the end", "seconds"],
            [[c.shape, c.keys, c.full_mb, c.taking_mb, c.peak_mb, c.seconds] for c in costs],
        )

    def wide(self) -> None:
        """Measure containers with many tasks."""
        costs = []
        for shuffle, numbers in ((False, (10, 100, 1000)), (True, (10, 100))):
            for partitions in numbers[:2] if self.quick else numbers:
                costs.append(cost := wide.measured_apart(partitions, shuffle=shuffle))
                self.report.say(json.dumps(cost))
        self.report.keep("wide", costs)

    def kafka(self) -> None:
        """Measure Kafka. See ``bench.kafka``."""
        kafka.report(self.base, self.report, 200_000 if self.quick else 1_000_000, 1 if self.quick else 3)

    def kafka_latency(self) -> None:
        """Measure latency over Kafka."""
        kafka.report_latency(self.base, self.report, 1 if self.quick else 3)

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
        repeats = min(self.repeats, 3)
        with throughput.folder(self.base) as place:
            views = page_views(place / "views", messages, KEYS, history.FILES)
            for part, what, measure in (
                ("history", "windowed count of {:,} messages in files", history.windowed_count),
                ("history-dataframes", "{:,} messages copied by Spark", history.streams_as_dataframes),
            ):
                found = measure(self.session, views, messages, repeats, self.base, self.report.say)
                self._compare(part, f"{what.format(messages)}, median of {repeats}", messages, found)
        self._nexmark_history(repeats)

    def _compare(self, part: str, title: str, messages: int, found: Mapping[str, throughput.Throughput]) -> None:
        """Compare contestants with the first of them."""
        first = next(iter(found.values()))
        ratios = {name: first.wall_s / one.wall_s for name, one in found.items()}
        self.report.table(
            title,
            ["", "messages/s", "wall s", "processor s", "ratio", "ratio by processor"],
            [[n, o.messages_per_s, o.wall_s, o.cpu_s, ratios[n], first.cpu_s / o.cpu_s] for n, o in found.items()],
        )
        self.report.keep(part, {"messages": messages, **found, "ratios": ratios})

    def _nexmark_history(self, repeats: int) -> None:
        self.report.head(f"batch: {self.messages:,} events of Nexmark in {CORES} Parquet files of each kind")
        rows, kept = [], {}
        with throughput.folder(self.base) as place:
            files = nexmark.data(place / "nexmark", self.messages)
            for query in self.queries:
                self.report.head(f"nexmark {query} as a batch job")
                found = history.nexmark_query(
                    self.session, files, query, self.messages, repeats, self.base, self.report.say
                )
                ours, peer = found[history.OURS], found.get(history.PEER)
                ratios = (peer.wall_s / ours.wall_s, peer.cpu_s / ours.cpu_s) if peer is not None else (None, None)
                kept[query] = found | {"ratio": ratios[0], "ratio_by_processor": ratios[1]}
                theirs = peer.messages_per_s if peer is not None else None
                rows.append([query, ours.messages_per_s, ours.wall_s, ours.cpu_s, theirs, *ratios])
        self.report.keep("history-nexmark", kept)
        columns = ["", "messages/s", "wall s", "processor s", "spark sql, messages/s", "ratio", "ratio by processor"]
        self.report.table(f"nexmark as batch jobs, median of {repeats}", columns, rows)

    def nexmark(self) -> None:
        """Measure Nexmark's queries."""
        self.report.head(f"{self.messages:,} events of Nexmark in {CORES} Parquet files of each kind")
        files = nexmark.data(self.base / "nexmark", self.messages)
        rows, kept = [], {}
        for query in self.queries:
            self.report.head(f"nexmark {query}")
            found = nexmark.measure(self.session, files, query, self.messages, self.repeats, self.base, self.report.say)
            ours, peer = found["headrace"], found.get("structured-streaming")
            ratios = (peer.wall_s / ours.wall_s, peer.cpu_s / ours.cpu_s) if peer is not None else (None, None)
            kept[query] = found | {"ratio": ratios[0], "ratio_by_processor": ratios[1]}
            theirs = peer.messages_per_s if peer is not None else None
            rows.append([query, ours.messages_per_s, ours.wall_s, ours.cpu_s, theirs, *ratios])
        self.report.keep("nexmark", kept)
        columns = ["", "messages/s", "wall s", "processor s", "structured, messages/s", "ratio", "ratio by processor"]
        self.report.table(f"nexmark, median of {self.repeats} (expected ratio: 3 or better)", columns, rows)

    def _throughput(self, part: str, title: str, found: dict[str, throughput.Throughput]) -> None:
        peer = found["structured-streaming"]
        self.report.keep(part, found)
        self.report.table(
            f"{title}: {self.messages:,} messages, median of {self.repeats}",
            ["", "messages/s", "wall s", "processor s", "ratio", "ratio by processor"],
            [
                [n, o.messages_per_s, o.wall_s, o.cpu_s, peer.wall_s / o.wall_s, peer.cpu_s / o.cpu_s]
                for n, o in found.items()
            ],
        )


def main() -> int:
    """Run the chosen parts. Return 0 if all results were right."""
    options = _options()
    report = Report(Console(width=120), machine())
    with TemporaryDirectory(prefix="headrace-bench-") as base:
        bench = Bench(Path(base), options, report)
        try:
            parts: dict[str, Callable[[], None]] = {part: getattr(bench, part.replace("-", "_")) for part in PARTS}
            for part in options.only:
                parts[part]()
            report.keep("ratio_b", bench.ratio)
        except WrongResultError as error:
            report.console.print(f"wrong results: {error}", style="red")
            return 1
        finally:
            bench.close()
    report.write(options.json)
    report.console.print(f"figures: {options.json}", highlight=False)
    if bench.ratio is not None:
        print(f"ratio throughput(b) headrace/structured-streaming = {bench.ratio:.2f}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d-%H%M")
    parser.add_argument("--quick", action="store_true", help="few messages and one repeat, to see that it works")
    parser.add_argument("--only", type=_some_of(PARTS), default=PARTS, metavar="PART,...", help="run only these parts")
    parser.add_argument(
        "--queries",
        type=_some_of(nexmark.READS),
        default=tuple(nexmark.READS),
        metavar="q0,...",
        help="run only these queries of nexmark",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("bench/results") / f"{today}.json",
        metavar="FILE",
        help="where to write the figures",
    )
    parser.add_argument("--messages", type=int, help="messages of (a) and (b) (default 10 million)")
    parser.add_argument("--repeats", type=int, help="counted runs of each contestant (default 5)")
    return parser.parse_args()


def _some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}")
        return names

    return chosen


if __name__ == "__main__":
    sys.exit(main())
