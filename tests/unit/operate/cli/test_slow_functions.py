"""A function that doesn't return: status names it, its container isn't lost, and a drain ends."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

PIPELINE = """
import time
import polars as pl
import headrace as hr

app = hr.App("slow", drain_timeout="1s", hung_after="{hung_after}")
numbers = app.input("numbers", schema={{"n": pl.Int64}})
{step}.send_to(app.output("rest"))
"""
FILTER = "numbers.filter(lambda row: time.sleep(3600))"
EXPRESSION = "numbers.filter(pl.col('n').map_elements(lambda n: time.sleep(3600), return_dtype=pl.Boolean))"


@pytest.fixture
def stuck(cli: Cli, spawn: Spawn, tmp_path: Path, request: pytest.FixtureRequest) -> subprocess.Popen[bytes]:
    (tmp_path / "numbers.jsonl").write_text('{"n":1}\n{"n":2}\n')
    cli("stream", "write", "numbers", "numbers.jsonl", "--create", "--partitions", 1)
    (tmp_path / "pipeline.py").write_text(
        PIPELINE.format(**{"hung_after": "10m", "step": FILTER} | getattr(request, "param", {}))
    )
    return spawn("run", "pipeline.py", "--local", "--quiet")


def until_held_up(cli: Cli) -> dict[str, Any]:
    never, deadline = threading.Event(), time.monotonic() + 100
    while time.monotonic() < deadline:
        for status in cli("status", "--json").json():
            if any(one["what"] == "user code" for task in status["tasks"] for one in task["holdups"]):
                return dict(status)
        never.wait(0.1)
    raise AssertionError("no task was held up")


def test_a_function_that_sleeps_is_named_and_a_drain_interrupts_it(cli: Cli, stuck: subprocess.Popen[bytes]) -> None:
    status = until_held_up(cli)
    assert [container["state"] for container in status["containers"]] == ["running"]
    (task,) = status["tasks"]
    (holdup,) = task["holdups"]
    assert holdup["what"] == "user code"
    assert holdup["where"].startswith("the function of step 'filter-1' in task numbers/0, on log.numbers[0], offset")
    assert 2000 <= time.time() * 1000 - holdup["sinceMs"] < 100_000
    assert "pipeline.py:8" in holdup["where"]
    assert "numbers/0, for " in cli("status").out
    stuck.send_signal(signal.SIGINT)
    _, err = stuck.communicate(timeout=60)
    assert stuck.returncode == 1, err.decode()
    told = err.decode().replace("\n  ", " ")
    assert "the drain waits for the end of the function of step 'filter-1'" in told
    assert "error: the drain didn't end within 1s: container 0 is still in the function of step" in told
    assert cli("status").out.startswith("slow  failed  ")


@pytest.mark.parametrize(
    ("stuck", "where"),
    [
        ({"hung_after": "3s"}, "the function of step 'filter-1'"),
        ({"hung_after": "6s", "step": EXPRESSION}, "one turn of the container's run loop, in the app's own code"),
    ],
    indirect=["stuck"],
)
def test_a_function_that_hangs_ends_a_local_run(cli: Cli, stuck: subprocess.Popen[bytes], where: str) -> None:
    _, err = stuck.communicate(timeout=100)
    assert stuck.returncode == 1
    told = err.decode().replace("\n  ", " ")
    assert f"has been in one call for more than {'3s' if 'step' in where else '6s'}, so the app ends in {where}" in told
    assert "pipeline.py:8" in told
    assert "hint: add a timeout to the call that the function waits for" in told
    assert cli("status").out.startswith("slow  failed  ")
