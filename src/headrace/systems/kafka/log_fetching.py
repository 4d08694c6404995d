"""Fetches partitions of topics with frames, in a thread of its own.

librdkafka fetches ahead by itself. The thread moves what has come into feeds, and leaves it where it is while all feeds
are full. A partition whose feed is much fuller than others need is paused. That
is costly: what was fetched of it ahead is fetched again. The thread alone assigns partitions, so nothing of an earlier
assignment gets into a later feed. The lock guards feeds and orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from typing_extensions import override

from headrace.core.errors import HeadraceError, TrimmedOffsetError
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger
from headrace.systems.kafka.client import (
    OUT_OF_RANGE,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
)
from headrace.systems.kafka.reader_thread import ReaderThread

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
