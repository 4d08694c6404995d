"""A function that ends its process isn't restarted for ever: the app fails, and says where it happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import headrace as hr

PIPELINE = """
import os

import polars as pl

import headrace as hr

app = hr.App("poisoned", restarts_max=2)
lines = app.input("lines", {"n": pl.Int64})

def cut(row):
    if row["n"] == 7:
        os._exit(3)
    return row

lines.map(cut, schema={"n": pl.Int64}).send_to(app.output("out"))
"""


@pytest.mark.slow
def test_a_function_that_ends_its_process_ends_the_app(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(PIPELINE)
    home = tmp_path / ".headrace"
    hr.streams.create_stream("lines", 1, {"n": pl.Int64}, home=home)
    with hr.streams.StreamWriter("lines", home=home) as writer:
        writer.write([{"n": n} for n in range(10)])
    command = [sys.executable, "-m", "headrace.cli.main", "run", "jobs.py", "--master", "local[1]", "--quiet"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert ran.returncode == 1, ran.stderr
    error = ran.stderr[ran.stderr.index("error") :]
    assert "3 times in a row, without a commit in between" in error
    assert f"called os._exit(3) at {tmp_path / 'jobs.py'}:13" in error
    assert "in the function of step 'map-1', task lines/0, on log.lines[0], offset" in error
