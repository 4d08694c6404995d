"""When the records of a log in Kafka were appended: reads one record, to have its time. Waits for a broker."""

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
    of_the_group_only,
    open_consumer,
)
from headrace.systems.kafka.log_topics import LogOptions

_USUAL = {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "50",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1024",
}


class RecordTimes:
    """Times of records. Threads may share it."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._consumer: KafkaClient[Consumer] | None = None

    def read(self, topic: str, partition: int, offset: Offset) -> int | None:
        """The time of the first record at an offset or later, which there is; None if it has been trimmed."""
        with self._lock:
            if self._consumer is None:
                self._consumer = open_consumer(self._options.tuned(_USUAL), "headrace", uncommitted=True)
            consumer = self._consumer
            consumer.raw.assign([TopicPartition(topic, partition, offset)])
            try:
                return _read(consumer, topic)
            except TrimmedOffsetError:
                return None
            finally:
                consumer.raw.unassign()


def _read(consumer: KafkaClient[Consumer], topic: str) -> int | None:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        message = consumer.raw.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is not None and of_the_group_only(error):
            continue
        if error is None:
            return int(message.timestamp()[1])
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        problem = consumer.problem(error, f"reading topic {topic!r}")
        if not problem.retry:
            raise problem
    raise UnavailableError(f"the topic {topic!r} can't be read", hint="check the broker; Headrace tries again")
