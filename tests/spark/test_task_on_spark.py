"""A low-level task on real Spark: its class reaches the containers, and one of them can drain the whole app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import headrace as hr

PROGRAM = Path(__file__).parents[1] / "local" / "task_program.py"
COLUMNS = {"member": pl.String, "n": pl.Int64, "ts": pl.Int64}


def run(home: Path, *master: str) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(home), *master],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("ended\n")


@pytest.mark.spark
@pytest.mark.slow
def test_a_task_in_one_container_has_the_app_drained(tmp_path: Path) -> None:
    hr.streams.create_stream("messages", 1, COLUMNS, home=tmp_path)
    rows = [{"member": f"m{n % 7}", "n": n, "ts": n} for n in range(100)]
    with hr.streams.StreamWriter("messages", home=tmp_path) as writer:
        writer.write([*rows, {"member": "end", "n": 0, "ts": 5_000}])
    run(tmp_path, "local[2]")
    # The next run does what the drain left undone, and ends by itself.
    with hr.streams.StreamWriter("messages", home=tmp_path) as writer:
        writer.seal()
    run(tmp_path)
    counted = hr.streams.read_stream("counted", home=tmp_path)
    assert counted["last"].sort().to_list() == list(range(100))
    assert hr.streams.read_stream("quiet", home=tmp_path)["member"].sort().to_list() == [f"m{n}" for n in range(7)]
