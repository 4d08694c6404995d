"""Log lines of commands: levels, formats, together with other output; and warnings in the status."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_shop import Shop

from headrace.core.errors import UsageError
from headrace.core.log import LogSettings
from headrace.operate.cli.main import log_settings

Cli = Callable[..., Any]

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("doubles")
numbers = app.input("numbers", schema={"n": pl.Int64}, on_error="skip")
numbers.select(pl.col("n") * 2).send_to(app.output("doubles"))
"""


@pytest.fixture
def pipeline(tmp_path: Path, cli: Cli, clean_modules: None) -> Path:
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"n": "not a number"}\n{"n": "nor this"}\n')
    assert cli("stream", "create", "numbers", "--partitions", 1, "--schema", "n:str").code == 0
    assert cli("stream", "write", "numbers", rows).code == 0
    assert cli("stream", "seal", "numbers").code == 0
    return file


@pytest.mark.parametrize(
    ("words", "settings", "rest"),
    [
        ("run a.py", LogSettings("warning", "text"), "run a.py"),
        ("--log-level debug run a.py", LogSettings("debug", "text"), "run a.py"),
        ("run a.py --log-level=INFO --log-format json", LogSettings("info", "json"), "run a.py"),
        ("run --log-level info a.py --log-level off", LogSettings("off", "text"), "run a.py"),
        ("run a.py -- --log-level debug", LogSettings("warning", "text"), "run a.py -- --log-level debug"),
    ],
)
def test_the_options_may_be_anywhere_except_after_the_apps_own(words: str, settings: LogSettings, rest: str) -> None:
    assert log_settings(words.split()) == (settings, rest.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--log-level", "--log-level : expected one of debug, info, warning, error, off"),
        ("run --log-level loud", "--log-level loud: expected one of debug, info, warning, error, off"),
        ("run --log-format=xml", "--log-format xml: expected one of text, json"),
    ],
)
def test_another_value_is_refused(cli: Cli, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        log_settings(words.split())
    refused = cli(*words.split())
    assert (refused.code, refused.err.splitlines()[0]) == (2, f"error: {message}")


def test_a_run_warns_on_stderr_and_says_no_more(cli: Cli, pipeline: Path) -> None:
    run = cli("run", pipeline, "--local", "--quiet")
    assert (run.code, run.out) == (0, "")
    (line,) = run.err.splitlines()
    assert " WARNING headrace.task.inputs.intake: messages skipped input=log.numbers[0] offset=" in line
    assert line.endswith("times=2")
    assert [type(handler) for handler in logging.getLogger("headrace").handlers] == [logging.NullHandler]


def test_log_lines_can_be_more_fewer_and_json(cli: Cli, pipeline: Path) -> None:
    assert cli("run", pipeline, "--local", "--quiet", "--log-level", "off").err == ""
    run = cli("run", pipeline, "--local", "--quiet", "--log-level", "info", "--log-format", "json")
    found = [json.loads(line) for line in run.err.splitlines()]
    assert {line["level"] for line in found} == {"info"}  # the first run has read everything
    messages = {line["message"] for line in found}
    assert {"the container has started", "the task has its state and reads on"} <= messages, run.err


def test_progress_is_shown_beside_them(cli: Cli, pipeline: Path) -> None:
    run = cli("run", pipeline, "--local")
    kinds = ["log" if line.startswith("20") else "progress" for line in run.err.splitlines()]
    assert (kinds.count("log"), kinds[0], kinds[-1]) == (1, "progress", "progress")


def test_a_damaged_state_folder_is_in_the_log_and_in_the_status(
    cli: Cli, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(home)
    shop.price(lamp="1.00")
    with shop.running():
        shop.until_committed("prices", 1)
    (home / "state" / "shop" / "by-article-0" / "CURRENT").write_text("garbage")
    with shop.running():
        shop.until_committed("prices", 1)
        (status,) = cli("status", "shop", "--json").json()
        shown = cli("status", "shop").out
    shop.close()
    tasks = {task["name"]: task for task in status["tasks"]}
    (warning,) = tasks["by-article/0"]["warnings"]
    assert "by-article-0 can't be read" in warning["message"]
    assert warning["message"].endswith("; rebuilding it")
    assert (warning["times"], tasks["by-article/0"]["counters"]["warnings"]) == (1, 1)
    assert 0 < warning["atMs"] - status["startedAt"] < 60_000
    assert not tasks["by-article/1"]["warnings"]
    assert "warnings" not in tasks["by-article/1"]["counters"]
    assert f"  by-article/0: {warning['message']} (" in shown
    logged = [r for r in caplog.records if r.name == "headrace.task.state.task_state"]
    assert [(r.levelname, r.getMessage(), vars(r)["task"]) for r in logged] == [
        ("WARNING", warning["message"], "by-article/0")
    ]
