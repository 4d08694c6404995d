"""What several parts of the tests need: servers, started when first asked for, ended with the session; settings."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from postgres_server import PostgresServer

# What a property says doesn't hang on how busy the machine is. All else is as Hypothesis has it, in CI too.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

# JVMs of tests live for seconds: what the second compiler and a second thread of the collector take never pays.
os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {os.environ.get('SPARK_SUBMIT_OPTS', '')}"

# A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that.
# Tests that interrupt a program need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ON_SPARK = ("tests/spark/", "tests/docs/test_examples.py::test_example_prints_what_it_says[13_on_spark]")

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests to the processes one by one, but those on Spark all to one.

    Marks of groups don't do it: xdist 3.8 writes them into an attribute of tests that pytest 9.2 doesn't read.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class SparkInOneProcess(LoadGroupScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(ON_SPARK) else nodeid

    return SparkInOneProcess(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not _PROGRAMS:
        pytest.skip("no PostgreSQL server is installed (initdb under /usr/lib/postgresql)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL doesn't run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    try:
        server = PostgresServer(_PROGRAMS[-1].parent, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
