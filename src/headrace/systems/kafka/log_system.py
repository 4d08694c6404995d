"""A log in Kafka: each stream of frames is a topic that only Headrace writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from headrace.systems.base import System
from headrace.systems.kafka.log_admin import KafkaLogAdmin
from headrace.systems.kafka.log_cluster import Cluster
from headrace.systems.kafka.log_consumer import KafkaLogConsumer
from headrace.systems.kafka.log_metadata import Metadata
from headrace.systems.kafka.log_positions import Sizes
from headrace.systems.kafka.log_producer import KafkaLogProducer
from headrace.systems.kafka.log_topics import LogOptions


class KafkaLogSystem(System):
    """A log in a Kafka cluster. It connects when it is first used."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self._cluster = Cluster(options)
        self._metadata = Metadata(options, self._cluster)
        self._sizes = Sizes()

    @override
    def admin(self) -> KafkaLogAdmin:
        return KafkaLogAdmin(self.options, self._cluster, self._metadata, self._sizes)

    @override
    def consumer(self) -> KafkaLogConsumer:
        return KafkaLogConsumer(self.options, self._cluster, self.admin(), self._metadata, self._sizes)

    @override
    def producer(self) -> KafkaLogProducer:
        return KafkaLogProducer(self.options, self._cluster, self._metadata, self._sizes)


def open_kafka_log(name: str, options: Mapping[str, Any]) -> KafkaLogSystem:
    """Open the log of a ``SystemSpec`` of kind ``kafka-log``. Its options are those of ``LogOptions.options()``."""
    del name
    return KafkaLogSystem(LogOptions.of(options))
