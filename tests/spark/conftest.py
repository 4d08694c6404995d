"""One Spark session for all tests in this folder, and containers that are simple enough to observe from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from headrace.run.spark.session import close_context, open_context

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two sessions, or two apps with a JVM each, are too much at once for a machine with two cores."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    place = tmp_path_factory.getbasetemp().parent / "tests-on-spark"
    try:
        with place.open("x") as file:
            file.write(worker)
    except FileExistsError:
        pytest.fail(f"{place.read_text()} runs tests on Spark too: deal them out with --dist loadgroup")


@pytest.fixture(scope="session")
def spark_context() -> Iterator[SparkContext]:
    context = open_context("headrace tests", "local[2]")
    yield context
    close_context(context)
