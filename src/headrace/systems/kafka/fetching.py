"""Fetches partitions of one topic in a thread of its own, with one client.

librdkafka fetches ahead by itself. The thread moves what it has fetched into feeds, which are bounded, and then leaves
it where it is. The thread alone uses the client, so nothing of an earlier assignment can get into a later feed. The
lock guards feeds and orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError, TrimmedOffsetError
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.systems.kafka.client import (
    OUT_OF_RANGE,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
    cannot_log_in,
)
from headrace.systems.kafka.fetched import Feed, Fetched
from headrace.systems.kafka.reader_thread import ReaderThread
from headrace.systems.kafka.topics import Topic

RECORDS_AT_ONCE = 1000
"""More at once are slower: their objects don't stay in the processor's caches."""
BUFFER_BYTES = 16 << 20
"""What waits in all feeds together; librdkafka has as much again."""
FEED_BYTES_MIN = 1 << 20
IDLE_S = 0.1
"""How long the thread waits for records at a time. An order is followed as late as that."""
LOOK_S = 30.0
"""How often it checks that the topic is unchanged."""
ANSWER_S = 5.0

_log = logger(__name__)

_VALUE: Callable[[Message], bytes | None] = Message.value
_KEY: Callable[[Message], bytes | None] = Message.key
_EOF = KafkaError._PARTITION_EOF


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of records is needed apart from their values."""

    keys: bool = False
    times: bool = False
    headers: bool = False


