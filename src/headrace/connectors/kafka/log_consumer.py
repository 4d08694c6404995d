"""The reading side of a log in Kafka: frames, fetched in a thread of its own.

log fetching
    Fetches partitions of topics with frames, in a thread of its own.

    librdkafka fetches ahead by itself. The thread moves what has come into feeds, and leaves it where it is while all
    feeds are full. A partition whose feed is much fuller than others need is paused. That is costly: what was fetched
    of it ahead is fetched again. The thread alone assigns partitions, so nothing of an earlier assignment gets into a
    later feed. The lock guards feeds and orders.

log consumer
    The reading side of a log in Kafka. ``register`` waits for brokers; ``poll`` takes records that have arrived.

    A partition is fetched from its first poll on. Its end is known from the registry, or found as a mark; then the
    registry is asked whether the stream has ended there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from headrace.connectors.kafka.client import (
    OUT_OF_RANGE,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
    open_consumer,
)
from headrace.connectors.kafka.log_admin import Cluster, KafkaLogAdmin, Metadata, Sizes
from headrace.connectors.kafka.log_topics import LogOptions
from headrace.connectors.kafka.reader_thread import ReaderThread
from headrace.core.errors import HeadraceError, TrimmedOffsetError
from headrace.core.files import readable
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.systems.base import (
    Edge,
    Ended,
    Extent,
    Polled,
    Position,
    Reading,
    Records,
    RegisteringConsumer,
    check_within,
)

# -- log fetching ------------------------------------------------------------------------------------
FEED_BYTES = 4 << 20
"""While so much waits in each feed, nothing more is moved into any."""
PAUSED_BYTES = 4 * FEED_BYTES
"""So much may wait in a feed while others have room."""
_AT_ONCE = 100
_IDLE_S = 0.03
"""How long the thread waits for records at a time. An order is followed as late as that."""

_log = logger(__name__)


@dataclass(slots=True, eq=False)
class Feed:
    """The records of one partition that were fetched and not taken yet. ``next`` is behind them."""

    topic: str
    partition: int
    next: Offset
    records: deque[tuple[Offset, bytes]] = field(default_factory=deque)
    bytes: int = 0
    mark: Offset | None = None
    """A record without a value, which may be the stream's end. Records after it aren't fetched."""
    error: HeadraceError | None = None
    paused: bool = False
    closed: bool = False

    @property
    def sound(self) -> bool:
        """It goes on."""
        return not self.closed and self.mark is None and self.error is None

    @property
    def place(self) -> TopicPartition:
        """The partition, and where to go on."""
        return TopicPartition(self.topic, self.partition, self.next)


class Fetching(ReaderThread):
    """Fetches into feeds. One thread uses it, apart from its own."""

    def __init__(self, client: KafkaClient[Consumer]) -> None:
        super().__init__(client, "kafka-log", "reading frames from Kafka")
        self._orders: list[tuple[Feed, bool]] = []
        self._feeds: dict[tuple[str, int], Feed] = {}
        """Those that are assigned. The thread alone changes it."""
        self._throttle = Throttle(_log)

    # -- for the thread that uses it

    def begin(self, topic: str, partition: int, position: Offset) -> Feed:
        """Start fetching a partition from a position."""
        feed = Feed(topic, partition, position)
        with self.lock:
            self._orders.append((feed, True))
            self.ordered()
        return feed

    def end(self, feed: Feed) -> None:
        """Stop fetching a partition. What was fetched is dropped."""
        with self.lock:
            feed.closed = True
            feed.records.clear()
            self._orders.append((feed, False))
            self.ordered()

    def take(self, feed: Feed, max_bytes: int) -> tuple[list[Offset], list[bytes]]:
        """Take records of up to this many bytes, but at least one if available. Raises errors that arrived instead."""
        offsets: list[Offset] = []
        payloads: list[bytes] = []
        taken = 0
        with self.lock:
            records = feed.records
            while records:
                offset, payload = records[0]
                taken += len(payload)
                if taken > max_bytes and offsets:
                    taken -= len(payload)
                    break
                records.popleft()
                offsets.append(offset)
                payloads.append(payload)
            feed.bytes -= taken
            if taken and feed.bytes < FEED_BYTES:
                self.lock.notify()
            if not offsets and feed.error is not None:
                raise feed.error
        return offsets, payloads

    # -- its own thread

    @override
    def turn(self) -> bool:
        if not self._follow():
            return False
        self._pace()
        with self.client.translating("reading frames"):
            messages, errors = self.client.received(_IDLE_S, _AT_ONCE)
        self._hand_on(messages, errors)
        return True

    def _follow(self) -> bool:
        """Follow orders, and wait while nothing is to be fetched; False when everything is closed."""
        with self.lock:
            while not (self.closed or self._orders or self._room()):
                self.lock.wait()
            if self.closed:
                return False
            orders, self._orders = self._orders, []
        with self.client.translating("reading frames"):
            for feed, wanted in orders:
                key = (feed.topic, feed.partition)
                if wanted:
                    self._feeds[key] = feed
                    self.client.raw.incremental_assign([feed.place])
                elif self._feeds.get(key) is feed:
                    self._drop(feed)
        return True

    def _room(self) -> bool:
        return any(feed.bytes < FEED_BYTES for feed in self._feeds.values())

    def _drop(self, feed: Feed) -> None:
        del self._feeds[feed.topic, feed.partition]
        if feed.paused:
            self.client.raw.resume([feed.place])
        self.client.raw.incremental_unassign([feed.place])

    def _pace(self) -> None:
        """Pause what is full, and go on with what has room again."""
        for feed in self._feeds.values():
            if not feed.paused and feed.bytes >= PAUSED_BYTES:
                feed.paused = True
                self.client.raw.pause([feed.place])
            elif feed.paused and feed.bytes < FEED_BYTES:
                feed.paused = False
                self.client.raw.resume([feed.place])

    def _hand_on(self, messages: Iterable[Message], errors: Iterable[KafkaError | None]) -> None:
        problems: list[tuple[Message, KafkaError]] = []
        news = False
        with self.lock:
            for message, error in zip(messages, errors, strict=True):
                feed = self._feeds.get((message.topic() or "", _number(message.partition())))
                if error is not None:
                    problems.append((message, error))
                elif feed is not None and not feed.closed and feed.mark is None:
                    _put(feed, message)
                    news = True
            if news:
                self.signal_held()
        for message, error in problems:
            self._stumble(message, error)
        for feed in [feed for feed in self._feeds.values() if feed.mark is not None]:
            self._drop(feed)

    def _stumble(self, message: Message, error: KafkaError) -> None:
        """What comes in place of a record: the end of a partition, or an error."""
        offset = message.offset()
        feed = self._feeds.get((message.topic() or "", _number(message.partition())))
        if error.code() == KafkaError._PARTITION_EOF:
            with self.lock:
                if feed is not None and offset is not None and offset > feed.next:
                    feed.next = offset  # no record precedes it
                    self.signal_held()
            return
        if feed is not None and error.code() in OUT_OF_RANGE:
            problem: HeadraceError = TrimmedOffsetError(
                f"partition {feed.partition} of topic {feed.topic!r}: offset {feed.next}, the next, was trimmed, "
                "or the topic was replaced"
            )
        else:
            problem = self.client.problem(error, "reading frames")
            if problem.retry:
                self._throttle.warning("can't read from Kafka; Headrace tries again", error=problem.message)
                return
        if feed is None:
            raise problem
        with self.lock:
            feed.error = problem
            self.signal_held()


def _number(partition: int | None) -> int:
    return -1 if partition is None else partition


def _put(feed: Feed, message: Message) -> None:
    offset, value = message.offset(), message.value()
    assert offset is not None
    if value is None:
        feed.mark = offset
        return
    feed.records.append((offset, value))
    feed.bytes += len(value)
    feed.next = offset + 1


# -- log consumer ------------------------------------------------------------------------------------
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
class _Reading(Reading):
    topic: str
    upcoming: Offset
    """The end of the partition as it was when it was asked for last."""
    asking: Future[Any] | None = None
    upcoming_s: float = 0.0
    """When the end was asked for."""
    end: Offset | None
    """Where the stream has ended; None while it isn't known to have."""
    feed: Feed | None = None
    asked_s: float = 0.0
    """When the registry was asked whether the stream ends at the feed's mark."""


