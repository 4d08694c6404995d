"""Opens topics of Kafka. confluent_kafka is imported only then: it is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connectors.kafka.settings import TopicOptions
from headrace.core.errors import needing

if TYPE_CHECKING:
    from headrace.connectors.kafka.consumer import KafkaSystem
    from headrace.connectors.kafka.target import KafkaOutput


def open_kafka(name: str, options: Mapping[str, Any]) -> KafkaSystem | KafkaOutput:
    with needing("confluent-kafka", "Kafka", "kafka"):
        from headrace.connectors.kafka.consumer import KafkaSystem
        from headrace.connectors.kafka.target import KafkaOutput
    return (KafkaOutput if "output" in options else KafkaSystem)(TopicOptions.of(name, options))
