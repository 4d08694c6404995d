"""One Spark session for all tests in this folder, and containers simple enough to look at from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from headrace.runners.spark.session import close_context, open_context

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here, and keep them in one process, so that they share the session."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark_context() -> Iterator[SparkContext]:
    context = open_context("headrace tests", "local[2]")
    yield context
    close_context(context)
