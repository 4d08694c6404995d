"""A log in Kafka: each stream of frames is a topic that only Headrace writes.

A record after the mark of a seal isn't in the stream, although the broker has acknowledged it. So a flush looks whether
another program has written between its own records. If so, it asks the registry, which knew of the seal before there
was a mark. After any failure the client is thrown away with what it has not sent: what is sent later must not overtake
it.

A consumer's ``register`` waits for brokers; ``poll`` takes what a thread of ``fetching`` has fetched. A partition is
fetched from its first poll on. Its end is known from the registry, or found as a mark; then the registry is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import override

from headrace.connectors.kafka.client import Consumer, KafkaClient, KafkaError, Message, open_consumer, open_producer
from headrace.connectors.kafka.client import Producer as RawProducer
from headrace.connectors.kafka.fetching import FetchedRecords, FetchSource, FetchThread, PartitionFeed
from headrace.connectors.kafka.log_admin import KafkaLogAdmin, Metadata, Sizes
from headrace.connectors.kafka.settings import LogOptions
from headrace.connectors.kafka.topics import Topics
from headrace.core.errors import (
    DataError,
    HeadraceError,
    IndeterminateWriteError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnavailableError,
)
from headrace.core.files import readable
from headrace.core.ids import SSP, Offset
from headrace.systems.base import (
    Edge,
    Ended,
    Extent,
    Polled,
    Position,
    Producer,
    Reading,
    Records,
    RegisteringConsumer,
    System,
    check_within,
)

ACKNOWLEDGED_S = 30.0  # how long a record may take to be acknowledged: as long as a broker may be away
_QUEUE_BYTES_MIN = 64 << 20
_SEAL_S = 5.0
_POLL_S = 0.1


@dataclass(slots=True)
class _WrittenPartition:
    stream: str
    topic: str
    partition: int
    end: Offset  # no mark is before this offset
    sent: int = 0
    bytes: int = 0
    offsets: list[Offset] = field(default_factory=list)  # where the records sent since the last flush are
    error: KafkaError | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None:
            self.error = self.error or error
        else:
            self.offsets.append(-1 if offset is None else offset)


class _KafkaLogProducer(Producer):
    def __init__(self, options: LogOptions, topics: Topics, metadata: Metadata, sizes: Sizes) -> None:
        self._options = options
        self._topics = topics
        self._metadata = metadata
        self._sizes = sizes
        self._client: KafkaClient[RawProducer] | None = None
        self._places: dict[tuple[str, int], _WrittenPartition] = {}
        self._touched: dict[tuple[str, int], _WrittenPartition] = {}

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
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

    def _produce(self, client: KafkaClient[RawProducer], place: _WrittenPartition, payload: bytes) -> None:
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

    def _check_delivered(self, client: KafkaClient[RawProducer], place: _WrittenPartition) -> None:
        doing = f"writing to partition {place.partition} of topic {place.topic!r}"
        if place.error is not None:
            raise client.problem(place.error, doing)
        if len(place.offsets) < place.sent or min(place.offsets) < 0:
            raise IndeterminateWriteError(
                f"{doing}: the broker acknowledged {len(place.offsets)} of {place.sent} records, or didn't say at "
                "which offsets it wrote them",
                hint="the records may have been written; Headrace checks the topic before it continues",
            )

    def _check_not_behind_the_end(self, place: _WrittenPartition) -> None:
        if place.offsets[-1] + 1 - place.end == len(place.offsets):
            return  # no other program has written between them
        entry = self._metadata.refresh().require(place.stream)
        until = time.monotonic() + _SEAL_S
        while entry.sealing and entry.ends is None:
            if time.monotonic() > until:
                raise IndeterminateWriteError(
                    f"stream {place.stream!r} is being sealed, but its end isn't known yet",
                    hint="the records may have been written; seal the stream again (headrace stream seal), which sets "
                    "its end",
                )
            entry = self._metadata.refresh().require(place.stream)
        end = entry.end(place.partition)
        if end is not None and place.offsets[-1] >= end:
            entry.require_open()

    @override
    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._throw_away()

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

    def _open(self, stream: str, partition: int) -> _WrittenPartition:
        topic = self._options.topic(stream)
        self._metadata.refresh().require(stream)
        partitions = self._topics.find(topic) or 0
        if not 0 <= partition < partitions:
            raise StreamNotFoundError(f"stream {stream!r} has partitions 0 to {partitions - 1}, not {partition}")
        # The order matters: if the stream isn't being sealed after its end was read, no mark is before that end.
        end = self._topics.upcoming(topic, [partition])[partition]
        self._metadata.refresh().require(stream).require_open()
        client = self._open_client()
        with client.translating(f"looking for topic {topic!r}"):  # it refuses partitions that it doesn't know
            found = client.raw.list_topics(topic, timeout=_SEAL_S).topics[topic]
        if partition not in found.partitions:
            said = f"partition {partition} of topic {topic!r} was just added, and not every broker knows it yet"
            raise UnavailableError(said, hint="Headrace tries again")
        return _WrittenPartition(stream, topic, partition, end)


FEED_BYTES = 4 << 20  # of each feed, before others wait for it; four times as much if others have room


class _FrameSource(FetchSource):
    doing = "reading frames from Kafka"
    at_once = 100
    idle_s = 0.03
    pause = 4
    resume = 1
    marked = True

    @override
    def room(self, feeds: int) -> int:
        return FEED_BYTES

    @override
    def missing(self, feed: PartitionFeed, client: KafkaClient[Consumer]) -> FetchedRecords:
        raise TrimmedOffsetError(
            f"partition {feed.partition} of topic {feed.topic!r}: offset {feed.fetched_to}, the next, was trimmed, "
            "or the topic was replaced"
        )


_USUAL = {
    # Partitions that are added to a fetch wait for the one under way.
    "fetch.wait.max.ms": "50",
    "topic.metadata.refresh.fast.interval.ms": "10",
    "fetch.queue.backoff.ms": "2",
    "fetch.error.backoff.ms": "50",
    "queued.max.messages.kbytes": "16384",
    "queued.min.messages": "10000",
}
_ASK_AGAIN_S = 0.05
_END_S = 1.0


@dataclass(slots=True, kw_only=True)
class _LogReading(Reading):
    topic: str
    upcoming: Offset  # the end of the partition as it was when it was asked for last
    asking: Future[Any] | None = None
    upcoming_s: float = 0.0  # when the end was asked for
    end: Offset | None  # where the stream has ended; None while it isn't known to have
    feed: PartitionFeed | None = None
    asked_s: float = 0.0  # when the registry was asked whether the stream ends at the feed's mark


class KafkaLogConsumer(RegisteringConsumer[_LogReading]):
    """Reads partitions of a log."""

    def __init__(
        self, options: LogOptions, topics: Topics, admin: KafkaLogAdmin, metadata: Metadata, sizes: Sizes
    ) -> None:
        super().__init__()
        self._sizes = sizes
        self._options = options
        self._topics = topics
        self._admin = admin
        self._metadata = metadata
        client = open_consumer(options.settings.tuned(_USUAL), "headrace", uncommitted=True)
        self._fetching = FetchThread(client, "kafka-log", _FrameSource())
        self._failure: HeadraceError | None = None

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Does nothing if reading continues there anyway, because a task often reads what it has just written."""
        reading = self._readings.get(ssp)
        if reading is not None and reading.feed is not None and reading.feed.sound and reading.position == position:
            return
        extent = self._admin.extent(ssp)
        edges = {Edge.OLDEST: extent.oldest, Edge.UPCOMING: extent.upcoming}
        start = edges[position] if isinstance(position, Edge) else position
        check_within(ssp, start, Extent(extent.oldest, extent.upcoming))
        self.unregister(ssp)
        topic, end = self._options.topic(ssp.stream.name), extent.upcoming if extent.sealed else None
        reading = _LogReading(ssp, start, topic=topic, upcoming=extent.upcoming, upcoming_s=time.monotonic(), end=end)
        self._readings[ssp] = reading
        self._fetching.signal()

    @override
    def _release(self, reading: _LogReading) -> None:
        if reading.feed is not None:
            self._fetching.end(reading.feed)
            reading.feed = None

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """If a partition fails after others returned records, this returns the records, and the next poll raises."""
        self._fetching.look()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        out: list[Polled] = []
        for reading in self._asked(ssps):
            try:
                self._read(reading, max_bytes, out)
            except HeadraceError as failure:
                if not out:
                    raise
                self._failure = failure
                break
        return out

    def _read(self, reading: _LogReading, max_bytes: int, out: list[Polled]) -> None:
        if reading.ended:
            return
        if reading.position == reading.end:
            self._end(reading, out)
            return
        feed = reading.feed
        if feed is None:
            reading.feed = self._fetching.begin(reading.topic, reading.ssp.partition, reading.position)
            return
        fetched = self._fetching.take(feed, max_bytes, exactly=True)
        if fetched is not None:
            reading.position = fetched.next
        if fetched is not None and fetched.values:
            self._sizes.seen(reading.ssp.stream.name, len(fetched), fetched.size)
            payloads = cast("list[bytes]", fetched.values)
            out.append(Records(reading.ssp, list(fetched.offsets), payloads, fetched.next))
        elif feed.mark is not None:
            self._at_mark(reading, feed.mark)
        if reading.position == reading.end:
            self._end(reading, out)

    def _end(self, reading: _LogReading, out: list[Polled]) -> None:
        reading.ended = True
        self._release(reading)
        out.append(Ended(reading.ssp, reading.position))

    def _at_mark(self, reading: _LogReading, mark: Offset) -> None:
        """Ask whether the stream has ended here. A mark of a call that failed halfway is passed over."""
        now = time.monotonic()
        if now - reading.asked_s < _ASK_AGAIN_S:
            self._fetching.signal()
            return
        reading.asked_s = now
        reading.end = self._metadata.refresh().require(reading.ssp.stream.name).end(reading.ssp.partition)
        if reading.end is not None and mark >= reading.end:
            reading.position = reading.end
            return
        if reading.end is not None:
            self._release(reading)
            reading.position = mark + 1
        self._fetching.signal()

    @override
    def fileno(self) -> int | None:
        return self._fetching.fileno()

    @override
    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        reading = self._reading(ssp)
        if reading.ended or reading.position >= end:
            return False
        readable(self.fileno(), ms)
        return True

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Records to the end of the partition, which is asked for now and then: the answer may be a second old."""
        reading = self._reading(ssp)
        if reading.end is None:
            self._look_for_end(reading)
        end = max(reading.position, reading.upcoming if reading.end is None else reading.end)
        return end - (reading.position if since is None else since)

    def _look_for_end(self, reading: _LogReading) -> None:
        now = time.monotonic()
        if reading.asking is not None and reading.asking.done():
            if reading.asking.exception() is None:
                reading.upcoming = max(reading.upcoming, reading.asking.result().offset)
            reading.asking = None
        if reading.asking is None and now - reading.upcoming_s > _END_S:
            reading.upcoming_s, partition = now, reading.ssp.partition
            reading.asking = self._topics.ask(reading.topic, [partition])[partition]

    @override
    def close(self) -> None:
        self._readings.clear()
        self._fetching.close()


class KafkaLogSystem(System):
    """A log in a Kafka cluster. It connects when it is first used."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self._topics = Topics(options.settings, uncommitted=True)
        self._metadata = Metadata(options, self._topics)
        self._sizes = Sizes()

    @override
    def admin(self) -> KafkaLogAdmin:
        return KafkaLogAdmin(self.options, self._topics, self._metadata, self._sizes)

    @override
    def consumer(self) -> KafkaLogConsumer:
        return KafkaLogConsumer(self.options, self._topics, self.admin(), self._metadata, self._sizes)

    @override
    def producer(self) -> _KafkaLogProducer:
        return _KafkaLogProducer(self.options, self._topics, self._metadata, self._sizes)


def open_kafka_log(name: str, options: Mapping[str, Any]) -> KafkaLogSystem:
    return KafkaLogSystem(LogOptions.of(options))
