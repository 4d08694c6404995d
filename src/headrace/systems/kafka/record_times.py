"""When records of Kafka were appended: reads one record, to have its time. Waits for a broker."""

from __future__ import annotations

import threading
import time

from headrace.core.errors import TrimmedOffsetError, UnavailableError
from headrace.core.ids import Offset
from headrace.systems.kafka.client import (
    ANSWER_S,
    Consumer,
    KafkaClient,
    KafkaError,
    TopicPartition,
    open_consumer,
)
from headrace.systems.kafka.settings import KafkaSettings

_USUAL = {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "50",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1024",
}


class RecordTimes:
    """Times of records. Threads may share it. It connects when it is first used."""

    def __init__(self, settings: KafkaSettings, *, uncommitted: bool) -> None:
        self._settings = settings.tuned(_USUAL)
        self._uncommitted = uncommitted
        self._lock = threading.Lock()
        self._consumer: KafkaClient[Consumer] | None = None

    def read(self, topic: str, partition: int, offset: Offset) -> int | None:
        """The time of the first record at an offset or later; None if there is none, or if the offset was trimmed."""
        with self._lock:
            if self._consumer is None:
                self._consumer = open_consumer(self._settings, "headrace", uncommitted=self._uncommitted)
            consumer = self._consumer
            with consumer.translating(f"reading topic {topic!r}"):
                consumer.raw.assign([TopicPartition(topic, partition, offset)])
                try:
                    return _read(consumer, topic)
                except TrimmedOffsetError:
                    return None
                finally:
                    consumer.raw.unassign()

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.raw.close()
            self._consumer = None


def _read(consumer: KafkaClient[Consumer], topic: str) -> int | None:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        for message, error in zip(*consumer.received(0.1), strict=True):
            if error is None:
                found = message.timestamp()[1]
                return found if found >= 0 else None
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            problem = consumer.problem(error, f"reading topic {topic!r}")
            if not problem.retry:
                raise problem
    raise UnavailableError(f"the topic {topic!r} can't be read", hint="check the broker; Headrace tries again")
