"""A topic of Kafka as a row system: fetched in a thread of its own, read as rows.

fetching
    Fetches partitions of one topic in a thread of its own, with one client.

    librdkafka fetches ahead by itself. The thread moves what it has fetched into feeds, which are bounded, and then
    leaves it where it is. The thread alone uses the client, so nothing of an earlier assignment can get into a later
    feed. The lock guards feeds and orders.

consumer
    Reads partitions of a topic as rows. Offsets are Kafka's: transactions and compaction leave gaps.

system
    A topic of Kafka as a row system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka.admin import GroupCommits, KafkaAdmin, Topic, Topics
from headrace.connectors.kafka.client import (
    OUT_OF_RANGE,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    TopicPartition,
    cannot_log_in,
    open_consumer,
)
from headrace.connectors.kafka.reader_thread import ReaderThread
from headrace.connectors.kafka.rows import Feed, Fetched, KeyColumn, RecordRows, columns_about, key_dtype
from headrace.connectors.kafka.settings import Options
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.files import readable
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import Columns
from headrace.rows.formats import FormatSpec, open_format
from headrace.systems.base import (
    BadRecord,
    Edge,
    Ended,
    Polled,
    Position,
    Reading,
    RegisteringConsumer,
    Rows,
    RowSystem,
    Target,
    Unread,
)

# -- fetching ----------------------------------------------------------------------------------------
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


# -- consumer ----------------------------------------------------------------------------------------
ASK_AGAIN_MS = 10_000.0
END_MS = 500.0
"""How often brokers are asked where partitions end that aren't read to their ends."""


@dataclass(slots=True, kw_only=True)
class _KafkaReading(Reading):
    end: Offset | None = None
    """Where the partition ends for the app; None: it doesn't, or only its time is known."""
    feed: Feed | None = None
    """None when nothing more is to be fetched."""
    held: Fetched | None = None
    """What was taken of the feed, and can't be decoded yet."""
    lost: int = 0
    ask_ms: float = 0.0
    """When the broker may be asked again where the partition ends."""


