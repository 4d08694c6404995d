"""What is measured over Kafka, each in a process of its own: Headrace's apps, and a bare loop over confluent-kafka.

``python -m bench.kafka_apps WHAT FOLDER BROKERS INPUT OUTPUT COMMIT_MS``. ``loop`` and ``framed`` print their figures
as JSON; ``filter``, ``count`` and ``count-in-kafka`` print a line when they begin, and run until they are
killed. ``frames-log`` and ``frames-kafka`` print how long they took.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from bench.data import HEALTH, SCHEMA
from headrace.connectors.kafka.client import Consumer, KafkaError, TopicPartition
from headrace.run.spark.hosting import die_with_parent
from headrace.systems.log.system import LogSystem

AT_ONCE = 1000
LOOK_S = 0.01


def loop(brokers: str, topic: str) -> dict[str, float]:
    """Read everything, decode and filter it, as fast as it goes; times are those after the first batch."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "loop", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    ended, count, kept, first = False, 0, 0, 0
    began = cpu = 0.0
    while not ended:
        messages = consumer.consume(AT_ONCE, 0.1)
        values = [value for message in messages if message.error() is None and (value := message.value()) is not None]
        ended = any((e := m.error()) is not None and e.code() == KafkaError._PARTITION_EOF for m in messages)
        if values:
            views = pl.read_ndjson(io.BytesIO(b"\n".join(values)), schema=SCHEMA)
            kept += views.filter(pl.col("url") != HEALTH).select("member", "ts").height
            count += len(values)
            if not began:
                began, cpu, first = time.perf_counter(), time.process_time(), count
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    return {"messages": count - first, "kept": kept, "wall_s": wall_s, "cpu_s": cpu_s}


def framed(home: Path, brokers: str, topic: str, end: int) -> dict[str, float]:
    """Read everything into a stream of the log; times are those after its first frames were there."""
    app = hr.App("framed", home=str(home), checkpoint_interval="1s")
    kept(app, hr.io.kafka(topic, brokers=brokers, end={0: end})).send_to(app.output("kept", partitions=1))
    seen: list[tuple[float, float, int]] = []
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(home, seen, over))
    watch.start()
    app.run(local=True, progress=False)
    over.set()
    watch.join()
    (began, cpu, first), last = seen[0], seen[-1][2]
    ended, cpu_then, _ = next(one for one in seen if one[2] == last)
    messages = end * (1 - first / last)
    rows = hr.streams.read_stream("kept", home=home, committed=True).height
    return {"messages": messages, "kept": rows, "wall_s": ended - began, "cpu_s": cpu_then - cpu}


def _watch(home: Path, seen: list[tuple[float, float, int]], over: threading.Event) -> None:
    """Note how many bytes the output has, and when."""
    log = LogSystem(home / "streams").admin()
    while not over.wait(LOOK_S):
        if log.describe("kept") is None:
            continue
        size = sum(extent.upcoming for extent in log.extents("kept"))
        if size and (not seen or size > seen[-1][2]):
            seen.append((time.perf_counter(), time.process_time(), size))


def kept(app: hr.App, source: Any) -> hr.Stream:
    """The page views that count."""
    views = app.input("views", SCHEMA, event_time="ts", lateness="1s", system=source)
    return views.filter(pl.col("url") != HEALTH).select("member", "ts")


def endless(what: str, home: Path, brokers: str, topic: str, output: str, commit_ms: int) -> hr.App:
    """The apps that are watched from outside."""
    options: dict[str, Any] = {"home": str(home), "checkpoint_interval": f"{commit_ms}ms"}
    if what == "count-in-kafka":
        options["system"] = hr.io.kafka_log(brokers, prefix=f"{output}.")
    app = hr.App(output, **options)
    source = hr.io.kafka(topic, brokers=brokers)
    target = hr.io.kafka(output, brokers=brokers, key="member")
    if what == "filter":
        kept(app, source).send_to(app.output("out", system=target))
        return app
    by_member = kept(app, source).partition_by("member", id="by-member", partitions=1)
    counts = by_member.window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=hr.count())
    counts.select("member", "views", start=pl.col("window_start").cast(pl.Int64)).send_to(
        app.output("out", system=target)
    )
    return app


def frames(home: Path, views: Path, system: Any) -> dict[str, float]:
    """Rows of files through two streams of one system or the other; times from the first batch on.

    Nothing is counted in windows: partial results would leave few rows to move.
    """
    begun: list[tuple[float, float]] = []

    def begin(batch: pl.DataFrame) -> pl.DataFrame:
        if not begun:
            begun.append((time.perf_counter(), time.process_time()))
        return batch

    app = hr.App("frames", home=str(home), **({} if system is None else {"system": system}))
    source = app.input("views", SCHEMA, event_time="ts", lateness="1s", system=hr.io.files(views / "*.parquet"))
    by_member = source.map_batches(begin).filter(pl.col("url") != HEALTH).partition_by("member", id="by-member")
    by_member.select("member", "ts").send_to(app.output("kept"))
    app.run(local=True, progress=False)
    (began_s, cpu_s), ended_s, used_s = begun[0], time.perf_counter(), time.process_time()
    where = {"home": home} if system is None else {"system": system}
    rows = hr.streams.read_stream("kept", committed=True, **where)
    return {"wall_s": ended_s - began_s, "cpu_s": used_s - cpu_s, "kept": rows.height, "sum": int(rows["ts"].sum())}


def main() -> None:
    """Be what the arguments name."""
    die_with_parent()
    what, folder, brokers, topic, output, commit_ms = sys.argv[1:]
    home = Path(folder)
    if what == "loop":
        print(json.dumps(loop(brokers, topic)))
    elif what == "framed":
        print(json.dumps(framed(home, brokers, topic, int(output))))
    elif what == "frames-log":
        print(json.dumps(frames(home, Path(topic), None)))
    elif what == "frames-kafka":
        print(json.dumps(frames(home, Path(topic), hr.io.kafka_log(brokers, prefix=f"{output}."))))
    else:
        app = endless(what, home, brokers, topic, output, int(commit_ms))
        print("running", flush=True)
        app.run(local=True, progress=False)


if __name__ == "__main__":
    main()