class Fetching(ReaderThread):
    """Fetches partitions into feeds. One thread uses it, apart from its own."""

    def __init__(
        self,
        client: KafkaClient[Consumer],
        topic: str,
        wanted: Wanted,
        *,
        skip_lost: bool,
        known: Topic,
        topic_now: Callable[[], Topic],
    ) -> None:
        """``skip_lost``: records that were deleted unread are skipped, and said to be ``lost``; else it is an error.

        The topic is ``known``; now and then it looks whether that is what ``topic_now`` says.
        """
        super().__init__(client, f"kafka-{topic}", f"reading topic {topic!r}")
        self._topic = topic
        self._wanted = wanted
        self._skip_lost = skip_lost
        self._topic_now = topic_now
        self._known = known
        self._looked = time.monotonic()
        self._orders: list[tuple[Feed, bool]] = []
        self._feeds: dict[int, Feed] = {}
        """Those that are assigned. The thread alone changes it."""
        self._heard = False

    # -- for the thread that uses it

    def begin(self, partition: int, position: Offset) -> Feed:
        """Start fetching a partition from a position."""
        feed = Feed(partition, position)
        with self.lock:
            self._orders.append((feed, True))
            self.ordered()
        return feed

    def end(self, feed: Feed) -> None:
        """Stop fetching a partition. What was fetched is dropped."""
        with self.lock:
            feed.closed = True
            self._orders.append((feed, False))
            self.ordered()

    @override
    def look(self) -> None:
        super().look()
        if not self._heard and (problem := cannot_log_in(self.client, f"reading topic {self._topic!r}")):
            raise problem

    def emptying(self) -> AbstractContextManager[object]:
        """Lock the feeds while they are read and emptied."""
        return self.lock

    def emptied(self, feed: Feed) -> None:
        """There may be room in a feed again. Only while ``emptying``."""
        if feed.bytes <= self._room() // 2:
            self.lock.notify()

    # -- its own thread

    def _room(self) -> int:
        """How much may wait in a feed."""
        return max(FEED_BYTES_MIN, BUFFER_BYTES // max(1, len(self._feeds)))

    @override
    def turn(self) -> bool:
        if not self._may_fetch():
            return False
        with self.client.translating(f"reading topic {self._topic!r}"):
            messages, errors = self.client.received(IDLE_S, RECORDS_AT_ONCE)
        if messages:
            self._heard = True
            self.client.troubles.over()
            self._hand_on(messages, errors)
        self._look_at_topic()
        return True

    def _may_fetch(self) -> bool:
        """Follow orders, and wait until some feed has room; False when everything is closed."""
        while True:
            with self.lock:
                while not (self.closed or self._orders or any(self._with_room())):
                    self.lock.wait()
                if self.closed:
                    return False
                orders, self._orders = self._orders, []
            for feed, wanted in orders:
                self._follow(feed, wanted)
            with self.lock:
                ready = any(self._with_room())
            if ready:
                self._pace()
                return True

    def _with_room(self) -> Iterator[bool]:
        room = self._room()
        return (feed.bytes < room for feed in self._feeds.values())

    def _pace(self) -> None:
        """Pause partitions whose feeds are full, as others aren't; resume those that have room again."""
        if len(self._feeds) < 2 and not any(feed.paused for feed in self._feeds.values()):
            return
        room = self._room()
        for feed in self._feeds.values():
            place = [TopicPartition(self._topic, feed.partition)]
            if not feed.paused and feed.bytes >= room:
                feed.paused = True
                self.client.raw.pause(place)
            elif feed.paused and feed.bytes <= room // 2:
                feed.paused = False
                self.client.raw.resume(place)

    def _follow(self, feed: Feed, wanted: bool) -> None:
        with self.client.translating(f"reading topic {self._topic!r}"):
            if self._feeds.get(feed.partition) is (None if wanted else feed):
                if wanted:
                    self._feeds[feed.partition] = feed
                    place = TopicPartition(self._topic, feed.partition, feed.fetched_to)
                    self.client.raw.incremental_assign([place])
                else:
                    del self._feeds[feed.partition]
                    place = TopicPartition(self._topic, feed.partition)
                    if feed.paused:
                        self.client.raw.resume([place])
                    self.client.raw.incremental_unassign([place])

    def _hand_on(self, messages: Sequence[Message], errors: Sequence[KafkaError | None]) -> None:
        """Put records into feeds, run by run."""
        partitions = list(map(Message.partition, messages))
        start, total = 0, len(messages)
        if partitions.count(partitions[0]) == total and not any(errors):
            self._put(partitions[0], messages)
            return
        for i in range(total + 1):
            ended = i == total
            if ended or errors[i] is not None or partitions[i] != partitions[start]:
                if i > start:
                    self._put(partitions[start], messages[start:i])
                start = i
            if not ended and (error := errors[i]) is not None:
                self._stumble(messages[i], error)
                start = i + 1

    def _put(self, partition: int | None, messages: Sequence[Message]) -> None:
        fetched = fetched_of(messages, self._wanted)
        with self.lock:
            feed = None if partition is None else self._feeds.get(partition)
            if feed is not None and not feed.closed:
                feed.put(fetched)
                self.signal_held()

    def _stumble(self, message: Message, error: KafkaError) -> None:
        """What comes in place of a record: the end of a partition, or an error."""
        partition = message.partition()
        feed = None if partition is None else self._feeds.get(partition)
        if feed is None:
            if error.code() != _EOF and partition in (None, -1):
                raise self.client.problem(error, f"reading topic {self._topic!r}")
            return  # of a partition that isn't read any more
        if error.code() == _EOF:
            offset = message.offset()
            with self.lock:
                if offset is not None and not feed.closed:
                    feed.ended(offset)
                    self.signal_held()
        elif error.code() in OUT_OF_RANGE:
            self._out_of_range(feed)
        else:
            problem = self.client.problem(error, f"reading partition {partition} of topic {self._topic!r}")
            if not problem.retry:
                self._break(feed, problem)

    def _break(self, feed: Feed, error: Exception) -> None:
        with self.lock:
            feed.error = error
            self.signal_held()

    def _out_of_range(self, feed: Feed) -> None:
        """Handle an offset whose records, or whose whole topic, were deleted."""
        place = TopicPartition(self._topic, feed.partition)
        with self.client.translating(f"looking for offsets of topic {self._topic!r}"):
            low, high = self.client.raw.get_watermark_offsets(place, ANSWER_S)
        if not feed.fetched_to < low:
            self._break(feed, beyond_the_end(self._topic, feed.partition, feed.fetched_to, high))
        elif not self._skip_lost:
            self._break(feed, lost_records(self._topic, feed.partition, feed.fetched_to, low))
        else:
            _log.warning(
                "records were deleted before they were read", topic=self._topic, partition=feed.partition, first=low
            )
            with self.lock:
                feed.put(Fetched([], [], low, lost=low - feed.fetched_to))
                self.signal_held()
            with self.client.translating(f"reading topic {self._topic!r}"):
                self.client.raw.incremental_unassign([place])
                self.client.raw.incremental_assign([TopicPartition(self._topic, feed.partition, low)])

    def _look_at_topic(self) -> None:
        """Raise if the topic was deleted, replaced or repartitioned, which clients don't report for idle topics."""
        known = self._known
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            found = self._topic_now()
        except HeadraceError as error:
            if isinstance(error, StreamNotFoundError):
                raise
            _log.debug("can't look at the topic", topic=self._topic, error=error.message)
            return
        if known.id and found.id and known.id != found.id:
            raise StreamNotFoundError(
                f"the topic {self._topic!r} was deleted and created again while the app read it: its id was "
                f"{known.id}, and is now {found.id}",
                hint="start the app again: it then fails with an error whose hint says how to continue",
            )
        if found.partitions > known.partitions:
            raise DeploymentError(
                f"the topic {self._topic!r} now has {found.partitions} partitions, but the app reads "
                f"{known.partitions}",
                hint="start the app again, and it reads all of them; if the app keeps state by the topic's partitions, "
                "first add partition_by(...) after the input, or run the app under another name",
            )


def fetched_of(messages: Sequence[Message], wanted: Wanted) -> Fetched:
    """Records of one partition that follow one another, none of them an error."""
    first, last = messages[0].offset(), messages[-1].offset()
    assert first is not None
    assert last is not None
    dense = last - first + 1 == len(messages)
    fetched = Fetched(
        range(first, last + 1) if dense else [offset or 0 for offset in map(Message.offset, messages)],
        list(map(_VALUE, messages)),
        last + 1,
        sum(map(len, messages)),
    )
    if wanted.keys:
        fetched.keys = list(map(_KEY, messages))
    if wanted.times:
        fetched.times = [time for _, time in map(Message.timestamp, messages)]
    if wanted.headers:
        fetched.headers = list(map(_headers, messages))
    return fetched


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    found = message.headers()
    if not found:
        return None
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def lost_records(topic: str, partition: int, position: Offset, low: Offset) -> TrimmedOffsetError:
    """Return the error for records that were deleted before they were read."""
    return TrimmedOffsetError(
        f"partition {partition} of topic {topic!r}: offsets {position} to {low - 1} were deleted before they "
        f"were read, up to {low - position} records",
        hint='keep the topic\'s records for longer (retention.ms); to continue without the lost ones, set lost="skip" '
        "in hr.io.kafka(...), or run headrace startpoint set ... --oldest",
    )


def beyond_the_end(topic: str, partition: int, position: Offset, high: Offset) -> StreamNotFoundError:
    """Return the error for a position that the topic no longer has."""
    return StreamNotFoundError(
        f"partition {partition} of topic {topic!r} ends at offset {high}, but the app has read up to {position}: "
        "this is another topic of that name, or it has lost its last records",
        hint="restore the old topic and start the app again; to read this topic, start the app under another name",
    )
