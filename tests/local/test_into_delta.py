"""Whole apps into Delta tables, without Spark: each result is there exactly once."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from killed import Killed

import headrace as hr

NUMBERS = 2_000
KILLS = 3


def write(home: Path, numbers: range) -> None:
    rows = pl.DataFrame({"n": pl.Series(numbers, dtype=pl.UInt32)})
    rows = rows.with_columns(ts=(pl.col("n").cast(pl.Int64) * 2).cast(pl.Datetime("ms")))
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for batch in rows.iter_slices(100):
            writer.write(batch)


def commits(table: Path) -> int:
    return len(list(table.glob("_delta_log/*.json")))


@pytest.mark.slow
def test_rows_are_there_exactly_once_after_many_kills(tmp_path: Path) -> None:
    home, lake, draw = tmp_path / "home", tmp_path / "lake", random.Random(7)
    home.mkdir()
    hr.streams.create_stream("numbers", 2, {"n": pl.UInt32, "ts": pl.Datetime("ms")}, home=home)
    program = Killed("delta_program.py", home, lake)
    published: list[int] = []
    for first in range(0, KILLS * NUMBERS, NUMBERS):
        goal = sum(published[-1:]) + 1
        program.kill_when(
            lambda goal=goal: commits(lake / "copies") >= goal,
            partial(write, home, range(first, first + NUMBERS)),
            later_s=draw.uniform(0, 0.3),
        )
        published.append(commits(lake / "copies"))
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.seal()
    program.end()

    numbers = pl.DataFrame({"n": range(KILLS * NUMBERS)}).with_columns(digit=pl.col("n") % 10)
    wanted = (
        numbers.group_by("digit", second=pl.col("n") // 500)
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("n").sum())
        .sort("second", "digit")
    )
    counts = pl.read_delta(str(lake / "counts")).with_columns(second=pl.col("window_start").dt.epoch("s"))
    assert counts.select(wanted.columns).sort("second", "digit").rows() == wanted.rows()
    copied = pl.read_delta(str(lake / "copies"))["n"].sort()
    assert copied.to_list() == numbers["n"].to_list()
    assert len(list(lake.glob("counts/digit=*"))) == 10


def test_an_app_goes_on_while_its_table_is_compacted_and_widened(tmp_path: Path) -> None:
    home, table = tmp_path / "home", tmp_path / "views"
    columns = {"member": pl.String, "n": pl.Int64}

    def app(more: bool) -> hr.App:
        one = hr.App("views", home=home)
        views = one.input("views", columns, system=hr.io.files(str(tmp_path / "in/*.jsonl"), new_files="next_run"))
        steps = views.with_columns(big=pl.col("n") > 1) if more else views
        new_columns = "add" if more else "refuse"
        steps.send_to(one.output("lake", system=hr.io.delta(table, new_columns=new_columns)))
        return one

    (tmp_path / "in").mkdir()
    for run in range(4):
        pl.DataFrame({"member": ["ann"], "n": [run]}).write_ndjson(tmp_path / f"in/{run}.jsonl")
        app(more=run > 1).run(local=True, progress=False)
        if run == 2:
            assert DeltaTable(table).optimize.compact()["numFilesAdded"] == 1
    found = pl.read_delta(str(table)).sort("n")
    assert found["n"].to_list() == [0, 1, 2, 3]
    assert found["big"].to_list() == [None, None, True, True]
