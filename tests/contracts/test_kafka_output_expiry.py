"""Transactions that take too long, and transactional ids that Kafka has forgotten, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import polars as pl
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from chaos.kafka_plain import create_topic, read_topic
from chaos.kafka_server import KafkaServer
from headrace.connectors.kafka import publishing
from headrace.connectors.kafka.target import KafkaTarget
from headrace.connectors.kafka.writer_session import WriterSession
from headrace.core.errors import InfrastructureError
from kafka_writers import finish, new_target

pytestmark = pytest.mark.slow

TIMEOUT_S, FORGOTTEN_S = 1.0, 3.0


@pytest.fixture(scope="module")
def hasty() -> Iterator[KafkaServer]:
    """A broker that looks often, and forgets ids within seconds."""
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        "transactional.id.expiration.ms": str(int(FORGOTTEN_S * 1000)),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        "producer.id.expiration.ms": str(int(FORGOTTEN_S * 1000)),
        "producer.id.expiration.check.interval.ms": "200",
    }
    try:
        broker = KafkaServer(settings=settings)
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with broker:
        yield broker


def publish(target: KafkaTarget, writer: str, version: int) -> None:
    rows = pl.DataFrame({"key": ["k"] * 3, "version": version, "n": range(3)})
    finish(target, writer, version, [target.accept(rows)], tries=100)


def versions(broker: KafkaServer, topic: str) -> list[int]:
    return [int(record.header("headrace-version") or b"") for record in read_topic(broker.address, topic)]


def test_a_transaction_that_takes_too_long_is_begun_again_with_more_time(
    hasty: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "TIMEOUT_MS", int(TIMEOUT_S * 1000))
    commit, slow = WriterSession.commit, [3 * TIMEOUT_S]

    def late(session: WriterSession) -> None:
        threading.Event().wait(slow.pop() if slow else 0)
        commit(session)

    monkeypatch.setattr(WriterSession, "commit", late)
    topic = create_topic(hasty.address)
    target, writer = new_target(hasty.address, topic), f"{topic}/stage/0/out"
    for version in range(3):
        publish(target, writer, version)
    assert target._writer(writer).machine.timeout_ms == 2 * TIMEOUT_S * 1000
    target.close()
    assert not slow
    assert versions(hasty, topic) == [0] * 3 + [1] * 3 + [2] * 3


def test_an_id_that_kafka_has_forgotten_loses_and_doubles_nothing(hasty: KafkaServer) -> None:
    topic = create_topic(hasty.address)
    writer = f"{topic}/stage/0/out"
    stale, heir = new_target(hasty.address, topic), None
    publish(stale, writer, 0)
    threading.Event().wait(2 * FORGOTTEN_S)
    publish(stale, writer, 1)  # goes on with an id that isn't known any more
    threading.Event().wait(2 * FORGOTTEN_S)
    heir = new_target(hasty.address, topic)
    assert heir.position(writer) == 1
    publish(heir, writer, 2)
    publish(heir, writer, 3)
    threading.Event().wait(2 * FORGOTTEN_S)
    for version in (2, 3):
        publish(stale, writer, version)  # a stale copy, whose epoch nobody remembers
    publish(heir, writer, 4)
    stale.close()
    heir.close()
    assert versions(hasty, topic) == [version for version in range(5) for _ in range(3)]
