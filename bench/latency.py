"""(c): the age of a message when its result can be read, at a steady rate.

Headrace: a producer process appends to a stream of the log. An app in containers filters, projects and writes to
another stream, in a second variant with a shuffle by member in between. A reader process tails that stream. It reads
frames before their commit, as the next stage of an app would.

Structured Streaming: open source PySpark without further jars has three triggers for low latency. Real-time mode
refuses every source that is available without Kafka's jar. Continuous processing shows results only at the end of an
epoch of a second or more. So it runs micro-batches back to back (``processingTime="0 seconds"``), with its checkpoint
on a memory file system. ``foreachBatch`` takes the rows and reads the clock; it stores nothing, which is in Spark's
favour. The source is a socket, where rows are available as soon as they are sent (it isn't durable, again in Spark's
favour), or a folder of Parquet files. Both are measured, and the better one counts. The rate source doesn't qualify,
since it emits rows once a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from bench.measure import CORES
from bench.tail import summary
from bench.turns import folder

WARM_UP_S = 4.0
SCHEMA = {"sent": pl.Int64, "url": pl.String, "member": pl.String}
_MEMORY = Path("/dev/shm")
_GRACE_S = 30.0


def headrace_latency(base: Path, rate: int, seconds: float, *, shuffle: bool) -> dict[str, float]:
    """Return percentiles for Headrace."""
    with folder(base) as home:
        app = _app(home, shuffle=shuffle)
        hr.streams.create_stream("requests", partitions=CORES, schema=SCHEMA, home=home)
        answers = {name: SCHEMA[name] for name in ("sent", "member")}
        hr.streams.create_stream("answers", partitions=CORES, schema=answers, home=home)
        reader = _start("bench.tail", home, "answers", WARM_UP_S, read=True)
        feeder = None
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            feeder = _start("bench.feeder", "log", home, "requests", rate, seconds + WARM_UP_S)
            app.run(containers=CORES, progress=False)
            output, _ = reader.communicate("stop\n", timeout=_GRACE_S)
            figures: dict[str, float] = json.loads(output.splitlines()[-1])
            return figures | {"load": os.getloadavg()[0]}
        finally:
            _end(reader, feeder)


def _app(home: Path, *, shuffle: bool) -> hr.App:
    app = hr.App("bench-latency", home=str(home))
    kept = app.input("requests", SCHEMA).filter(pl.col("url") != "/health").select("sent", "member")
    if shuffle:
        kept = kept.partition_by("member", id="by-member", partitions=CORES)
    kept.send_to(app.output("answers", partitions=CORES))
    return app


def structured_latency(session: SparkSession, base: Path, rate: int, seconds: float, source: str) -> dict[str, float]:
    """Return percentiles for Structured Streaming, reading from ``socket`` or ``files``."""
    with folder(base) as place, folder(_MEMORY if _MEMORY.is_dir() else base) as checkpoint:
        target = place / source
        if source == "files":
            target.mkdir()
        feeder = _start("bench.feeder", source, target, rate, seconds + WARM_UP_S + 3.0)
        try:
            rows = _from_socket(session, target) if source == "socket" else _from_files(session, target)
            return _age_of(rows, checkpoint, seconds, partial(_end, feeder))
        finally:
            _end(feeder)


def _from_socket(session: SparkSession, port_file: Path) -> DataFrame:
    deadline = time.monotonic() + _GRACE_S
    while not port_file.exists():  # another process creates it, so there is no event to wait for
        if time.monotonic() > deadline:
            raise TimeoutError(f"the feeder didn't start within {_GRACE_S:g} s")
        time.sleep(0.01)
    lines = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port_file.read_text()).load()
    part = F.split("value", ",")
    return lines.select(part[0].cast("long").alias("sent"), part[1].alias("url"), part[2].alias("member"))


def _from_files(session: SparkSession, target: Path) -> DataFrame:
    return session.readStream.schema("sent long, url string, member string").parquet(str(target))


def _age_of(rows: DataFrame, checkpoint: Path, seconds: float, end_input: Callable[[], None]) -> dict[str, float]:
    ages: list[np.ndarray] = []
    warm_from: list[int] = []
    reading, over = Lock(), Event()

    def note_ages(batch: DataFrame, _: int) -> None:
        with reading:
            if over.is_set():
                return
            sent = batch.select("sent", "member").toArrow()["sent"].to_numpy()
            now = time.time_ns() // 1000
            if len(sent):
                warm_from.append(now + int(WARM_UP_S * 1e6))
                ages.append((now - sent)[sent >= warm_from[0]])

    writer = rows.where(F.col("url") != "/health").writeStream.foreachBatch(note_ages)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
    try:
        query.awaitTermination(int(seconds + WARM_UP_S))
        end_input()
        query.processAllAvailable()  # a session in which a batch was interrupted may not run another job
    finally:
        with reading:  # Spark looks for the cause of an interrupted batch with a pattern that overflows its stack
            over.set()
        query.stop()
    return summary(ages) | {"batches": len(ages), "load": os.getloadavg()[0]}


def _start(module: str, *arguments: object, read: bool = False) -> subprocess.Popen[str]:
    pipe: Any = subprocess.PIPE if read else None
    return subprocess.Popen([sys.executable, "-m", module, *map(str, arguments)], stdin=pipe, stdout=pipe, text=True)


def _end(*processes: subprocess.Popen[str] | None) -> None:
    for process in processes:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(timeout=10)


def better(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result with the lower 99th percentile, among those with messages after the warm-up."""
    nothing = {"messages": 0, "load": os.getloadavg()[0]}
    return min((one for one in measured if one.get("messages")), key=lambda one: one["p99_ms"], default=nothing)
