"""Fetches partitions of topics in a thread of its own, with one client, into feeds for one other thread.

librdkafka fetches ahead. The thread moves what it has fetched into feeds, which are bounded, and then leaves it where
it is. A partition whose feed is full while others have room is paused, at a price: what was fetched ahead is fetched
again. The thread alone uses the client and assigns partitions, so nothing of an earlier assignment gets into a later
feed.

The lock guards feeds and orders; it is never held while a broker is waited for. Calls that wait without letting other
threads run, such as those for cached offsets, aren't made at all. A pipe says that there is something new: librdkafka
has no descriptor. ``PartitionFeed`` and ``FetchedRecords`` are pure; the caller has the lock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import ClassVar

from typing_extensions import override

from headrace.connectors.kafka.client import (
    OUT_OF_RANGE,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
    cannot_log_in,
)
from headrace.core.errors import HeadraceError
from headrace.core.files import Bell
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger
from headrace.core.worker import WorkerThread
from headrace.rows.given import Headers

_log = logger(__name__)
_VALUE: Callable[[Message], bytes | None] = Message.value
_KEY: Callable[[Message], bytes | None] = Message.key
Key = tuple[str | None, int | None]


@dataclass(slots=True)
class FetchedRecords:
    """Records of one partition, in order. ``next`` is where reading goes on after them, beyond gaps.

    ``keys``, ``times`` (ms since the epoch) and ``headers`` are empty unless they are wanted. ``size`` is in bytes.
    Without records only the position moves. ``lost``: how many offsets before ``next`` were deleted unread.
    """

    offsets: Sequence[Offset]
    values: list[bytes | None]
    next: Offset
    size: int = 0
    keys: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    lost: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dense(self) -> bool:
        return not self.values or self.offsets[-1] - self.offsets[0] + 1 == len(self.values)

    def before(self, end: Offset) -> FetchedRecords:
        return self if self.next <= end else self._cut(slice(bisect_left(self.offsets, end)), end, self.size)

    def split(self, max_bytes: int, *, least: int) -> tuple[FetchedRecords, FetchedRecords]:
        """The first records, of up to so many bytes but at least so many records; and the others."""
        sizes = list(accumulate(len(value or b"") for value in self.values))
        n = max(least, bisect_right(sizes, max_bytes))
        size = sizes[n - 1] if n else 0
        next = self.offsets[n - 1] + 1 if n else self.offsets[0]
        return self._cut(slice(n), next, size), self._cut(slice(n, None), self.next, self.size - size)

    def _cut(self, part: slice, next: Offset, size: int) -> FetchedRecords:
        keys, times, headers = self.keys[part], self.times[part], self.headers[part]
        return FetchedRecords(self.offsets[part], self.values[part], next, size, keys, times, headers, self.lost)

    def first_at(self, time_ms: int) -> Offset | None:
        index = next((i for i, time in enumerate(self.times) if time >= time_ms), None)
        return None if index is None else self.offsets[index]


def together(pieces: Sequence[FetchedRecords]) -> FetchedRecords:
    """Pieces that follow one another as one. None of them may have ``lost``."""
    if len(pieces) == 1:
        return pieces[0]
    offsets: list[Offset] = []
    whole = FetchedRecords(offsets, [], pieces[-1].next, sum(piece.size for piece in pieces))
    for piece in pieces:
        offsets.extend(piece.offsets)
        whole.values.extend(piece.values)
        whole.keys.extend(piece.keys)
        whole.times.extend(piece.times)
        whole.headers.extend(piece.headers)
    return whole


@dataclass(frozen=True, slots=True)
class WantedFields:
    """What of records is needed apart from their values."""

    keys: bool = False
    times: bool = False
    headers: bool = False


def _fetched_of(messages: Sequence[Message], wanted: WantedFields) -> FetchedRecords:
    first, last = messages[0].offset(), messages[-1].offset()
    assert first is not None and last is not None
    dense = last - first + 1 == len(messages)
    offsets = range(first, last + 1) if dense else [offset or 0 for offset in map(Message.offset, messages)]
    fetched = FetchedRecords(offsets, list(map(_VALUE, messages)), last + 1, sum(map(len, messages)))
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


class PartitionFeed:
    """What was fetched of one partition and wasn't handed out. ``marked`` is as in ``FetchSource``."""

    def __init__(self, topic: str, partition: int, position: Offset, *, marked: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.fetched_to = position  # where fetching goes on
        self.end: Offset | None = None  # where the partition ended when its end was reached last
        self.mark: Offset | None = None
        self.bytes = 0
        self.error: HeadraceError | None = None
        self.closed = False
        self.paused = False
        self._marked = marked
        self._waiting = deque[FetchedRecords]()

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.fetched_to)

    def put(self, fetched: FetchedRecords) -> None:
        if self._marked and None in fetched.values:
            self.mark = fetched.offsets[fetched.values.index(None)]
            fetched = fetched.before(self.mark)
            fetched.size = sum(len(value or b"") for value in fetched.values)
        self._waiting.append(fetched)
        self.bytes += fetched.size
        self.fetched_to = fetched.next

    def ended(self, offset: Offset) -> None:
        self.end = offset
        if offset > self.fetched_to:
            self.put(FetchedRecords([], [], offset))

    @property
    def sound(self) -> bool:
        return not self.closed and self.mark is None and self.error is None

    @property
    def at_end(self) -> bool:
        return self.end == self.fetched_to

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def take(self, max_bytes: int, *, exactly: bool = False) -> FetchedRecords | None:
        """Take so many bytes, and at least one piece, or one record if ``exactly``. What is lost comes alone."""
        pieces: list[FetchedRecords] = []
        waiting, room = self._waiting, max_bytes
        while waiting and (room > 0 or not pieces) and not (pieces and waiting[0].lost):
            piece = waiting.popleft()
            if exactly and piece.size > room:
                piece, rest = piece.split(room, least=not pieces)
                if rest.values:
                    waiting.appendleft(rest)
                if not piece.values:
                    break
            pieces.append(piece)
            room -= piece.size
            if piece.lost:
                break
        if not pieces:
            return None
        self.bytes -= max_bytes - room
        return together(pieces)

    def clear(self) -> None:
        self.closed = True
        self._waiting.clear()


