"""Calls and remote tables on the real log, killed repeatedly: calls are repeated, results count exactly once."""

from __future__ import annotations

import random
import sqlite3
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

import headrace as hr

COLUMNS = {"n": pl.Int64, "ts": pl.Int64}
ROUND = 1_000
KILLS = 3


def write(home: Path, numbers: range, *, seal: bool = False) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for batch in pl.DataFrame({"n": numbers}).select("n", ts=pl.col("n") * 10).iter_slices(20):
            writer.write(batch)
        if seal:
            writer.seal()


def done(home: Path, enough: int) -> bool:
    return hr.streams.read_stream("full", home=home).height >= enough


@pytest.mark.slow
def test_results_of_calls_count_once_after_many_kills(tmp_path: Path) -> None:
    draw = random.Random(5)
    hr.streams.create_stream("numbers", 1, COLUMNS, home=tmp_path)
    full = {"n": pl.Int64, "twice": pl.Int64, "third": pl.Int64, "rest": pl.Int64}
    hr.streams.create_stream("full", 2, full, home=tmp_path)
    program = Killed("calls_program.py", tmp_path, f"sqlite:///{tmp_path}/seconds.db")
    for first in range(0, KILLS * ROUND, ROUND):
        enough = first + draw.randrange(ROUND // 2)
        program.kill_when(partial(done, tmp_path, enough), partial(write, tmp_path, range(first, first + ROUND)))
    write(tmp_path, range(0), seal=True)
    program.end()

    numbers = pl.DataFrame({"n": range(KILLS * ROUND)})
    wanted = numbers.with_columns(twice=pl.col("n") * 2, third=pl.col("n") // 3, rest=pl.col("n") % 7)
    assert hr.streams.read_stream("full", home=tmp_path).sort("n").equals(wanted)
    connection = sqlite3.connect(tmp_path / "seconds.db")
    found = connection.execute("SELECT second, n, messages FROM seconds ORDER BY second").fetchall()
    connection.close()
    assert found == [(second, sum(range(second * 100, second * 100 + 100)), 100) for second in range(KILLS * 10)]
