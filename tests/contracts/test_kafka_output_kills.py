"""Writers of a Kafka output are killed and frozen; a plain consumer of committed records has each row once."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from chaos.kafka_server import KafkaServer, KfakeServer
from headrace.core.errors import InfrastructureError
from kafka_writers import Storm


@pytest.mark.parametrize("strikes", [22, pytest.param(72, marks=pytest.mark.soak)])
def test_nothing_is_lost_or_doubled_when_writers_are_killed_and_wake_late(kfake: KfakeServer, strikes: int) -> None:
    storm = Storm(kfake.address, seed=1)
    storm.rage(strikes, (0.02, 0.3))
    assert storm.wrong() == ""
    assert storm.kills > 10
    assert storm.zombies > 3


@pytest.mark.parametrize(
    "mistake", ["position isn't read", pytest.param("new id in each life", marks=pytest.mark.soak)]
)
def test_a_mistake_would_be_found(kfake: KfakeServer, mistake: str) -> None:
    storm = Storm(kfake.address, seed=2, mistake=mistake, writers=2)
    storm.rage(12, (0.1, 0.4))
    assert "doubled" in storm.wrong()


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_on_a_real_broker(kafka_broker: KafkaServer) -> None:
    storm = Storm(kafka_broker.address, seed=3)
    storm.rage(24, (0.05, 0.4))
    assert storm.wrong() == ""
    assert storm.kills > 6
    assert storm.zombies > 1


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_when_a_real_broker_is_killed_too() -> None:
    try:
        server = KafkaServer()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    with server as broker:
        storm = Storm(broker.address, seed=4)
        storm.rage(24, (0.2, 0.8), broker)
        assert storm.wrong() == ""
        assert storm.broker_kills == 3