class KafkaConsumer(RegisteringConsumer[_KafkaReading]):
    """Reads the topic that the options name, as a stream of any name. ``Edge.OLDEST`` is where the options say.

    A bounded partition ends at an offset; or by time, at the first record that has the time or a later one, or, if
    there is none, where the partition ends when the clock has come to that time.
    """

    def __init__(
        self, options: Options, partitions: int, topics: Topics, fetching: Fetching, rows: RecordRows, clock: Clock
    ) -> None:
        super().__init__()
        self._options = options
        self._partitions = partitions
        self._topics = topics
        self._fetching = fetching
        self._maker = rows
        self._clock = clock
        self._throttle = Throttle(_log)
        self._ends: dict[int, Offset] = {}
        """Where partitions ended when brokers said so last."""
        self._asking: dict[int, Future[Any]] = {}
        self._asked_ms = float("-inf")

    # -- where reading begins

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        """Asks the broker where the partition begins and ends."""
        if not 0 <= ssp.partition < self._partitions:
            raise StreamNotFoundError(
                f"{ssp}: the topic {self._options.topic!r} has partitions 0 to {self._partitions - 1}"
            )
        self.unregister(ssp)
        end = None if self._options.end is None else self._options.end.offsets.get(ssp.partition)
        reading = _KafkaReading(ssp, end=end)
        reading.position = self._begins(reading, position)
        if end is None or reading.position < end:
            reading.feed = self._fetching.begin(ssp.partition, reading.position)
        else:
            reading.position = max(reading.position, end)
            self._fetching.signal()
        self._readings[ssp] = reading

    def _begins(self, reading: _KafkaReading, position: Position) -> Offset:
        topic, partition = self._options.topic, reading.ssp.partition
        low = self._topics.oldest(topic, [partition])[partition]
        if position is Edge.OLDEST:
            return self._first(partition, low)
        high = self._topics.upcoming(topic, [partition])[partition]
        if isinstance(position, Edge):
            return high
        if position > high:
            raise beyond_the_end(topic, partition, position, high)
        if position < low:
            if self._options.lost == "stop":
                raise lost_records(topic, partition, position, low)
            reading.lost = low - position
            self._fetching.signal()
        return max(position, low)

    def _first(self, partition: int, low: Offset) -> Offset:
        """Where the first run begins."""
        topic, start = self._options.topic, self._options.start
        if start == "oldest":
            return low
        found = None if isinstance(start, str) else self._topics.at(topic, [partition], start)[partition]
        return self._topics.upcoming(topic, [partition])[partition] if found is None else found

    @override
    def _release(self, reading: _KafkaReading) -> None:
        if reading.feed is not None:
            self._fetching.end(reading.feed)
            reading.feed = None

    @override
    def close(self) -> None:
        super().close()
        self._fetching.close()

    # -- what is read

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        asked = self._asked(ssps)
        self._fetching.look()
        return [polled for reading in asked for polled in self._hand_out(reading, max_bytes)]

    def _hand_out(self, reading: _KafkaReading, max_bytes: int) -> Iterator[Polled]:
        if reading.ended:
            return
        if reading.lost:
            lost, reading.lost = reading.lost, 0
            first, after = reading.position - lost, reading.position
            yield Rows(reading.ssp, pl.DataFrame(), first, after, unread=_unread(lost, after))
        fetched = self._take(reading, max_bytes)
        if fetched is not None and (rows := self._rows(reading, fetched)) is not None:
            yield rows
        if reading.held is None and self._is_over(reading):
            self._release(reading)
            reading.ended = True
            yield Ended(reading.ssp, reading.position)

    def _take(self, reading: _KafkaReading, max_bytes: int) -> Fetched | None:
        feed = reading.feed
        if reading.held is not None or feed is None:
            return reading.held
        with self._fetching.emptying():
            if feed.error is not None and not feed.waiting:
                raise feed.error
            fetched = feed.take(max_bytes)
            self._fetching.emptied(feed)
        if fetched is None:
            return None
        time_ms = self._end_ms
        if time_ms is not None and (found := fetched.first_at(time_ms)) is not None:
            reading.end = found if reading.end is None else min(found, reading.end)
        return fetched if reading.end is None else fetched.before(reading.end)

    def _is_over(self, reading: _KafkaReading) -> bool:
        if reading.end is None and self._end_ms is not None and self._clock.now_ms() >= self._end_ms:
            reading.end = self._present_end(reading)
        return reading.end is not None and reading.position >= reading.end

    @property
    def _end_ms(self) -> int | None:
        return None if self._options.end is None else self._options.end.time_ms

    def _present_end(self, reading: _KafkaReading) -> Offset | None:
        """Return the present end of the partition; None if no broker answers, or if records of that time may be unread.

        The broker is asked when there is nothing more to take, so that a record of the end's time is found first.
        """
        feed, now_ms = reading.feed, self._clock.monotonic_ms()
        if feed is None or now_ms < reading.ask_ms:
            return None
        with self._fetching.emptying():
            if feed.waiting or not feed.at_end:
                return None
        try:
            return self._topics.upcoming(self._options.topic, [feed.partition])[feed.partition]
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.ask_ms = now_ms + ASK_AGAIN_MS
            return None

    def _rows(self, reading: _KafkaReading, fetched: Fetched) -> Rows | None:
        """The rows; None if they can't be decoded now."""
        ssp, first = reading.ssp, reading.position
        if not len(fetched):
            reading.position = fetched.next
            return Rows(ssp, pl.DataFrame(), first, fetched.next, unread=_unread(fetched.lost, fetched.next))
        try:
            decoded = self._maker.decode(ssp.partition, fetched)
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.held = fetched
            self._throttle.warning("records can't be decoded yet; waiting", ssp=str(ssp), error=error.message)
            self._fetching.signal()
            return None
        reading.held = None
        place = f"{self._options.topic}, partition {ssp.partition}"
        bad = [
            BadRecord(ssp, fetched.offsets[i], f"{place}, offset {fetched.offsets[i]}: {why}", fetched.values[i] or b"")
            for i, why in decoded.bad
        ]
        reading.position = fetched.next
        offset = fetched.offsets[0] if decoded.offsets is None else first
        return Rows(ssp, decoded.frame, offset, fetched.next, bad, place, offsets=decoded.offsets)

    @override
    def arriving(self, ssp: SSP, end: Offset, ms: float) -> bool:
        reading = self._reading(ssp)
        feed = reading.feed
        if reading.ended or reading.position >= end or feed is None:
            return False
        with self._fetching.emptying():
            if feed.at_end and not feed.waiting and reading.held is None:
                return False  # what is left before the end are marks of transactions, and what was compacted
        readable(self.fileno(), ms)
        return True

    # -- how far it is

    @override
    def fileno(self) -> int | None:
        return self._fetching.fileno()

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Offsets to the end, so gaps count; 0 at the end. None before the broker has said where that is.

        Brokers are asked now and then, without waiting for them, so the answer may be a second old.
        """
        reading = self._reading(ssp)
        if reading.ended:
            return 0
        begun = reading.position if since is None else min(since, reading.position)
        end = self._end_of(reading)
        return None if end is None else max(0, end - begun)

    def _end_of(self, reading: _KafkaReading) -> Offset | None:
        feed = reading.feed
        if feed is None:
            return reading.position
        with self._fetching.emptying():
            known = feed.end if feed.at_end else None
        if known is None:
            self._look_for_ends()
            known = self._ends.get(feed.partition)
        if known is None or reading.end is None:
            return known
        return min(known, reading.end)

    def _look_for_ends(self) -> None:
        if self._asking and all(answer.done() for answer in self._asking.values()):
            answers, self._asking = self._asking, {}
            self._ends |= {n: answer.result().offset for n, answer in answers.items() if answer.exception() is None}
        now_ms = self._clock.monotonic_ms()
        if not self._asking and now_ms - self._asked_ms >= END_MS:
            self._asked_ms = now_ms
            partitions = [one.feed.partition for one in self._readings.values() if one.feed is not None]
            self._asking = self._topics.asked_upcoming(self._options.topic, partitions)


def _unread(lost: int, after: Offset) -> list[Unread]:
    """What to say of offsets up to ``after`` that were deleted."""
    warning = f"offsets {after - lost} to {after - 1} were deleted before they were read"
    return [Unread("lost", lost, warning)] if lost else []


# -- system ------------------------------------------------------------------------------------------
CALL_S = 5.0
"""How long a run loop may wait for an answer."""


@dataclass
class KafkaSystem(RowSystem):
    """A system with one topic, as a stream of any name: the options say which one it is."""

    options: Options
    clock: Clock = field(default_factory=WallClock)

    def __post_init__(self) -> None:
        self._topics = Topics(self.options.settings, uncommitted=self.options.uncommitted, answer_s=CALL_S)

    @override
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.options, self._topics, self._columns(), self._group_commits)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> KafkaConsumer:
        """Records that can't be read as ``columns`` are bad, so there is nothing more to be had of them ``whole``."""
        options = self.options
        topic = self._topics.describe(options.topic)
        rows = self._rows(columns)
        client = open_consumer(options.settings, "headrace", uncommitted=options.uncommitted)
        by_time = options.end is not None and options.end.time_ms is not None
        wanted = Wanted(rows.wants("key"), by_time or rows.wants("timestamp"), rows.wants("headers"))
        fetching = Fetching(
            client,
            options.topic,
            wanted,
            skip_lost=options.lost == "skip",
            known=topic,
            topic_now=lambda: self._topics.describe(options.topic),
        )
        return KafkaConsumer(options, topic.partitions, self._topics, fetching, rows, self.clock)

    @override
    def target(self, stream: str) -> Target:
        raise UsageError(f"the topic {self.options.topic!r} is an input", hint="declare it as an output")

    def _rows(self, columns: Mapping[str, pl.DataType] | None) -> RecordRows:
        format, key_format = open_format(self.options.format), open_format(self.options.key_format)
        about = self.options.record_columns
        contents = format.columns() if columns is None else {n: t for n, t in columns.items() if n not in about}
        if not contents:  # the contents of these records are unknown, so they are only counted or shown unchanged
            format = open_format(FormatSpec("bytes"))
            contents = format.columns() or {}
        keys = []
        for name in (name for name, what in about.items() if what == "key"):
            dtype = key_dtype(key_format) if columns is None else columns.get(name)
            if dtype is not None:
                keys.append(KeyColumn(name, key_format, dtype))
        return RecordRows(format.decoder(contents), about, keys)

    def _columns(self) -> Columns | None:
        own = open_format(self.options.format).columns()
        about = columns_about(self.options.record_columns, key_dtype(open_format(self.options.key_format)))
        return None if own is None or len(about) < len(self.options.record_columns) else {**own, **about}

    def _group_commits(self, group: str) -> GroupCommits:
        return GroupCommits(self.options.topic, group, self._open_group, self.clock)

    def _open_group(self, group: str, answered: Callable[[KafkaError | None], None]) -> KafkaClient[Consumer]:
        return open_consumer(self.options.settings, group, committed=answered)


def open_kafka_system(name: str, options: Mapping[str, Any]) -> KafkaSystem:
    """The system of a ``SystemSpec``: ``topic``, ``brokers``, and optionally the other fields of ``Options``."""
    return KafkaSystem(Options.of(name, options))
