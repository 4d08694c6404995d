"""What several parts of the tests need: servers, started when first asked for, ended with the session; settings."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from chaos.kafka_server import Broker, KafkaServer, KfakeServer
from chaos.kinesis_server import Kind, KinesisServer
from chaos.postgres_server import PostgresServer, programs
from dealing import turn
from drawn import examples
from headrace.core.errors import InfrastructureError
from servers.moto import ENVIRONMENT, MotoServer

if TYPE_CHECKING:
    from servers.lease_tables import Leases

# What a property says doesn't hang on how busy the machine is. All but the number of examples is as Hypothesis has it,
# in CI too.
settings.register_profile(
    "headrace", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headrace")

MEMORY = Path("/dev/shm")
"""A file system that Linux keeps in memory."""
MEMORY_BYTES = 4 << 30
"""How much room it must have: many times what tests need at once."""

# JVMs of tests live for seconds: what the second compiler and a second thread of the collector take never pays.
os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
CLASSES = Path(sys.prefix) / "spark.jsa"
"""What ``make`` has ``spark_classes.py`` write."""
if CLASSES.exists():
    os.environ["SPARK_SUBMIT_OPTS"] += f" -Xlog:cds*=off -XX:SharedArchiveFile={CLASSES}"

# What tests write is small and soon gone, and a disk costs time: for its journal, and for waits until bytes are on it.
# Processes that are killed lose no more than with a disk, and cuts of power are simulated.
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

# A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that.
# Tests that interrupt a program need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = {"postgres", "moto", "kinesis_local", "kinesalite", "kfake", "kafka_broker", "spawn"}
"""Fixtures that start one."""

_Broker = TypeVar("_Broker", bound=Broker)

# Every full collection would look at all tests and modules again, and they stay anyway.
gc.disable()
# With the default, tests that make many small objects look for garbage for a tenth of their time.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    if PROCESSES.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.process)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for ``make soak``, unless the marks asked for name it."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid))
    if "soak" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests to the processes a few at a time, and those of a group all to one."""
    if config.getoption("dist") != "loadgroup":
        return None
    from dealing import Dealing

    config.option.loadscopereorder = False
    return Dealing(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Say nothing of how well a test was set up and taken down: each message to xdist costs as much as a small test."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    try:
        programs()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def aws_environment() -> Iterator[None]:
    """Credentials with which boto3 talks to servers of tests. Its clients share the models of services.

    Each client would parse megabytes of them again.
    """
    loaders = pytest.importorskip("botocore.loaders", reason="boto3 is not installed")
    loader = loaders.create_loader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", lambda *_: loader)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def moto(aws_environment: None) -> Iterator[MotoServer]:
    """A running DynamoDB."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    pytest.importorskip("moto", reason="moto is not installed")
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def kinesis_local(aws_environment: None) -> Iterator[KinesisServer]:
    """A running Kinesis: the server that differs least from it."""
    with _kinesis("kinesis-local") as server:
        yield server


@pytest.fixture(scope="session")
def kinesalite(aws_environment: None) -> Iterator[KinesisServer]:
    """A running Kinesis: another server, which differs from it in other ways."""
    with _kinesis("kinesalite") as server:
        yield server


def _kinesis(kind: Kind) -> KinesisServer:
    try:
        return KinesisServer(kind)
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")


@pytest.fixture(scope="session")
def kfake() -> Iterator[KfakeServer]:
    """A running broker that speaks Kafka's protocol, for tests that use topics of their own."""
    with _broker(KfakeServer) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaServer]:
    """A running Apache Kafka, for the few tests that need the real one, with topics of their own."""
    with _broker(KafkaServer) as server:
        yield server


def _broker(kind: Callable[[], _Broker]) -> _Broker:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    try:
        return kind()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")


@pytest.fixture(params=["memory", pytest.param("dynamodb", marks=pytest.mark.process)])
def leases(request: pytest.FixtureRequest) -> Iterator[Leases]:
    """An empty lease table of each kind. The tests of its clients create it."""
    from servers.lease_tables import LeasesInDynamoDB, LeasesInMemory

    if request.param == "memory":
        yield LeasesInMemory()
        return
    found = LeasesInDynamoDB(request.getfixturevalue("moto"))
    yield found
    found.client.close()