class KafkaLogConsumer(RegisteringConsumer[_Reading]):
    """Reads partitions of a log."""

    def __init__(
        self, options: LogOptions, cluster: Cluster, admin: KafkaLogAdmin, metadata: Metadata, sizes: Sizes
    ) -> None:
        super().__init__()
        self._sizes = sizes
        self._options = options
        self._cluster = cluster
        self._admin = admin
        self._metadata = metadata
        self._fetching = Fetching(open_consumer(options.settings.tuned(_USUAL), "headrace", uncommitted=True))
        self._failure: HeadraceError | None = None

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Does nothing if reading continues there anyway, because a task often reads what it has just written."""
        reading = self._readings.get(ssp)
        if reading is not None and reading.feed is not None and reading.feed.sound and reading.position == position:
            return
        extent = self._admin.extent(ssp)
        if isinstance(position, Edge):
            start = extent.oldest if position is Edge.OLDEST else extent.upcoming
        else:
            start = position
        check_within(ssp, start, Extent(extent.oldest, extent.upcoming))
        self.unregister(ssp)
        self._readings[ssp] = _Reading(
            ssp,
            start,
            topic=self._options.topic(ssp.stream.name),
            upcoming=extent.upcoming,
            upcoming_s=time.monotonic(),
            end=extent.upcoming if extent.sealed else None,
        )
        self._fetching.signal()

    @override
    def _release(self, reading: _Reading) -> None:
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

    def _read(self, reading: _Reading, max_bytes: int, out: list[Polled]) -> None:
        if reading.ended:
            return
        if reading.position == reading.end:
            self._end(reading, out)
            return
        feed = reading.feed
        if feed is None:
            reading.feed = self._fetching.begin(reading.topic, reading.ssp.partition, reading.position)
            return
        offsets, payloads = self._fetching.take(feed, max_bytes)
        if offsets:
            reading.position = offsets[-1] + 1 if feed.records else feed.next
            self._sizes.seen(reading.ssp.stream.name, len(payloads), sum(map(len, payloads)))
            out.append(Records(reading.ssp, offsets, payloads, reading.position))
        elif feed.mark is not None:
            self._at_mark(reading, feed.mark)
        else:
            reading.position = feed.next
        if reading.position == reading.end:
            self._end(reading, out)

    def _end(self, reading: _Reading, out: list[Polled]) -> None:
        reading.ended = True
        self._release(reading)
        out.append(Ended(reading.ssp, reading.position))

    def _at_mark(self, reading: _Reading, mark: Offset) -> None:
        """Ask whether the stream has ended here. A mark of a call that failed halfway is passed over."""
        now = time.monotonic()
        if now - reading.asked_s < _ASK_AGAIN_S:
            self._fetching.signal()
            return
        reading.asked_s = now
        entry = self._metadata.require(reading.ssp.stream.name)
        reading.end = entry.end(reading.ssp.partition)
        if reading.end is None:
            self._fetching.signal()
            return
        if mark < reading.end:
            self._release(reading)
            reading.position = mark + 1
            self._fetching.signal()
        else:
            reading.position = reading.end

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

    def _look_for_end(self, reading: _Reading) -> None:
        now = time.monotonic()
        if reading.asking is not None and reading.asking.done():
            if reading.asking.exception() is None:
                reading.upcoming = max(reading.upcoming, reading.asking.result().offset)
            reading.asking = None
        if reading.asking is None and now - reading.upcoming_s > _END_S:
            reading.upcoming_s = now
            reading.asking = self._cluster.asked_upcoming(reading.topic, reading.ssp.partition)

    @override
    def close(self) -> None:
        self._readings.clear()
        self._fetching.close()
