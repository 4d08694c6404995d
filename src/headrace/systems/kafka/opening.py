"""Opens topics of Kafka. confluent_kafka is imported only then: it is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.core.extras import needing

if TYPE_CHECKING:
    from headrace.systems.kafka.output_system import KafkaOutput
    from headrace.systems.kafka.system import KafkaSystem


def open_kafka(name: str, options: Mapping[str, Any]) -> KafkaSystem | KafkaOutput:
    """The system of a ``SystemSpec`` of kind ``kafka``: an output if it says anything of one."""
    with needing("confluent-kafka", "Kafka", "kafka"):
        from headrace.systems.kafka.output_system import open_kafka_output
        from headrace.systems.kafka.system import open_kafka_system
    return open_kafka_output(options) if "output" in options else open_kafka_system(name, options)
