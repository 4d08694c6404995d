"""A Kafka topic as a target without transactions: for clusters that have none, at least once.

What no commit says to be written is written again after a restart. Records of a key are in order, apart from
repetitions. Their headers say which row each is, so that a reader can drop repetitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.systems.kafka.client import KafkaClient, KafkaError, Producer, open_producer
from headrace.systems.kafka.output_records import RecordMaker
from headrace.systems.kafka.producing import Sender, producer_limits
from headrace.systems.kafka.settings import KafkaSettings
from headrace.systems.kafka.topic_limits import TopicLimits
from headrace.systems.kafka.topic_target import TopicTarget, worth_a_retry

VERSION_S = 30.0
"""How long a version may take until it is sent again."""


class PlainKafkaTarget(TopicTarget):
    """A topic as a target, at least once."""

    def __init__(self, settings: KafkaSettings, topic: str, records: RecordMaker) -> None:
        super().__init__(settings, topic, records)
        self._writers: dict[str, _PlainWriter] = {}

    @override
    def position(self, writer: str) -> int:
        """Return -1, because the position is unknown."""
        return -1

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        """Start sending a version, or check whether all of it has arrived."""
        if writer not in self._writers:
            self._writers[writer] = _PlainWriter(self.settings, writer, self.limits, self.closing)
        one = self._writers[writer]
        return self.turns.take(writer, version, lambda: one.publish(version, rows))


class _PlainWriter:
    """The producer of one writer. After a failure there is another one."""

    def __init__(self, settings: KafkaSettings, writer: str, limits: TopicLimits, closing: threading.Event) -> None:
        self._settings = settings
        self._writer = writer
        self._limits = limits
        self._sender = Sender(limits.topic, closing)
        self._client: KafkaClient[Producer] | None = None
        self._undelivered: KafkaError | None = None

    def publish(self, version: int, rows: Sequence[pl.DataFrame]) -> None:
        """Send a version, and wait until all of it is acknowledged."""
        self._limits.look()
        self._undelivered = None
        client = self._client = self._client or open_producer(
            self._settings, None, self._heard, **producer_limits(self._limits.record_bytes)
        )
        try:
            end_s = time.monotonic() + VERSION_S
            self._sender.send(client, self._writer, version, rows, self._limits.partitions, end_s)
            self._sender.flush(client, end_s)
            if self._undelivered is not None:
                raise client.problem(self._undelivered, f"writing to topic {self._limits.topic!r}")
            client.troubles.over()
        except BaseException as error:
            self._client = None
            client.raw.purge()
            if isinstance(error, HeadraceError):
                raise worth_a_retry(error) from error
            raise

    def _heard(self, error: KafkaError) -> None:
        self._undelivered = self._undelivered or error
