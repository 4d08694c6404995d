"""Fetches partitions of one topic in a thread of its own, with one client; a pipe says what is new.

librdkafka has no descriptor, and fetches ahead by itself. The thread moves what it has fetched into feeds, which are
bounded, and then leaves it where it is. The thread alone uses the client: a call of another thread would wait for its
turn. So nothing of an earlier assignment can get into a later feed. The lock guards feeds and orders; it is never held
while the broker is waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError, TrimmedOffsetError
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.systems.kafka.client import (
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
    cannot_log_in,
)
from headrace.systems.kafka.fetched import Feed, Fetched

RECORDS_AT_ONCE = 1000
"""More at once are slower: their objects don't stay in the processor's caches."""
BUFFER_BYTES = 16 << 20
"""What waits in all feeds together; librdkafka has as much again."""
FEED_BYTES_MIN = 1 << 20
IDLE_S = 0.1
"""How long the thread waits for records at a time. An order is followed as late as that."""
LOOK_S, NOTE_S = 30.0, 0.2
"""How often it looks for new partitions, and where partitions end."""
ANSWER_S = 5.0

_log = logger(__name__)

_VALUE: Callable[[Message], bytes | None] = Message.value
_KEY: Callable[[Message], bytes | None] = Message.key
_EOF = KafkaError._PARTITION_EOF
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of records is needed apart from their values."""

    keys: bool = False
    times: bool = False
    headers: bool = False


