"""``headrace status`` after the end: how an app ended stays known, and a driver that died is said to be gone."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("ratios")
numbers = app.input("numbers", schema={{"n": pl.Int64}})
numbers.map(lambda row: {{"n": {result}}}, {{"n": pl.Int64}}).send_to(app.output("ratios"))
"""


def pipeline(cli: Cli, folder: Path, result: str) -> Path:
    (folder / "numbers.jsonl").write_text('{"n":1}\\n{"n":0}\\n'.replace("\\n", chr(10)))
    cli("stream", "write", "numbers", "numbers.jsonl", "--create", "--partitions", 1)
    file = folder / "pipeline.py"
    file.write_text(PIPELINE.format(result=result))
    return file


def test_the_error_that_ended_an_app_stays_known(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    run = spawn("run", pipeline(cli, tmp_path, "6 // row['n']"), "--local", "--quiet")
    assert run.wait(120) == 1
    (status,) = cli("status", "--json").json()
    assert (status["app"], status["state"]) == ("ratios", "failed")
    assert abs(status["endedAt"] - time.time() * 1000) < 120_000
    assert status["error"]["type"] == "UserFunctionError"
    assert "ZeroDivisionError" in status["error"]["message"]
    for words in ((), ("ratios",), ("ratios", "--watch")):
        shown = cli("status", *words)
        assert shown.code == 0
        assert shown.out.startswith("ratios  failed  20")
        assert "raised ZeroDivisionError" in shown.out
        assert "hint: fix the function" in shown.out


def test_a_run_that_ends_well_replaces_the_ending_before(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    assert spawn("run", pipeline(cli, tmp_path, "6 // row['n']"), "--local", "--quiet").wait(120) == 1
    cli("stream", "seal", "numbers")
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(result="row['n']"))
    assert spawn("run", file, "--local", "--quiet").wait(120) == 0
    (status,) = cli("status", "--json").json()
    assert (status["state"], status["error"]) == ("finished", None)
    assert cli("status").out.startswith("ratios  finished  20")


def test_a_driver_that_was_killed_is_said_to_be_gone(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    run = spawn("run", pipeline(cli, tmp_path, "row['n']"), "--local")
    assert run.stderr is not None
    while b"running" not in run.stderr.readline():
        pass
    run.send_signal(signal.SIGKILL)
    run.wait(120)
    (status,) = cli("status", "--json").json()
    assert (status["app"], status["state"]) == ("ratios", "gone")
    shown = cli("status", "ratios")
    assert shown.code == 0
    assert shown.out.startswith("ratios  gone  last alive 20")
    assert f"its driver (pid {run.pid} on " in shown.out
    assert "start the app again" in shown.out
