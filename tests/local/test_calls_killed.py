"""Calls and remote tables on the real log, killed again and again: calls are repeated, results count exactly once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

import headrace as hr

PROGRAM = Path(__file__).with_name("calls_program.py")
COLUMNS = {"n": pl.Int64, "ts": pl.Int64}
ROUND = 1_000
KILLS = 4


@contextmanager
def running(home: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), str(home), f"sqlite:///{home}/seconds.db"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def write(home: Path, numbers: range, *, seal: bool = False) -> None:
    with hr.StreamWriter("numbers", home=home) as writer:
        for batch in pl.DataFrame({"n": numbers}).select("n", ts=pl.col("n") * 10).iter_slices(20):
            writer.write(batch)
        if seal:
            writer.seal()


def live_on(process: subprocess.Popen[str], home: Path, enough: int) -> None:
    for _ in range(600):
        if hr.read_stream("full", home=home).height >= enough:
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("it doesn't get on")


@pytest.mark.slow
def test_results_of_calls_count_once_after_many_kills(tmp_path: Path) -> None:
    draw = random.Random(5)
    hr.create_stream("numbers", 1, COLUMNS, home=tmp_path)
    full = {"n": pl.Int64, "twice": pl.Int64, "third": pl.Int64, "rest": pl.Int64}
    hr.create_stream("full", 2, full, home=tmp_path)
    for kill in range(KILLS):
        done = kill * ROUND
        with running(tmp_path) as process:
            write(tmp_path, range(done, done + ROUND))
            live_on(process, tmp_path, done + draw.randrange(ROUND // 2))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
    write(tmp_path, range(0), seal=True)
    with running(tmp_path) as process:
        said, _ = process.communicate(timeout=60)
        assert (said, process.returncode) == ("ended\n", 0)

    numbers = pl.DataFrame({"n": range(KILLS * ROUND)})
    wanted = numbers.with_columns(twice=pl.col("n") * 2, third=pl.col("n") // 3, rest=pl.col("n") % 7)
    assert hr.read_stream("full", home=tmp_path).sort("n").equals(wanted)
    connection = sqlite3.connect(tmp_path / "seconds.db")
    found = connection.execute("SELECT second, n, messages FROM seconds ORDER BY second").fetchall()
    connection.close()
    assert found == [(second, sum(range(second * 100, second * 100 + 100)), 100) for second in range(KILLS * 10)]
