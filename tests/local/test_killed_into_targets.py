"""An app that is killed repeatedly, without Spark: each result is in its targets exactly once."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

import headrace as hr

NUMBERS = 5_000
KILLS = 4


def counts(database: Path) -> pl.DataFrame:
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT digit, window_start, n, total FROM counts").fetchall()
    schema = {"digit": pl.Int64, "window_start": pl.Int64, "n": pl.Int64, "total": pl.Int64}
    return pl.DataFrame(found, schema=schema, orient="row").sort("window_start", "digit")


def write(home: Path, numbers: range) -> None:
    rows = pl.DataFrame({"n": numbers}).with_columns(ts=pl.col("n") * 2)
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for batch in rows.iter_slices(100):
            writer.write(batch)


def copies(home: Path) -> int:
    return len(list(home.glob("copies/*.jsonl")))


@pytest.mark.slow
def test_rows_are_there_exactly_once_after_many_kills(tmp_path: Path) -> None:
    home, database, draw = tmp_path / "home", tmp_path / "results.db", random.Random(7)
    home.mkdir()
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64, "ts": pl.Int64}, home=home)
    program = Killed("counting_program.py", home, database)
    published: list[int] = []
    for first in range(0, KILLS * NUMBERS, NUMBERS):
        goal = sum(published[-1:]) + draw.randrange(3)
        program.kill_when(
            lambda goal=goal: copies(home) >= goal,
            partial(write, home, range(first, first + NUMBERS)),
            later_s=draw.uniform(0, 0.2),
        )
        published.append(copies(home))
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.seal()
    program.end()
    assert published[0] < published[-1]  # it made progress between the kills

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