class Fetching:
    """Fetches partitions into feeds. One thread uses it, apart from its own."""

    def __init__(
        self,
        client: KafkaClient[Consumer],
        topic: str,
        wanted: Wanted,
        *,
        skip_lost: bool = False,
        partitions: int | None = None,
    ) -> None:
        """``skip_lost``: records that were deleted unread are skipped, and said to be ``lost``; else it is an error.

        ``partitions``: how many the topic has for the app; it looks now and then if there are more.
        """
        self._client = client
        self._topic = topic
        self._wanted = wanted
        self._skip_lost = skip_lost
        self._partitions = partitions
        self._looked = self._noted = time.monotonic()
        self._lock = threading.Condition()
        self._orders: list[tuple[Feed, bool]] = []
        self._feeds: dict[int, Feed] = {}
        """Those that are assigned. The thread alone changes it."""
        self._failed: HeadraceError | None = None
        self._heard = False
        self._closed = False
        self._signalled = False
        self._reader, self._writer = os.pipe()
        self._thread: threading.Thread | None = None

    # -- for the thread that uses it

    def begin(self, partition: int, position: Offset) -> Feed:
        """Start fetching a partition from a position."""
        feed = Feed(partition, position)
        with self._lock:
            self._order(feed, True)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"kafka-{self._topic}", daemon=True)
                self._thread.start()
        return feed

    def end(self, feed: Feed) -> None:
        """Stop fetching a partition. What was fetched is dropped."""
        with self._lock:
            feed.closed = True
            self._order(feed, False)

    def look(self) -> None:
        """Clear the descriptor. Raises if nothing more can be fetched at all."""
        with self._lock:
            if self._signalled:
                os.read(self._reader, 1)
                self._signalled = False
            failed = self._failed
        if failed is not None:
            raise failed
        if not self._heard and (problem := cannot_log_in(self._client, f"reading topic {self._topic!r}")):
            raise problem

    def emptying(self) -> AbstractContextManager[object]:
        """Keep feeds as they are while they are looked at and emptied."""
        return self._lock

    def emptied(self, feed: Feed) -> None:
        """There may be room in a feed again. Only while ``emptying``."""
        if feed.bytes <= self._room() // 2:
            self._lock.notify()

    def signal(self) -> None:
        """Make the descriptor readable: there is something left to do."""
        with self._lock:
            self._signal()

    def fileno(self) -> int:
        """A descriptor that becomes readable when feeds have something new."""
        return self._reader

    def close(self) -> None:
        """Release everything, the client too. Called once."""
        with self._lock:
            self._closed = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)
        self._client.raw.close()

    # -- its own thread

    def _order(self, feed: Feed, wanted: bool) -> None:
        self._orders.append((feed, wanted))
        self._lock.notify()

    def _signal(self) -> None:
        if not self._signalled and not self._closed:
            self._signalled = True  # one byte is enough until the next poll, and can't fill the pipe
            os.write(self._writer, b"\0")

    def _room(self) -> int:
        """How much may wait in a feed."""
        return max(FEED_BYTES_MIN, BUFFER_BYTES // max(1, len(self._feeds)))

    def _work(self) -> None:
        try:
            while self._may_fetch():
                messages = self._fetch()
                if messages:
                    self._heard = True
                    self._client.troubles.over()
                    self._hand_on(messages)
                self._note_ends()
                self._look_at_topic()
        except HeadraceError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - or the run loop would wait for a dead thread
            self._fail(HeadraceError(f"reading topic {self._topic!r}: {type(error).__name__}: {error}"))

    def _fail(self, error: HeadraceError) -> None:
        with self._lock:
            self._failed = error
            self._signal()

    def _may_fetch(self) -> bool:
        """Follow orders, and wait until some feed has room; False when everything is closed."""
        while True:
            with self._lock:
                while not (self._closed or self._orders or any(self._with_room())):
                    self._lock.wait()
                if self._closed:
                    return False
                orders, self._orders = self._orders, []
            for feed, wanted in orders:
                self._follow(feed, wanted)
            with self._lock:
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
                self._client.raw.pause(place)
            elif feed.paused and feed.bytes <= room // 2:
                feed.paused = False
                self._client.raw.resume(place)

    def _follow(self, feed: Feed, wanted: bool) -> None:
        with self._client.translating(f"reading topic {self._topic!r}"):
            if self._feeds.get(feed.partition) is (None if wanted else feed):
                if wanted:
                    self._feeds[feed.partition] = feed
                    place = TopicPartition(self._topic, feed.partition, feed.fetched_to)
                    self._client.raw.incremental_assign([place])
                else:
                    del self._feeds[feed.partition]
                    place = TopicPartition(self._topic, feed.partition)
                    if feed.paused:
                        self._client.raw.resume([place])
                    self._client.raw.incremental_unassign([place])

    def _fetch(self) -> Sequence[Message]:
        with self._client.translating(f"reading topic {self._topic!r}"):
            first = self._client.raw.poll(IDLE_S)
            if first is None:
                return []
            # With a time to wait, consume would wait until it has as many as it may return.
            return [first, *self._client.raw.consume(RECORDS_AT_ONCE - 1, 0)]

    def _hand_on(self, messages: Sequence[Message]) -> None:
        """Put records into feeds, run by run."""
        errors = list(map(Message.error, messages))
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
            if not ended and errors[i] is not None:
                self._stumble(messages[i])
                start = i + 1

    def _put(self, partition: int | None, messages: Sequence[Message]) -> None:
        fetched = fetched_of(messages, self._wanted)
        with self._lock:
            feed = None if partition is None else self._feeds.get(partition)
            if feed is not None and not feed.closed:
                feed.put(fetched)
                self._signal()

    def _stumble(self, message: Message) -> None:
        """What comes in place of a record: the end of a partition, or an error."""
        error, partition = message.error(), message.partition()
        assert error is not None
        feed = None if partition is None else self._feeds.get(partition)
        if feed is None:
            if error.code() != _EOF and partition in (None, -1):
                raise self._client.problem(error, f"reading topic {self._topic!r}")
            return  # of a partition that isn't read any more
        if error.code() == _EOF:
            offset = message.offset()
            with self._lock:
                if offset is not None and not feed.closed:
                    feed.ended(offset)
                    self._signal()
        elif error.code() in _OUT_OF_RANGE:
            self._out_of_range(feed)
        else:
            problem = self._client.problem(error, f"reading partition {partition} of topic {self._topic!r}")
            if not problem.retry:
                self._break(feed, problem)

    def _break(self, feed: Feed, error: Exception) -> None:
        with self._lock:
            feed.error = error
            self._signal()

    def _out_of_range(self, feed: Feed) -> None:
        """Somebody has deleted what comes next, or all of the topic."""
        place = TopicPartition(self._topic, feed.partition)
        with self._client.translating(f"looking for offsets of topic {self._topic!r}"):
            low, high = self._client.raw.get_watermark_offsets(place, ANSWER_S)
        if not feed.fetched_to < low:
            self._break(feed, beyond_the_end(self._topic, feed.partition, feed.fetched_to, high))
        elif not self._skip_lost:
            self._break(feed, lost_records(self._topic, feed.partition, feed.fetched_to, low))
        else:
            _log.warning("records were deleted unread", topic=self._topic, partition=feed.partition, first=low)
            with self._lock:
                feed.put(Fetched([], [], low, lost=low - feed.fetched_to))
                self._signal()
            with self._client.translating(f"reading topic {self._topic!r}"):
                self._client.raw.incremental_unassign([place])
                self._client.raw.incremental_assign([TopicPartition(self._topic, feed.partition, low)])

    def _note_ends(self) -> None:
        """Note where partitions end, as the broker has said with the last records."""
        if time.monotonic() - self._noted < NOTE_S:
            return
        self._noted = time.monotonic()
        for feed in self._feeds.values():
            place = TopicPartition(self._topic, feed.partition)
            _, high = self._client.raw.get_watermark_offsets(place, cached=True)
            feed.high = high if high >= 0 else None

    def _look_at_topic(self) -> None:
        """Raise if the topic is gone, or has other partitions by now. Nobody says so of an idle topic."""
        if self._partitions is None or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            with self._client.translating(f"looking for topic {self._topic!r}"):
                found = self._client.raw.list_topics(self._topic, timeout=1).topics[self._topic]
                if found.error is not None:
                    raise self._client.problem(found.error, f"reading topic {self._topic!r}")
        except HeadraceError as error:
            if isinstance(error, StreamNotFoundError):
                raise
            _log.debug("can't look for new partitions", topic=self._topic, error=error.message)
            return
        if len(found.partitions) > self._partitions:
            raise DeploymentError(
                f"the topic {self._topic!r} has {len(found.partitions)} partitions by now, and the app reads "
                f"{self._partitions}",
                hint="start the app again: it reads all of them then, unless it keeps state by the topic's partitions; "
                "in that case partition_by(...) the input first, or run it under another name",
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
    """The error for records that were deleted before they were read."""
    return TrimmedOffsetError(
        f"partition {partition} of topic {topic!r}: offsets {position} to {low - 1} were deleted before they "
        f"were read, up to {low - position} records",
        hint='keep the topic\'s records for longer (retention.ms); to go on without these: lost="skip" where the '
        "topic is named, or headrace startpoint set ... --oldest",
    )


def beyond_the_end(topic: str, partition: int, position: Offset, high: Offset) -> StreamNotFoundError:
    """The error for a position that the topic hasn't got any more."""
    return StreamNotFoundError(
        f"partition {partition} of topic {topic!r} ends at offset {high}, and was read up to {position}: it isn't the "
        "topic that the app has read before, or it has lost its end",
        hint="put the old one back and start again; to read the one that is there, use another app name",
    )
