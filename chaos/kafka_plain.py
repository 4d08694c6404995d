"""Kafka as other programs use it: topics, and a plain consumer of committed records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.connectors.kafka.client import NewTopic, OffsetSpec

WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Plain:
    """A record as a plain consumer gets it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> bytes | None:
        """The last header of this name."""
        return dict(self.headers)[name]


def create_topic(address: str, partitions: int = 1, name: str = "", settings: Mapping[str, str] | None = None) -> str:
    """Create a topic, and return its name."""
    name = name or f"t-{uuid.uuid4().hex[:8]}"
    new = NewTopic(name, partitions, 1, config=dict(settings or {}))
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_topics([new]).values():
        created.result(WAIT_S)
    return name


def read_topic(address: str, topic: str) -> list[Plain]:
    """All records of a topic that a reader of committed records gets, each partition in its order.

    Waits until no transaction is open: up to the end that counts the records of open ones, too.
    """
    admin = AdminClient({"bootstrap.servers": address})
    places = [TopicPartition(topic, number, 0) for number in admin.list_topics(topic, WAIT_S).topics[topic].partitions]
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = admin.list_offsets(dict.fromkeys(places, latest), isolation_level=IsolationLevel.READ_UNCOMMITTED)
    ends = {place.partition: found.result().offset for place, found in asked.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "plain",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    found: list[Plain] = []
    try:
        consumer.assign(places)
        end_s = time.monotonic() + WAIT_S
        while any(max(0, place.offset) < ends[place.partition] for place in consumer.position(places)):
            assert time.monotonic() < end_s, f"{topic} isn't readable to its end, {ends}"
            for message in consumer.consume(1000, 0.02):
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                key, value, timestamp = message.key(), message.value(), message.timestamp()[1]
                found.append(Plain(message.partition(), message.offset(), key, value, timestamp, headers))  # type: ignore[arg-type]
    finally:
        consumer.close()
    return found
