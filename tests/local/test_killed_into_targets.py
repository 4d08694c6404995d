"""An app that is killed again and again, without Spark: each result is in its targets exactly once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl
import pytest

import headrace as hr

PROGRAM = Path(__file__).with_name("counting_program.py")
NUMBERS = 5_000
KILLS = 8


@contextmanager
def running(home: Path, database: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(home), str(database)], stdout=subprocess.PIPE, text=True, cwd=home
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def counts(database: Path) -> pl.DataFrame:
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT digit, window_start, n, total FROM counts").fetchall()
    schema = {"digit": pl.Int64, "window_start": pl.Int64, "n": pl.Int64, "total": pl.Int64}
    return pl.DataFrame(found, schema=schema, orient="row").sort("window_start", "digit")


def write(home: Path, numbers: range) -> None:
    rows = pl.DataFrame({"n": numbers}).with_columns(ts=pl.col("n") * 2)
    with hr.StreamWriter("numbers", home=home) as writer:
        for batch in rows.iter_slices(100):
            writer.write(batch)


def copies(home: Path) -> int:
    return len(list(home.glob("copies/*.jsonl")))


def live_on(process: subprocess.Popen[str], enough: Callable[..., bool]) -> None:
    """Return when it is enough; the process must not end before."""
    for _ in range(3000):
        if enough():
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
    raise AssertionError("it doesn't get on")


@pytest.mark.slow
def test_rows_are_there_exactly_once_after_many_kills(tmp_path: Path) -> None:
    home, database, draw = tmp_path / "home", tmp_path / "results.db", random.Random(7)
    home.mkdir()
    hr.create_stream("numbers", 2, {"n": pl.Int64, "ts": pl.Int64}, home=home)
    published = []
    for kill in range(KILLS):
        with running(home, database) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            write(home, range(kill * NUMBERS, (kill + 1) * NUMBERS))
            goal = sum(published[-1:]) + draw.randrange(3)
            live_on(process, lambda goal=goal: copies(home) >= goal)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0, 0.2))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
        published.append(copies(home))
    with hr.StreamWriter("numbers", home=home) as writer:
        writer.seal()
    with running(home, database) as process:
        said, _ = process.communicate(timeout=60)
        assert said == "running\nended\n"
        assert process.returncode == 0
    assert published[0] < published[-1]  # it got on between the kills

    numbers = pl.DataFrame({"n": range(KILLS * NUMBERS)}).with_columns(ts=pl.col("n") * 2, digit=pl.col("n") % 10)
    wanted = (
        numbers.group_by("digit", window_start=pl.col("ts") // 1000 * 1000)
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("n").sum())
        .select("digit", "window_start", "n", "total")
        .sort("window_start", "digit")
    )
    assert counts(database).equals(wanted)
    copied = pl.concat(pl.read_ndjson(path) for path in home.glob("copies/*.jsonl"))
    assert copied["n"].sort().equals(numbers["n"])