class FetchSource(ABC):
    """A kind of topics that are fetched. The fetching thread calls it."""

    doing: str  # what the thread does, for messages
    at_once: ClassVar[int]  # so many records are moved at a time
    idle_s: ClassVar[float]  # how long the thread waits for records at a time. An order is followed as late as that.
    pause: ClassVar[int] = 1  # a feed with so many times its room is paused while others have room
    resume: ClassVar[int] = 2  # fetching goes on when only this part of the room is in use
    wakes_at_end = False  # whether the other thread wants to know that an end was reached, though nothing has come
    wanted = WantedFields()
    marked: ClassVar[bool] = False  # whether a record without a value is a mark: nothing after it is fetched

    @abstractmethod
    def room(self, feeds: int) -> int:
        """How many bytes may wait in each of so many feeds."""

    @abstractmethod
    def missing(self, feed: PartitionFeed, client: KafkaClient[Consumer]) -> FetchedRecords:
        """What stands for records that aren't there any more: fetching goes on after them. Or raises."""

    def check(self) -> None:  # noqa: B027 - not every kind has something to check
        """Called after each turn. Raises if fetching makes no sense any more."""


class FetchThread(WorkerThread):
    """Fetches partitions into feeds. One thread uses it, apart from its own, which starts with the first order."""

    def __init__(self, client: KafkaClient[Consumer], name: str, source: FetchSource) -> None:
        super().__init__(name)
        self.client = client
        self.lock = threading.Condition()  # notified of what the thread may wait for
        self._source = source
        self._failed: HeadraceError | None = None
        self._bell = Bell()
        self._orders: list[tuple[PartitionFeed, bool]] = []
        self._feeds: dict[Key, PartitionFeed] = {}  # those that are assigned. The thread alone changes it.
        self._heard = False
        self._throttle = Throttle(_log)

    # -- for the thread that uses it

    def begin(self, topic: str, partition: int, position: Offset) -> PartitionFeed:
        feed = PartitionFeed(topic, partition, position, marked=self._source.marked)
        self._order(feed, wanted=True)
        return feed

    def end(self, feed: PartitionFeed) -> None:
        with self.lock:
            feed.clear()
        self._order(feed, wanted=False)

    def _order(self, feed: PartitionFeed, *, wanted: bool) -> None:
        with self.lock:
            self._orders.append((feed, wanted))
            self.lock.notify()
            self.start()

    def take(self, feed: PartitionFeed, max_bytes: int, *, exactly: bool = False) -> FetchedRecords | None:
        """As ``PartitionFeed.take``. Raises an error that came instead of more."""
        with self.lock:
            fetched = feed.take(max_bytes, exactly=exactly)
            if fetched is None and feed.error is not None:
                raise feed.error
            if feed.bytes <= self._low():
                self.lock.notify()
        return fetched

    def look(self) -> None:
        """Clear the descriptor. Raises if fetching has failed permanently, or if a login is refused."""
        with self.lock:
            self._bell.clear()
            if self._failed is not None:
                raise self._failed
        if not self._heard and (problem := cannot_log_in(self.client, self._source.doing)):
            raise problem

    def signal(self) -> None:
        with self.lock:
            self._bell.ring()

    def fileno(self) -> int:
        return self._bell.fileno()

    @override
    def close(self) -> None:
        super().close()
        self._bell.close()
        self.client.raw.close()

    @override
    def wake(self) -> None:
        with self.lock:
            self.lock.notify()

    # -- its own thread

    @override
    def work(self) -> None:
        while self._may_fetch():
            with self.client.translating(self._source.doing):
                messages, errors = self.client.received(self._source.idle_s, self._source.at_once)
            if messages:
                self._heard = True
                self.client.troubles.over()
                self._hand_on(messages, errors)
            self._source.check()

    @override
    def failed(self, error: Exception) -> None:
        if not isinstance(error, HeadraceError):
            error = HeadraceError(f"{self._source.doing}: {type(error).__name__}: {error}")
        with self.lock:
            self._failed = error
            self._bell.ring()

    def _may_fetch(self) -> bool:
        """Follow orders, and wait until some feed has room; False when everything is closed."""
        while True:
            with self.lock:
                while not (self.closing.is_set() or self._orders or self._has_room()):
                    self.lock.wait()
                if self.closing.is_set():
                    return False
                orders, self._orders = self._orders, []
            with self.client.translating(self._source.doing):
                for feed, wanted in orders:
                    key = (feed.topic, feed.partition)
                    if wanted and key not in self._feeds:
                        self._feeds[key] = feed
                        self.client.raw.incremental_assign([feed.place])
                    elif not wanted and self._feeds.get(key) is feed:
                        self._drop(feed)
            with self.lock:
                ready = self._has_room()
            if ready:
                self._pace()
                return True

    def _room(self) -> int:
        return self._source.room(max(1, len(self._feeds)))

    def _low(self) -> int:
        return self._room() // self._source.resume

    def _has_room(self) -> bool:
        room = self._room()
        return any(feed.bytes < room for feed in self._feeds.values())

    def _drop(self, feed: PartitionFeed) -> None:
        del self._feeds[feed.topic, feed.partition]
        if feed.paused:
            self.client.raw.resume([feed.place])
        self.client.raw.incremental_unassign([feed.place])

    def _pace(self) -> None:
        if len(self._feeds) < 2 and not any(feed.paused for feed in self._feeds.values()):
            return
        full, low = self._room() * self._source.pause, self._low()
        for feed in self._feeds.values():
            if not feed.paused and feed.bytes >= full:
                feed.paused = True
                self.client.raw.pause([feed.place])
            elif feed.paused and feed.bytes <= low:
                feed.paused = False
                self.client.raw.resume([feed.place])

    def _hand_on(self, messages: Sequence[Message], errors: Sequence[KafkaError | None]) -> None:
        keys: list[object] = list(map(Message.partition, messages))
        if len({feed.topic for feed in self._feeds.values()}) > 1:
            keys = list(zip(map(Message.topic, messages), keys, strict=True))
        if keys.count(keys[0]) == len(keys) and not any(errors):  # most of the time
            self._put(messages)
            return
        start = 0
        for stop in [*(i for i, error in enumerate(errors) if error is not None), len(messages)]:
            for _, run in groupby(keys[start:stop]):
                n = len(list(run))
                self._put(messages[start : start + n])
                start += n
            if stop < len(messages) and (error := errors[stop]) is not None:
                self._stumble(messages[stop], error)
            start = stop + 1

    def _put(self, messages: Sequence[Message]) -> None:
        feed = self._feeds.get((messages[0].topic(), messages[0].partition()))
        if feed is None:
            return
        fetched = _fetched_of(messages, self._source.wanted)
        with self.lock:
            if not feed.closed:
                feed.put(fetched)
                self._bell.ring()
        if feed.mark is not None:
            self._drop(feed)

    def _stumble(self, message: Message, error: KafkaError) -> None:
        partition, offset = message.partition(), message.offset()
        feed = self._feeds.get((message.topic(), partition))
        if error.code() == KafkaError._PARTITION_EOF:
            with self.lock:
                if feed is not None and offset is not None and not feed.closed:
                    moved = offset > feed.fetched_to
                    feed.ended(offset)
                    if moved or self._source.wakes_at_end:
                        self._bell.ring()
        elif feed is not None and error.code() in OUT_OF_RANGE:
            self._jump(feed)
        elif feed is not None or partition in (None, -1):  # else it is of a partition that isn't read any more
            doing = f"reading partition {partition} of topic {feed.topic!r}" if feed else self._source.doing
            problem = self.client.problem(error, doing)
            if problem.retry:
                self._throttle.warning("can't read from Kafka; Headrace tries again", error=problem.message)
            elif feed is None:
                raise problem
            else:
                self._break(feed, problem)

    def _break(self, feed: PartitionFeed, error: HeadraceError) -> None:
        with self.lock:
            feed.error = error
            self._bell.ring()

    def _jump(self, feed: PartitionFeed) -> None:
        try:
            missing = self._source.missing(feed, self.client)
        except HeadraceError as error:
            self._break(feed, error)
            return
        with self.client.translating(self._source.doing):
            self.client.raw.incremental_unassign([feed.place])
            with self.lock:
                feed.put(missing)
                self._bell.ring()
            self.client.raw.incremental_assign([feed.place])
