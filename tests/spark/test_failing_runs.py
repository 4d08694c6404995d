"""How ``headrace run`` ends when an app can't go on: one error, with the place. All in the session of these tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext
from two_stages import TwoStages

from headrace.operate.cli.main import main

HeadraceRun = Callable[..., str]

ENDS_ITS_PROCESS = """
import os

import polars as pl

import headrace as hr

app = hr.App("poisoned", home={home!r}, restarts_max=2)
lines = app.input("orders", {{"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}})

def cut(row):
    if row["order"] == 7:
        os._exit(3)
    return {{"order": row["order"]}}

lines.map(cut, schema={{"order": pl.Int64}}).send_to(app.output("out"))
"""


@pytest.fixture
def failing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spark_context: SparkContext
) -> HeadraceRun:
    """The command, for an app that fails: what it says."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setitem(sys.modules, "__headrace_app__", sys)  # what it loads is forgotten afterwards

    def run(file: Path, *options: str) -> str:
        assert main(["run", str(file), "--quiet", "--master", "local[2]", *options]) == 1
        return capsys.readouterr().err

    return run


def test_a_function_that_raises_ends_the_app_with_its_line_and_the_place_of_the_message(
    tmp_path: Path, failing: HeadraceRun
) -> None:
    app = TwoStages(tmp_path, broken=1234)
    app.feed(5_000)
    error = failing(app.file)
    line = 1 + app.file.read_text().splitlines().index('        raise ValueError("this order is broken")')
    assert f"raised ValueError at {app.file}:{line}: this order is broken" in error
    # Batches go round robin: the second thousand is in partition 1.
    assert re.search(r"on a message of log\.orders\[1\], offset \d+", error)
    assert error.count("this order is broken") == 1, "it was tried once and reported once"


def test_a_function_that_ends_its_process_is_not_restarted_for_ever(tmp_path: Path, failing: HeadraceRun) -> None:
    app = TwoStages(tmp_path)
    app.file.write_text(ENDS_ITS_PROCESS.format(home=str(app.home)))
    app.feed(10)
    error = failing(app.file)
    assert "3 times in a row, without a commit in between" in error
    assert f"called os._exit(3) at {app.file}:13" in error
    assert "in the function of step 'map-1', task orders/0, on log.orders[0], offset" in error


def test_a_module_that_containers_lack_ends_the_app_and_names_it(tmp_path: Path, failing: HeadraceRun) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_here.py").write_text("def flag(row):\n    return True\n")
    app = TwoStages(tmp_path)
    app.file.write_text(
        app.file.read_text().replace(
            "if __name__",
            f"sys.path.append({str(elsewhere)!r})\nimport only_here\n"
            "orders.filter(only_here.flag).send_to(app.output('flagged'))\nsys.path.pop()\nif __name__",
        )
    )
    app.feed(1_000)
    error = failing(app.file)
    assert "before it could register" in error
    assert "No module named 'only_here'" in error


def test_too_few_slots_are_an_error_that_names_the_remedy(tmp_path: Path, failing: HeadraceRun) -> None:
    error = failing(TwoStages(tmp_path).file, "--containers", "4")
    assert "app needs 4 container slots, local[2] has 2" in error
    assert "--master local[4]" in error
