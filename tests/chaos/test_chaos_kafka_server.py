from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.kafka_server import Broker, KafkaServer, KfakeServer
from headrace.core.errors import InfrastructureError

kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
admins = pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")

_WAIT_S = 60


@pytest.fixture(params=[KfakeServer, pytest.param(KafkaServer, marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    try:
        server: Broker = request.param()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with server:
        yield server


def _write(broker: Broker, *values: str) -> None:
    producer = kafka.Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(_WAIT_S) == 0


def _read(broker: Broker) -> list[str]:
    settings = {"bootstrap.servers": broker.address, "group.id": "test", "enable.partition.eof": True}
    consumer = kafka.Consumer(settings)
    consumer.assign([kafka.TopicPartition("orders", 0, 0)])
    found = []
    while message := consumer.poll(_WAIT_S):
        if message.error() is not None:
            assert message.error().code() == kafka.KafkaError._PARTITION_EOF
            break
        found.append(message.value().decode())
    consumer.close()
    return found


def test_a_broker_that_was_killed_has_what_it_was_sent(broker: Broker) -> None:
    admin = admins.AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([admins.NewTopic("orders", num_partitions=1)])["orders"].result(_WAIT_S)
    _write(broker, "1", "2")
    broker.stop()
    broker.start()
    _write(broker, "3")
    assert _read(broker) == ["1", "2", "3"]


def test_kfake_fails_requests_on_order() -> None:
    try:
        server = KfakeServer(partitions=3)
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with server:
        admin = admins.AdminClient({"bootstrap.servers": server.address})
        server.fail("CreateTopics", "POLICY_VIOLATION", topic="orders")
        with pytest.raises(kafka.KafkaException, match="POLICY_VIOLATION"):
            admin.create_topics([admins.NewTopic("orders")])["orders"].result(_WAIT_S)
        admin.create_topics([admins.NewTopic("orders")])["orders"].result(_WAIT_S)
        assert len(admin.list_topics("orders", timeout=_WAIT_S).topics["orders"].partitions) == 3
