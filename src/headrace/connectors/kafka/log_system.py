"""A log in Kafka: each stream of frames is a topic that only Headrace writes.

The writing side of a log in Kafka: one idempotent producer, which sends at once and waits in ``flush``.

A record after the mark of a seal isn't in the stream, although the broker has acknowledged it. So a flush looks
whether another program has written between its own records. Where none has, there is no mark. Where one has, it
asks the registry, which knew of the seal before there was a mark.

After any failure the client is thrown away with what it has not sent: what is sent later must not overtake it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from headrace.connectors.kafka.client import KafkaClient, KafkaError, Message, open_producer
from headrace.connectors.kafka.client import Producer as RawProducer
from headrace.connectors.kafka.log_admin import Cluster, KafkaLogAdmin, Metadata, Sizes
from headrace.connectors.kafka.log_consumer import KafkaLogConsumer
from headrace.connectors.kafka.log_topics import LogOptions
from headrace.core.errors import (
    DataError,
    HeadraceError,
    IndeterminateWriteError,
    StreamNotFoundError,
    UnavailableError,
)
from headrace.core.ids import Offset
from headrace.systems.base import Producer, System

# -- log producer ------------------------------------------------------------------------------------
ACKNOWLEDGED_S = 30.0
"""How long a record may take to be acknowledged: as long as a broker may be away."""
_QUEUE_BYTES_MIN = 64 << 20
_SEAL_S = 5.0
_POLL_S = 0.1


@dataclass(slots=True)
class _Place:
    """A partition that was written to."""

    stream: str
    topic: str
    partition: int
    end: Offset
    """No mark is before this offset."""
    sent: int = 0
    bytes: int = 0
    offsets: list[Offset] = field(default_factory=list)
    """Where the records sent since the last flush are."""
    error: KafkaError | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take the broker's answer to a record in."""
        if error is not None:
            self.error = self.error or error
            return
        offset = message.offset()
        self.offsets.append(-1 if offset is None else offset)

    @property
    def alone(self) -> bool:
        """Whether no other program has written between the records of this producer."""
        return self.offsets[-1] + 1 - self.end == len(self.offsets)


