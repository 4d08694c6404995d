"""A whole app in a Spark session that was already running, as in a notebook: what Spark shows, and what it costs."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from two_stages import COLUMNS, TwoStages

import headrace as hr
from chaos.deployment import is_running, until
from chaos.processes import cpu_seconds
from headrace.app import App
from headrace.coordinator.messages import AppStatus
from headrace.core.errors import UnavailableError, UsageError
from headrace.operate.cli.loader import load_app
from headrace.run.run import Run
from running_apps import find

IDLE_PERCENT_MAX = 5.0  # it is 1 to 2 on a quiet machine, in steps of 0.25, and an app that spins takes 100
PATIENCE_S = 300.0


@pytest.fixture
def two_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_context: SparkContext) -> TwoStages:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    return TwoStages(tmp_path)


@contextmanager
def running(two_stages: TwoStages, containers: int | None = 2) -> Iterator[Run]:
    """Start the app. At the end of the block its input is sealed, and it must end without error."""
    app = load_app(two_stages.file)
    assert isinstance(app, App)
    run = app.start(containers=containers, progress=False)
    try:
        until(lambda: run.status().state == "failed" or is_there(two_stages), "every task runs", PATIENCE_S)
        yield run
    finally:
        two_stages.seal()
        ended = run.wait(timeout=timedelta(seconds=PATIENCE_S))
    assert ended.state == "finished"


def is_there(two_stages: TwoStages) -> bool:
    try:
        return is_running(status_of(two_stages))
    except (UnavailableError, UsageError):
        return False


def status_of(two_stages: TwoStages) -> AppStatus:
    client = find(two_stages.home, two_stages.app).client()
    try:
        return client.status()
    finally:
        client.close()


def rows_read(two_stages: TwoStages) -> int:
    """How many rows the first stage has read."""
    return sum(task.rows_in for task in status_of(two_stages).tasks if task.name.startswith("orders/"))


def versions(two_stages: TwoStages) -> dict[str, int]:
    """The last version that each task has committed."""
    tasks = status_of(two_stages).tasks
    return {task.name: -1 if task.checkpoint is None else task.checkpoint.version for task in tasks}


def ask_ui(context: SparkContext, path: str) -> Any:
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        return json.load(answer)


def test_an_app_uses_the_session_that_is_there_and_leaves_it(
    two_stages: TwoStages, spark_context: SparkContext
) -> None:
    with running(two_stages):
        two_stages.feed(20_000)
    two_stages.assert_exact()
    assert spark_context.parallelize(range(10)).sum() == 45


def test_jobs_of_the_session_run_beside_an_app(two_stages: TwoStages, spark_context: SparkContext) -> None:
    with running(two_stages, containers=None) as run:
        assert spark_context.parallelize(range(10)).sum() == 45
        (only,) = json.loads(json.dumps(run.status().to_dict()))["containers"]
        assert only["state"] == "running"


def test_an_app_without_a_slot_says_so(two_stages: TwoStages, spark_context: SparkContext) -> None:
    beside = hr.App("beside", home=two_stages.home)
    beside.input("orders", COLUMNS).send_to(beside.output("copies"))
    with running(two_stages):
        waiting = beside.start(progress=False)
        until(lambda: "without a slot" in str(waiting.status()), "it lacks a slot", PATIENCE_S)
        (only,) = waiting.status().to_dict()["containers"]
        assert (only["state"], only["lacks"]) == ("waiting", "Spark has 2, and all are taken")
        assert "1 of 1 containers without a slot" in str(waiting.status())
    assert waiting.wait(timeout=timedelta(seconds=PATIENCE_S)).state == "finished"


def test_sparks_ui_shows_the_job_by_its_description(two_stages: TwoStages, spark_context: SparkContext) -> None:
    found: list[Any] = []

    def alone() -> bool:  # jobs of other tests may still be ending, and Spark reports changes late
        found[:] = ask_ui(spark_context, "jobs?status=running")
        return [job["description"] for job in found] == ["headrace two-stages: 2 containers"]

    with running(two_stages):
        until(alone, "the job is the only one that is shown as running", PATIENCE_S)
        assert found[0]["numTasks"] == 2


@pytest.mark.slow
def test_an_idle_app_costs_next_to_nothing(two_stages: TwoStages) -> None:
    with running(two_stages):
        two_stages.feed(1_000)
        until(lambda: rows_read(two_stages) == 1_000, "all is read", PATIENCE_S)
        then = versions(two_stages)
        until(lambda: all(now > then[task] + 1 for task, now in versions(two_stages).items()), "committed", PATIENCE_S)
        pids = [container.pid for container in status_of(two_stages).containers if container.pid is not None]
        before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
        time.sleep(4)
        seconds = time.monotonic() - began
        percents = [(cpu_seconds(pid) - used) / seconds * 100 for pid, used in zip(pids, before, strict=True)]
    assert len(percents) == 2
    assert max(percents) < IDLE_PERCENT_MAX, percents
