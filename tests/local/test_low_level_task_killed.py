"""A low-level task on the real log and on RocksDB, killed repeatedly: stores and timers count exactly once."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from killed import Killed

import headrace as hr

COLUMNS = {"member": pl.String, "n": pl.Int64, "ts": pl.Int64}
MEMBERS = 40
ROUND = 2_000
KILLS = 3


def messages(numbers: range) -> pl.DataFrame:
    """Members take turns, 10 ms apart, so each comes back after 400 ms. Only after its last message is one idle."""
    return pl.DataFrame({"n": numbers}).select(
        pl.format("m{}", pl.col("n") % MEMBERS).alias("member"), "n", ts=pl.col("n") * 10
    )


def write(home: Path, rows: pl.DataFrame, *, seal: bool = False) -> None:
    with hr.streams.StreamWriter("messages", home=home) as writer:
        for batch in rows.iter_slices(50):
            writer.write(batch)
        if seal:
            writer.seal()


def committed(home: Path) -> int:
    return hr.streams.read_stream("counted", home=home).height


@pytest.mark.slow
def test_stores_and_timers_count_once_after_many_kills(tmp_path: Path) -> None:
    draw = random.Random(3)
    hr.streams.create_stream("messages", 1, COLUMNS, home=tmp_path)
    hr.streams.create_stream("counted", 2, {"member": pl.String, "n": pl.Int64, "last": pl.Int64}, home=tmp_path)
    program = Killed("task_program.py", tmp_path)
    for first in range(0, KILLS * ROUND, ROUND):
        enough = first // 2 + draw.randrange(ROUND // 2)
        rows = messages(range(first, first + ROUND))
        program.kill_when(lambda enough=enough: committed(tmp_path) >= enough, partial(write, tmp_path, rows))
    write(tmp_path, messages(range(0)), seal=True)
    program.end()

    total = KILLS * ROUND
    counted = hr.streams.read_stream("counted", home=tmp_path)
    wanted = messages(range(total)).select("member", n=pl.col("n") // MEMBERS + 1, last="n")
    assert counted.sort("last").equals(wanted)
    quiet = hr.streams.read_stream("quiet", home=tmp_path)
    last = messages(range(total - MEMBERS, total)).select(
        "member", n=pl.col("n") // MEMBERS + 1, ts=pl.col("ts") + 1000
    )
    assert quiet.sort("ts").equals(last)


def test_a_task_that_asks_for_the_end_drains_the_app(tmp_path: Path) -> None:
    hr.streams.create_stream("messages", 1, COLUMNS, home=tmp_path)
    end = pl.DataFrame({"member": ["end"], "n": [0], "ts": [0]})
    write(tmp_path, pl.concat([messages(range(100)), end]))
    Killed("task_program.py", tmp_path).end()
    assert committed(tmp_path) == 100

    write(tmp_path, messages(range(100, 120)))  # the next run continues after it
    write(tmp_path, end)
    Killed("task_program.py", tmp_path).end()
    assert hr.streams.read_stream("counted", home=tmp_path)["last"].sort().to_list() == list(range(120))
