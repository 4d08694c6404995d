"""Two apps of one process beside each other, in the Spark that Headrace has started for the first of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr

PROGRAM = """
import polars as pl
from pyspark import SparkContext
import headrace as hr

SEEN = hr.metrics.counter("seen")

def count(row):
    SEEN.add(parity=row["n"] % 2)
    return row

def declare(name, source):
    app = hr.App(name, checkpoint_interval="200ms")
    numbers = app.input("numbers", {"n": pl.Int64}, physical=source)
    numbers.map(count, schema={"n": pl.Int64}).send_to(app.output("copies", physical=name))
    return app

first = declare("first", "ended").start(master="local[2]", containers=1, progress=False)
second = declare("second", "open").start(master="local[2]", containers=1, progress=False)
print(first.wait(timeout="200s").state, SparkContext._active_spark_context is None)
third = declare("third", "ended").start(master="local[2]", containers=1, progress=False, savepoint="at-once")
third.drain()  # before any container has begun
print(third.status().state, hr.read_savepoint(declare("third", "ended"), "at-once").app)
seen = first.metrics().filter(pl.col("name") == "seen_total").sort("parity")
print(seen.select("task", "parity", "value").rows())
print(second.wait(timeout="1s").state != "failed")
with hr.streams.StreamWriter("open") as writer:
    writer.write([{"n": 7}])
    writer.seal()
print(second.wait(timeout="200s").state, SparkContext._active_spark_context is None)
print(hr.streams.read_stream("first").rows(), hr.streams.read_stream("second").rows())
"""


@pytest.mark.spark
def test_apps_share_the_spark_that_was_started_and_the_last_one_ends_it(tmp_path: Path) -> None:
    for name in ("ended", "open"):
        hr.streams.create_stream(name, 1, {"n": int}, home=tmp_path)
    with hr.streams.StreamWriter("ended", home=tmp_path) as writer:
        writer.write([{"n": 1}, {"n": 2}, {"n": 3}])
        writer.seal()
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"HEADRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "finished False",
        "finished third",
        "[('numbers/0', '0', 1.0), ('numbers/0', '1', 2.0)]",
        "True",
        "finished True",
        "[(1,), (2,), (3,)] [(7,)]",
    ], ran.stderr
