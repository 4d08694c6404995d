"""Topics of Kafka for tests, and a hand in what others do with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions

from chaos.kafka_server import Broker
from headrace.connectors.kafka.client import NewTopic, Producer, TopicPartition, open_admin, open_producer
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.topics import Topics

WAIT_S = 60
_numbers = count(1)

Headers = Sequence[tuple[str, bytes | None]]


class Topic:
    """One topic of a test's own."""

    def __init__(
        self,
        broker: Broker,
        partitions: int = 1,
        *,
        name: str | None = None,
        config: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name or f"topic-{next(_numbers)}"
        self.partitions = partitions
        self.brokers = broker.address
        self.settings = KafkaSettings.checked(broker.address, options)
        self.admin = open_admin(self.settings).raw
        topic = NewTopic(self.name, partitions, 1, config=dict(config or {}))
        self.admin.create_topics([topic])[self.name].result(WAIT_S)
        self._producer = open_producer(self.settings).raw

    def put(
        self,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        time_ms: int = 0,
        headers: Headers | None = None,
        producer: Producer | None = None,
    ) -> None:
        """Append records, and wait until they are there."""
        sender = producer or self._producer
        failed: list[object] = []
        for value in values:
            sender.produce(
                self.name,
                value,
                key,
                partition,
                timestamp=time_ms,
                headers=None if headers is None else list(headers),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            sender.poll(0)
        assert sender.flush(WAIT_S) == 0
        assert failed == []

    @contextmanager
    def transaction(self, *, abort: bool = False) -> Iterator[Producer]:
        """The only open transaction of another program's, with what is put during the block."""
        producer = open_producer(self.settings, f"{self.name}-{next(_numbers)}").raw
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        yield producer
        if abort:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
        self._await_markers()

    def _await_markers(self) -> None:
        """Wait until a transaction's end is in each partition: a broker answers earlier."""
        committed, all_of_it = Topics(self.settings), Topics(self.settings, uncommitted=True)
        partitions = range(self.partitions)
        end = time.monotonic() + WAIT_S
        while committed.upcoming(self.name, partitions) != all_of_it.upcoming(self.name, partitions):
            assert time.monotonic() < end, "a transaction is still open"

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Delete the records before an offset, as retention does."""
        asked = [TopicPartition(self.name, partition, offset)]
        for future in self.admin.delete_records(asked).values():
            future.result(WAIT_S)

    def add_partitions(self, total: int) -> None:
        """Have so many partitions from now on."""
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(WAIT_S)
        self._producer = open_producer(self.settings).raw  # the other one doesn't know them yet

    def delete(self) -> None:
        """Delete the topic."""
        self.admin.delete_topics([self.name])[self.name].result(WAIT_S)

    def committed(self, group: str) -> dict[int, int]:
        """What a consumer group has committed here."""
        (future,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        found = future.result(WAIT_S).topic_partitions
        return {one.partition: one.offset for one in found if one.topic == self.name}
