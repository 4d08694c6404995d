"""Containers as one Spark job, in the shared session."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import watched_container
from pyspark import SparkContext
from watched_container import SECONDS_MAX, is_alive, pid_of, until

from headrace.core.errors import UsageError
from headrace.run.spark.hosting import ContainerArgs, ContainerJob, Report


def job_of(context: SparkContext, folder: Path) -> ContainerJob:
    return ContainerJob(context, 2, watched_container.main, str(folder).encode(), "containers of page-views")


def test_containers_run_at_once_and_report(spark_context: SparkContext, tmp_path: Path) -> None:
    job = job_of(spark_context, tmp_path)
    job.start()
    assert pid_of(tmp_path, 0) != pid_of(tmp_path, 1)
    assert not job.wait(0)
    (tmp_path / "stop").touch()
    assert job.wait(SECONDS_MAX)
    assert job.error is None
    assert job.reports == [{"container": n, "attempt": 0, "threads": "1"} for n in (0, 1)]


def test_the_job_is_recognisable_in_sparks_own_ui(spark_context: SparkContext, tmp_path: Path) -> None:
    job = job_of(spark_context, tmp_path)
    job.start()
    pid_of(tmp_path, 0)
    until(lambda: len(spark_context.statusTracker().getJobIdsForGroup(job.group)) == 1)
    (number,) = spark_context.statusTracker().getJobIdsForGroup(job.group)
    shown = spark_context._jsc.sc().statusStore().job(number)
    assert shown.description().get() == "containers of page-views"
    (tmp_path / "stop").touch()
    assert job.wait(SECONDS_MAX)


def test_a_killed_container_is_back_alone(spark_context: SparkContext, tmp_path: Path) -> None:
    job = job_of(spark_context, tmp_path)
    job.start()
    other = pid_of(tmp_path, 1)
    for attempt in range(6):  # more often than the four failures that Spark allows by default
        os.kill(pid_of(tmp_path, 0, attempt), signal.SIGKILL)
    pid_of(tmp_path, 0, 6)
    assert is_alive(other)
    until(lambda: job.failure_count() == len(job.failures()) == 6)  # Spark records what it did a little later
    assert "Python worker exited unexpectedly" in job.failures()[-1].message
    (tmp_path / "stop").touch()
    assert job.wait(SECONDS_MAX)
    assert job.failure_count() == 6
    assert [report["attempt"] for report in job.reports] == [6, 0]


def test_cancel_kills_containers_that_do_not_listen(spark_context: SparkContext, tmp_path: Path) -> None:
    job = job_of(spark_context, tmp_path)
    job.start()
    pids = [pid_of(tmp_path, n) for n in (0, 1)]
    job.cancel()
    assert job.wait(SECONDS_MAX)
    assert job.error is None
    until(lambda: not any(is_alive(pid) for pid in pids))
    (number,) = spark_context.statusTracker().getJobIdsForGroup(job.group)
    until(lambda: spark_context._jsc.sc().statusStore().job(number).numKilledTasks() == 2)
    assert job.failures() == []  # a cancelled job is not a failure


def test_a_container_that_raises_names_the_line(spark_context: SparkContext) -> None:
    job = ContainerJob(spark_context, 1, watched_container.broken, b"", "broken app")
    job.start()
    until(lambda: job.failure_count() >= 3)
    job.cancel()
    assert job.wait(SECONDS_MAX)
    failure = job.failures()[-1].message
    assert "ValueError: container 0 is broken" in failure
    assert "watched_container.py" in failure
    assert "at org.apache" not in failure


def test_cancel_before_start_does_nothing(spark_context: SparkContext, tmp_path: Path) -> None:
    job = job_of(spark_context, tmp_path)
    job.cancel()
    job.start()
    assert job.wait(SECONDS_MAX)
    assert job.error is None
    assert list(tmp_path.iterdir()) == []


class CancelsOnItsWay:
    """A payload that cancels the job while it is being pickled for Spark."""

    def __init__(self) -> None:
        self.job: ContainerJob | None = None

    def __reduce__(self) -> tuple[type[bytes], tuple[()]]:
        if self.job is not None:
            self.job.cancel()
        return bytes, ()


def test_cancel_reaches_a_job_that_is_on_its_way_to_spark(spark_context: SparkContext) -> None:
    payload = CancelsOnItsWay()
    job = ContainerJob(spark_context, 1, watched_container.broken, payload, "late")  # type: ignore[arg-type]
    payload.job = job
    job.start()
    try:
        assert job.wait(SECONDS_MAX)
        assert job.error is None
    finally:
        job.cancel()


def test_a_main_that_no_worker_could_import_is_refused(spark_context: SparkContext) -> None:
    def local(args: ContainerArgs) -> Report:
        return {}

    with pytest.raises(UsageError, match="can't be imported by a container"):
        ContainerJob(spark_context, 1, local, b"", "local")


def test_an_app_without_containers_is_refused(spark_context: SparkContext) -> None:
    with pytest.raises(UsageError, match="at least one container"):
        ContainerJob(spark_context, 0, watched_container.main, b"", "none")
