"""The registry of a log in Kafka, read from its topic and written to it.

Every answer is as new as the question: the topic's end is asked for, and read up to. Threads may share it; one lock
is held while a broker is waited for.
"""

from __future__ import annotations

import threading
import time

from headrace.core.errors import (
    CorruptLogError,
    IndeterminateWriteError,
    StreamNotFoundError,
    UnavailableError,
)
from headrace.core.ids import Offset
from headrace.systems.kafka.client import (
    ANSWER_S,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
    open_consumer,
    open_plain_producer,
)
from headrace.systems.kafka.log_cluster import Cluster
from headrace.systems.kafka.log_registry import Entry, Order, Registry, decode_order, encode_order
from headrace.systems.kafka.log_topics import LogOptions, check_settings

_GROUP = "headrace"
_RECORDS = 1000
_POLL_S = 0.1
_USUAL = {"fetch.wait.max.ms": "100", "fetch.error.backoff.ms": "50", "queued.max.messages.kbytes": "4096"}


class Metadata:
    """The streams of a log, and a way to change them."""

    def __init__(self, options: LogOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._topic = options.registry
        self._lock = threading.Lock()
        self._registry = Registry()
        self._consumer: KafkaClient[Consumer] | None = None
        self._producer: KafkaClient[Producer] | None = None
        self._position: Offset = 0

    def refresh(self) -> Registry:
        """Read what has been ordered up to now."""
        with self._lock:
            self._read()
            return self._registry

    def find(self, stream: str) -> Entry | None:
        """Return the present entry of a stream; None if it doesn't exist."""
        return self.refresh().find(stream)

    def require(self, stream: str) -> Entry:
        """Return the present entry of a stream. Raises ``StreamNotFoundError`` if it doesn't exist."""
        return self.refresh().require(stream)

    def known(self, stream: str) -> Entry | None:
        """Return the entry of a stream that this process has read last, without asking a broker."""
        return self._registry.find(stream)

    def order(self, order: Order) -> Entry:
        """Append an order, and return the stream's entry after the order."""
        with self._lock:
            self._create()
            written = self._append(order)
            self._read(written + 1)
            return self._registry.require(order.stream)

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.raw.close()
            self._consumer = self._producer = None

    # -- the topic; the lock is held ---------------------------------------------------------------------

    def _create(self) -> None:
        if self._consumer is not None:
            return
        if self._cluster.partitions(self._topic) is None:
            self._cluster.create(self._topic, 1)
        check_settings(self._topic, self._cluster.settings(self._topic))
        self._open()

    def _open(self) -> KafkaClient[Consumer]:
        found = open_consumer(self._options.settings.tuned(_USUAL), _GROUP, uncommitted=True)
        found.raw.assign([TopicPartition(self._topic, 0, self._position)])
        self._consumer = found
        return found

    def _append(self, order: Order) -> Offset:
        if self._producer is None:
            self._producer = open_plain_producer(self._options.settings)
        results: list[tuple[KafkaError | None, Message]] = []
        doing = f"writing to topic {self._topic!r}"
        with self._producer.translating(doing):
            self._producer.raw.produce(
                self._topic,
                encode_order(order),
                partition=0,
                on_delivery=lambda error, message: results.append((error, message)),
            )
            self._producer.raw.flush(ANSWER_S + 1)
        if not results:
            self._producer = None
            raise IndeterminateWriteError(
                f"{doing}: no broker answered", hint="run the command again: this is safe to repeat"
            )
        error, message = results[0]
        if error is not None:
            problem = self._producer.problem(error, doing)
            self._producer = None  # after some errors it takes nothing more
            raise problem
        offset = message.offset()
        return offset if offset is not None and offset >= 0 else self._cluster.upcoming(self._topic, 0) - 1

    def _read(self, end: Offset | None = None) -> None:
        if self._consumer is None:
            if self._cluster.partitions(self._topic) is None:
                return  # nothing was ever ordered
            self._open()
        consumer = self._consumer
        assert consumer is not None
        if end is None:
            end = self._cluster.upcoming(self._topic, 0)
            if end < self._position:
                raise StreamNotFoundError(
                    f"the topic {self._topic!r} ends at {end}, but was read up to {self._position}: it was deleted or "
                    "replaced, and the list of streams is lost with it",
                    hint="restore the topic; to start over without its streams, use another prefix",
                )
        until = time.monotonic() + ANSWER_S
        while self._position < end:
            if time.monotonic() > until:
                raise UnavailableError(
                    f"the topic {self._topic!r} can't be read beyond offset {self._position} of {end}",
                    hint="check the broker; Headrace tries again",
                )
            for message, error in zip(*consumer.received(_POLL_S, _RECORDS), strict=True):
                self._take(consumer, message, error)

    def _take(self, consumer: KafkaClient[Consumer], message: Message, error: KafkaError | None) -> None:
        offset = message.offset()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                problem = consumer.problem(error, f"reading topic {self._topic!r}")
                if not problem.retry:
                    raise problem
            elif offset is not None:
                self._position = max(self._position, offset)
            return
        value = message.value()
        assert offset is not None
        if offset > self._position == 0:
            raise CorruptLogError(
                f"the topic {self._topic!r} has lost its beginning: its first record has offset {offset}",
                hint="records of the topic were deleted; restore the topic, or use another prefix",
            )
        if value is not None:
            self._registry.apply(decode_order(value, f"{self._topic}[0], offset {offset}"))
        self._position = offset + 1
