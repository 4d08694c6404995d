"""(c): how old a message is when its result can be read, at a steady rate.

Headrace: a producer process appends to a stream of the log; an app in containers filters, projects and writes to
another stream (the second variant with a shuffle by member between them); a reader process tails that. Frames are
read before their commit, as the next stage of an app would.

Structured Streaming: open source PySpark without further jars has three triggers for low latency. Real-time mode
refuses every source that is there without Kafka's jar; continuous processing shows results at the end of an epoch
of a second or more; so it is micro-batches back to back (``processingTime="0 seconds"``), the checkpoint on a memory
file system, and ``foreachBatch`` that takes the rows and looks at the clock, which stores nothing and so is in its
favour. The source is a socket (rows are there the moment they are sent; not durable, so again in its favour) or a
folder of Parquet files; both are measured and the better one counts. The rate source is no choice: it hands out rows
once a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from bench.session import CORES
from bench.tail import summary
from bench.throughput import folder

WARM_UP_S = 4.0
SCHEMA = {"sent": pl.Int64, "url": pl.String, "member": pl.String}
_MEMORY = Path("/dev/shm")
_GRACE_S = 30.0


def headrace_latency(base: Path, rate: int, seconds: float, *, shuffle: bool) -> dict[str, float]:
    """Percentiles for Headrace."""
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
            told, _ = reader.communicate("stop\n", timeout=_GRACE_S)
            figures: dict[str, float] = json.loads(told.splitlines()[-1])
            return figures
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
    """Percentiles for Structured Streaming from ``socket`` or ``files``."""
    with folder(base) as place, folder(_MEMORY if _MEMORY.is_dir() else base) as checkpoint:
        target = place / source
        if source == "files":
            target.mkdir()
        feeder = _start("bench.feeder", source, target, rate, seconds + WARM_UP_S + 3.0)
        try:
            rows = _from_socket(session, target) if source == "socket" else _from_files(session, target)
            return _age_of(rows, checkpoint, seconds)
        finally:
            _end(feeder)


def _from_socket(session: SparkSession, port_file: Path) -> DataFrame:
    deadline = time.monotonic() + _GRACE_S
    while not port_file.exists():  # another process makes it; there is nothing to wait on
        if time.monotonic() > deadline:
            raise TimeoutError("the feeder didn't start")
        time.sleep(0.01)
    lines = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port_file.read_text()).load()
    part = F.split("value", ",")
    return lines.select(part[0].cast("long").alias("sent"), part[1].alias("url"), part[2].alias("member"))


def _from_files(session: SparkSession, target: Path) -> DataFrame:
    return session.readStream.schema("sent long, url string, member string").parquet(str(target))


def _age_of(rows: DataFrame, checkpoint: Path, seconds: float) -> dict[str, float]:
    ages: list[np.ndarray] = []
    warm_from: list[int] = []

    def look(batch: DataFrame, _: int) -> None:
        sent = batch.select("sent", "member").toArrow()["sent"].to_numpy()
        now = time.time_ns() // 1000
        if len(sent):
            warm_from.append(now + int(WARM_UP_S * 1e6))
            ages.append((now - sent)[sent >= warm_from[0]])

    writer = rows.where(F.col("url") != "/health").writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()
    try:
        query.awaitTermination(int(seconds + WARM_UP_S))
    finally:
        query.stop()
    return summary(ages) | {"batches": len(ages)}


def _start(module: str, *arguments: object, read: bool = False) -> subprocess.Popen[str]:
    pipe: Any = subprocess.PIPE if read else None
    return subprocess.Popen([sys.executable, "-m", module, *map(str, arguments)], stdin=pipe, stdout=pipe, text=True)


def _end(*processes: subprocess.Popen[str] | None) -> None:
    for process in processes:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait(timeout=10)


def better(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The one with the lower 99th percentile; one that saw no message after the warm-up is none."""
    return min((one for one in measured if one.get("messages")), key=lambda one: one["p99_ms"], default={"messages": 0})
