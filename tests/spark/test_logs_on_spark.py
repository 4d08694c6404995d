"""Log lines of containers on Spark: at the driver's level, in its format, on its stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr

PIPELINE = """
import logging
import polars as pl
import headrace as hr

def counted(row):
    logging.getLogger("shop").warning("a number", extra={"url": "db://me:secret@host/numbers"})
    return row

app = hr.App("doubles")
numbers = app.input("numbers", schema={"n": pl.Int64}, on_error="skip")
numbers.map(counted, schema={"n": pl.Int64}).select(pl.col("n") * 2).send_to(app.output("doubles"))
"""


@pytest.mark.spark
def test_containers_log_what_the_command_asks_for(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": "not a number"}])
        writer.write([{"n": 12}])
        writer.seal()
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    words = ["run", "pipeline.py", "--master", "local[2]", "--quiet", "--log-level", "info", "--log-format", "json"]
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.operate.cli.main", *words],
        cwd=tmp_path,
        env=os.environ | {"HEADRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    registered = [line for line in lines if line["message"] == "the container has registered"]
    assert sorted((line["container"], line["attempt"]) for line in registered) == [(0, 0), (1, 0)]
    (skipped,) = (line for line in lines if line["message"] == "messages skipped")
    assert (skipped["level"], skipped["logger"]) == ("warning", "headrace.task.inputs.intake")
    assert {"container", "attempt", "input", "offset", "reason"} <= skipped.keys()
    (own,) = (line for line in lines if line["logger"] == "shop")  # of the app's own code
    assert (own["level"], own["message"], own["app"], own["stage"]) == ("warning", "a number", "doubles", "numbers")
    assert own["task"] == f"numbers/{own['container']}"
    assert own["url"] == "db://me:***@host/numbers"
    assert "the container has ended: all its tasks are over" in {line["message"] for line in lines}