class KafkaLogProducer(Producer):
    """The producer of a log."""

    def __init__(self, options: LogOptions, cluster: Cluster, metadata: Metadata, sizes: Sizes) -> None:
        self._options = options
        self._cluster = cluster
        self._metadata = metadata
        self._sizes = sizes
        self._client: KafkaClient[RawProducer] | None = None
        self._places: dict[tuple[str, int], _Place] = {}
        self._touched: dict[tuple[str, int], _Place] = {}

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        """Hand a record to the client. It waits while the client has too many bytes to send."""
        key = (stream, partition)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._open(stream, partition)
        if len(payload) > self._options.record_bytes:
            raise DataError(
                f"{stream}[{partition}]: a record of {len(payload)} bytes is larger than record_bytes= of the log in "
                f"Kafka, {self._options.record_bytes}",
                hint=f"raise record_bytes=, and max.message.bytes of the topic {place.topic!r} with it",
            )
        self._produce(self._open_client(), place, bytes(payload))
        place.sent += 1
        place.bytes += len(payload)
        self._touched[key] = place

    def _produce(self, client: KafkaClient[RawProducer], place: _Place, payload: bytes) -> None:
        until = time.monotonic() + ACKNOWLEDGED_S
        while True:
            try:
                client.raw.produce(place.topic, payload, partition=place.partition, on_delivery=place.delivered)
            except BufferError:
                if time.monotonic() > until:
                    raise UnavailableError(
                        f"Kafka at {client.brokers} has accepted no record for {ACKNOWLEDGED_S:.0f} s: the queue to it "
                        "is full",
                        hint="check the broker; Headrace tries again",
                    ) from None
                client.raw.poll(_POLL_S)
            else:
                return

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        if not self._touched:
            return {}
        client = self._open_client()
        until = time.monotonic() + ACKNOWLEDGED_S + _SEAL_S
        while client.raw.flush(_POLL_S) and time.monotonic() < until:
            pass
        touched, self._touched = self._touched, {}
        ends: dict[tuple[str, int], Offset] = {}
        try:
            for place in touched.values():
                self._check_delivered(client, place)
            for key, place in touched.items():
                self._check_not_behind_the_end(place)
                ends[key] = place.end = place.offsets[-1] + 1
        except HeadraceError:
            self._throw_away()
            raise
        for place in touched.values():
            self._sizes.seen(place.stream, place.sent, place.bytes)
            place.sent, place.bytes, place.offsets = 0, 0, []
        return ends

    def _check_delivered(self, client: KafkaClient[RawProducer], place: _Place) -> None:
        doing = f"writing to partition {place.partition} of topic {place.topic!r}"
        if place.error is not None:
            raise client.problem(place.error, doing)
        if len(place.offsets) < place.sent or min(place.offsets) < 0:
            raise IndeterminateWriteError(
                f"{doing}: the broker acknowledged {len(place.offsets)} of {place.sent} records, or didn't say at "
                "which offsets it wrote them",
                hint="the records may have been written; Headrace checks the topic before it continues",
            )

    def _check_not_behind_the_end(self, place: _Place) -> None:
        """Raise if the stream had ended before these records."""
        if place.alone:
            return
        entry = self._metadata.require(place.stream)
        until = time.monotonic() + _SEAL_S
        while entry.sealing and entry.ends is None:
            if time.monotonic() > until:
                raise IndeterminateWriteError(
                    f"stream {place.stream!r} is being sealed, but its end isn't known yet",
                    hint="the records may have been written; seal the stream again (headrace stream seal), which sets "
                    "its end",
                )
            entry = self._metadata.require(place.stream)
        end = entry.end(place.partition)
        if end is not None and place.offsets[-1] >= end:
            entry.require_open()

    @override
    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._throw_away()

    # -- clients and partitions --------------------------------------------------------------------------

    def _open_client(self) -> KafkaClient[RawProducer]:
        if self._client is None:
            largest = self._options.record_bytes + 4096
            usual = {
                "linger.ms": "5",  # a flush sends pending records at once
                "message.max.bytes": str(largest),
                "queue.buffering.max.kbytes": str(max(_QUEUE_BYTES_MIN, 2 * largest) >> 10),
                "queue.buffering.max.messages": "1000000",
                "message.timeout.ms": str(int(ACKNOWLEDGED_S * 1000)),
            }
            self._client = open_producer(self._options.settings.tuned(usual))
        return self._client

    def _throw_away(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.raw.purge(blocking=False)
            client.raw.flush(0)
        self._places = {}
        self._touched = {}

    def _open(self, stream: str, partition: int) -> _Place:
        topic = self._options.topic(stream)
        entry = self._metadata.require(stream)
        partitions = self._cluster.partitions(topic) or 0
        if not 0 <= partition < partitions:
            raise StreamNotFoundError(f"stream {stream!r} has partitions 0 to {partitions - 1}, not {partition}")
        # The order matters: if the stream isn't being sealed after its end was read, no mark is before that end.
        end = self._cluster.upcoming(topic, partition)
        entry = self._metadata.require(stream)
        entry.require_open()
        self._wait_for_partition(self._open_client(), topic, partition)
        return _Place(stream, topic, partition, end)

    def _wait_for_partition(self, client: KafkaClient[RawProducer], topic: str, partition: int) -> None:
        """Have the client know a partition that was just added: it refuses those that it doesn't know."""
        with client.translating(f"looking for topic {topic!r}"):
            found = client.raw.list_topics(topic, timeout=_SEAL_S).topics[topic]
        if partition not in found.partitions:
            raise UnavailableError(
                f"partition {partition} of topic {topic!r} was just added, and not every broker knows it yet",
                hint="Headrace tries again",
            )


# -- log system --------------------------------------------------------------------------------------
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
