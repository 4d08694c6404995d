"""A topic of others as a row system: fetched in a thread of its own, read as rows, and described.

Offsets are Kafka's: transactions and compaction leave gaps. The run loop's thread uses ``KafkaConsumer``; the thread of
``fetching`` calls ``RecordSource``.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka.client import Consumer, KafkaClient, open_consumer
from headrace.connectors.kafka.fetching import FetchedRecords, FetchSource, FetchThread, PartitionFeed, WantedFields
from headrace.connectors.kafka.rows import KeyColumn, RecordRows, columns_about
from headrace.connectors.kafka.settings import BYTES, TopicOptions, key_dtype
from headrace.connectors.kafka.topics import Asked, GroupCommits, RecordTimes, Topic, Topics, group_of
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import DeploymentError, HeadraceError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.files import readable
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import Columns
from headrace.rows.formats import open_format
from headrace.systems.base import (
    BadRecord,
    Edge,
    Ended,
    Extent,
    Polled,
    Position,
    Reading,
    RegisteringConsumer,
    Rows,
    RowSystem,
    StreamInfo,
    Target,
    Unread,
    UnwatchedAdmin,
    check_within,
)

BUFFER_BYTES = 16 << 20  # what waits in all feeds together; librdkafka has as much again
FEED_BYTES_MIN = 1 << 20
LOOK_S = 30.0  # how often it checks that the topic is unchanged
ANSWER_S = 5.0
_log = logger(__name__)


class RecordSource(FetchSource):
    """The records of one topic, which is ``known``; now and then it looks whether it is still the same."""

    at_once = 1000  # more at once are slower: their objects don't stay in the processor's caches
    idle_s = 0.1
    wakes_at_end = True

    def __init__(self, options: TopicOptions, wanted: WantedFields, topics: Topics, known: Topic) -> None:
        self.doing = f"reading topic {options.topic!r}"
        self.wanted = wanted
        self._topic = options.topic
        self._skip_lost = options.lost == "skip"
        self._topics = topics
        self._known = known
        self._looked = time.monotonic()

    @override
    def room(self, feeds: int) -> int:
        return max(FEED_BYTES_MIN, BUFFER_BYTES // feeds)

    @override
    def missing(self, feed: PartitionFeed, client: KafkaClient[Consumer]) -> FetchedRecords:
        with client.translating(f"looking for offsets of topic {self._topic!r}"):
            low, high = client.raw.get_watermark_offsets(feed.place, ANSWER_S)
        if not feed.fetched_to < low:
            raise _beyond_the_end(self._topic, feed.partition, feed.fetched_to, high)
        if not self._skip_lost:
            raise _lost_records(self._topic, feed.partition, feed.fetched_to, low)
        said = "records were deleted before they were read"
        _log.warning(said, topic=self._topic, partition=feed.partition, first=low)
        return FetchedRecords([], [], low, lost=low - feed.fetched_to)

    @override
    def check(self) -> None:
        """Raise if the topic was deleted, replaced or repartitioned, which clients don't report for idle topics."""
        known = self._known
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            found = self._topics.describe(self._topic)
        except StreamNotFoundError:
            raise
        except HeadraceError as error:
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


def _lost_records(topic: str, partition: int, position: Offset, low: Offset) -> TrimmedOffsetError:
    return TrimmedOffsetError(
        f"partition {partition} of topic {topic!r}: offsets {position} to {low - 1} were deleted before they "
        f"were read, up to {low - position} records",
        hint='keep the topic\'s records for longer (retention.ms); to continue without the lost ones, set lost="skip" '
        "in hr.io.kafka(...), or run headrace startpoint set ... --oldest",
    )


def _beyond_the_end(topic: str, partition: int, position: Offset, high: Offset) -> StreamNotFoundError:
    return StreamNotFoundError(
        f"partition {partition} of topic {topic!r} ends at offset {high}, but the app has read up to {position}: "
        "this is another topic of that name, or it has lost its last records",
        hint="restore the old topic and start the app again; to read this topic, start the app under another name",
    )


ASK_AGAIN_MS = 10_000.0
END_MS = 500.0  # how often brokers are asked where partitions end that aren't read to their ends


@dataclass(slots=True, kw_only=True)
class _RecordReading(Reading):
    end: Offset | None = None  # where the partition ends for the app; None: it doesn't, or only its time is known
    feed: PartitionFeed | None = None  # None when nothing more is to be fetched
    held: FetchedRecords | None = None  # what was taken of the feed, and can't be decoded yet
    lost: int = 0
    ask_ms: float = 0.0  # when the broker may be asked again where the partition ends


@dataclass(eq=False)
class KafkaConsumer(RegisteringConsumer[_RecordReading]):
    """Reads the topic that the options name, as a stream of any name. ``Edge.OLDEST`` is where the options say.

    A bounded partition ends at an offset; or by time, at the first record that has the time or a later one, or, if
    there is none, where the partition ends when the clock has come to that time.
    """

    options: TopicOptions
    partitions: int
    topics: Topics
    fetching: FetchThread
    maker: RecordRows
    clock: Clock

    def __post_init__(self) -> None:
        super().__init__()
        self._end_ms = None if self.options.end is None else self.options.end.time_ms
        self._throttle = Throttle(_log)
        self._ends: dict[int, Offset] = {}  # where partitions ended when brokers said so last
        self._asking: Asked = {}
        self._asked_ms = float("-inf")

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        if not 0 <= ssp.partition < self.partitions:
            topic = self.options.topic
            raise StreamNotFoundError(f"{ssp}: the topic {topic!r} has partitions 0 to {self.partitions - 1}")
        self.unregister(ssp)
        end = None if self.options.end is None else self.options.end.offsets.get(ssp.partition)
        reading = _RecordReading(ssp, end=end)
        reading.position = self._begins(reading, position)
        if end is None or reading.position < end:
            reading.feed = self.fetching.begin(self.options.topic, ssp.partition, reading.position)
        else:
            reading.position = max(reading.position, end)
            self.fetching.signal()
        self._readings[ssp] = reading

    def _begins(self, reading: _RecordReading, position: Position) -> Offset:
        topic, partition, start = self.options.topic, reading.ssp.partition, self.options.start
        low = self.topics.oldest(topic, [partition])[partition]
        if position is Edge.OLDEST and start == "oldest":
            return low
        if position is Edge.OLDEST and isinstance(start, int):
            found = self.topics.at(topic, partition, start)
            if found is not None:
                return found
        high = self.topics.upcoming(topic, [partition])[partition]
        if isinstance(position, Edge):
            return high
        if position > high:
            raise _beyond_the_end(topic, partition, position, high)
        if position < low:
            if self.options.lost == "stop":
                raise _lost_records(topic, partition, position, low)
            reading.lost = low - position
            self.fetching.signal()
        return max(position, low)

    @override
    def _release(self, reading: _RecordReading) -> None:
        if reading.feed is not None:
            self.fetching.end(reading.feed)
            reading.feed = None

    @override
    def close(self) -> None:
        super().close()
        self.fetching.close()

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        asked = self._asked(ssps)
        self.fetching.look()
        return [polled for reading in asked for polled in self._hand_out(reading, max_bytes)]

    def _hand_out(self, reading: _RecordReading, max_bytes: int) -> Iterator[Polled]:
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

    def _take(self, reading: _RecordReading, max_bytes: int) -> FetchedRecords | None:
        feed = reading.feed
        if reading.held is not None or feed is None:
            return reading.held
        fetched = self.fetching.take(feed, max_bytes)
        if fetched is None:
            return None
        time_ms = self._end_ms
        if time_ms is not None and (found := fetched.first_at(time_ms)) is not None:
            reading.end = found if reading.end is None else min(found, reading.end)
        return fetched if reading.end is None else fetched.before(reading.end)

    def _is_over(self, reading: _RecordReading) -> bool:
        if reading.end is None and self._end_ms is not None and self.clock.now_ms() >= self._end_ms:
            reading.end = self._present_end(reading)
        return reading.end is not None and reading.position >= reading.end

    def _present_end(self, reading: _RecordReading) -> Offset | None:
        """None if no broker answers, or if there may be unread records, of which one may be of the end's time."""
        feed, now_ms = reading.feed, self.clock.monotonic_ms()
        if feed is None or now_ms < reading.ask_ms:
            return None
        with self.fetching.lock:
            if feed.waiting or not feed.at_end:
                return None
        try:
            return self.topics.upcoming(self.options.topic, [feed.partition])[feed.partition]
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.ask_ms = now_ms + ASK_AGAIN_MS
            return None

    def _rows(self, reading: _RecordReading, fetched: FetchedRecords) -> Rows | None:
        ssp, first = reading.ssp, reading.position
        if not len(fetched):
            reading.position = fetched.next
            return Rows(ssp, pl.DataFrame(), first, fetched.next, unread=_unread(fetched.lost, fetched.next))
        try:
            decoded = self.maker.decode(ssp.partition, fetched)
        except HeadraceError as error:
            if not error.retry:
                raise
            reading.held = fetched
            self._throttle.warning("records can't be decoded yet; waiting", ssp=str(ssp), error=error.message)
            self.fetching.signal()
            return None
        reading.held = None
        place = f"{self.options.topic}, partition {ssp.partition}"
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
        with self.fetching.lock:
            if feed.at_end and not feed.waiting and reading.held is None:
                return False  # what is left before the end are marks of transactions, and what was compacted
        readable(self.fileno(), ms)
        return True

    @override
    def fileno(self) -> int | None:
        return self.fetching.fileno()

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Offsets to the end, so gaps count. Brokers are asked now and then: the answer may be a second old."""
        reading = self._reading(ssp)
        if reading.ended:
            return 0
        begun = reading.position if since is None else min(since, reading.position)
        end = self._end_of(reading)
        return None if end is None else max(0, end - begun)

    def _end_of(self, reading: _RecordReading) -> Offset | None:
        feed = reading.feed
        if feed is None:
            return reading.position
        with self.fetching.lock:
            known = feed.end if feed.at_end else None
        if known is None:
            self._look_for_ends()
            known = self._ends.get(feed.partition)
        return known if known is None or reading.end is None else min(known, reading.end)

    def _look_for_ends(self) -> None:
        if self._asking and all(answer.done() for answer in self._asking.values()):
            answers, self._asking = self._asking, {}
            self._ends |= {n: answer.result().offset for n, answer in answers.items() if answer.exception() is None}
        now_ms = self.clock.monotonic_ms()
        if not self._asking and now_ms - self._asked_ms >= END_MS:
            self._asked_ms = now_ms
            partitions = [one.feed.partition for one in self._readings.values() if one.feed is not None]
            self._asking = self.topics.ask(self.options.topic, partitions)


def _unread(lost: int, after: Offset) -> list[Unread]:
    warning = f"offsets {after - lost} to {after - 1} were deleted before they were read"
    return [Unread("lost", lost, warning)] if lost else []


class KafkaAdmin(UnwatchedAdmin):
    """The one topic is a stream of any name. ``columns`` are those that the formats say by themselves, if they do."""

    def __init__(self, options: TopicOptions, topics: Topics, columns: Columns | None, clock: Clock) -> None:
        super().__init__()
        self._options = options
        self._topic = options.topic
        self._topics = topics
        self._columns = columns
        self._clock = clock
        self._times = RecordTimes(options.settings, uncommitted=options.uncommitted)
        self._groups: dict[str, GroupCommits] = {}

    @override
    def list(self) -> builtins.list[str]:
        return self._topics.names()

    @override
    def describe(self, stream: str) -> StreamInfo:
        columns = None if self._columns is None else dict(self._columns)
        end = self._options.end
        topic = self._topics.describe(self._topic)
        partitions = topic.partitions
        if end is not None and (strange := sorted(p for p in end.offsets if p >= partitions)):
            raise UsageError(
                f"end= of topic {self._topic!r} names partition {strange[0]}, but the topic has partitions 0 to "
                f"{partitions - 1}",
                hint="name an offset for each of the topic's partitions",
            )
        if end is not None and end.time_ms is None and len(end.offsets) < partitions:
            missing = min(set(range(partitions)) - set(end.offsets))
            hint = "name an offset for each of the topic's partitions, or a time"
            raise UsageError(f"end= of topic {self._topic!r} has no offset for partition {missing}", hint=hint)
        return StreamInfo(stream, partitions, columns, bounded=end is not None, until_offset=True, identity=topic.id)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        raise self._refused("is an input, so Headrace doesn't create it", "use kafka-topics.sh --create")

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise self._refused("has no columns; its records do", "add the column to the input's schema")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        hint = "use kafka-topics.sh --alter --partitions"
        raise self._refused("is an input, so Headrace doesn't add partitions to it", hint)

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Each partition up to its oldest open transaction, unless uncommitted records are read, too."""
        low, high = self._topics.extents(self._topic, self._topics.describe(self._topic).partitions)
        return [Extent(low[p], max(low[p], high[p]), trimmed=low[p] > 0) for p in sorted(low)]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """By the timestamps of records, which are their writers' or the broker's, as the topic is set up."""
        partitions = self._topics.describe(self._topic).partitions
        if not 0 <= ssp.partition < partitions:
            raise StreamNotFoundError(f"{ssp}: the topic has partitions 0 to {partitions - 1}")
        found = self._topics.at(self._topic, ssp.partition, time_ms)
        return self._topics.upcoming(self._topic, [ssp.partition])[ssp.partition] if found is None else found

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        return self._times.read(self._topic, ssp.partition, offset)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """An offset in a gap is as good as the next one after it."""
        check_within(ssp, offset, self.extent(ssp))

    @override
    def seal(self, stream: str) -> None:
        raise self._refused("can't be sealed", "Kafka's topics have no end; end= of hr.io.kafka sets where to stop")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        raise self._refused("is an input, so Headrace doesn't delete its records", "set the topic's retention")

    @override
    def report_commit(self, ssp: SSP, reader: str, position: Offset) -> None:
        """As an offset of the consumer group ``headrace.<app>.<stage>``."""
        group = group_of(reader)
        if group not in self._groups:
            self._groups[group] = GroupCommits(self._options.settings, self._topic, group, self._clock)
        self._groups[group].note(ssp.partition, position)

    @override
    def close(self) -> None:
        groups, self._groups = self._groups, {}
        for commits in groups.values():
            commits.close()
        self._topics.close()
        self._times.close()

    def _refused(self, why: str, hint: str) -> UsageError:
        return UsageError(f"the topic {self._topic!r} {why}", hint=hint)


CALL_S = 5.0  # how long a run loop may wait for an answer


@dataclass
class KafkaSystem(RowSystem):
    """A system with one topic, as a stream of any name."""

    options: TopicOptions
    clock: Clock = field(default_factory=WallClock)

    def __post_init__(self) -> None:
        self._topics = Topics(self.options.settings, uncommitted=self.options.uncommitted, answer_s=CALL_S)

    @override
    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self.options, self._topics, self._columns(), self.clock)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> KafkaConsumer:
        """Records that can't be read as ``columns`` are bad, so there is nothing more to be had of them ``whole``."""
        options = self.options
        topic = self._topics.describe(options.topic)
        rows = self._rows(columns)
        client = open_consumer(options.settings, "headrace", uncommitted=options.uncommitted)
        by_time = options.end is not None and options.end.time_ms is not None
        wanted = WantedFields(rows.wants("key"), by_time or rows.wants("timestamp"), rows.wants("headers"))
        fetching = FetchThread(client, f"kafka-{options.topic}", RecordSource(options, wanted, self._topics, topic))
        return KafkaConsumer(options, topic.partitions, self._topics, fetching, rows, self.clock)

    @override
    def target(self, stream: str) -> Target:
        raise UsageError(f"the topic {self.options.topic!r} is an input", hint="declare it as an output")

    def _rows(self, columns: Mapping[str, pl.DataType] | None) -> RecordRows:
        format, key_format = open_format(self.options.format), open_format(self.options.key_format)
        about = self.options.record_columns
        contents = format.columns() if columns is None else {n: t for n, t in columns.items() if n not in about}
        if not contents:  # the contents of these records are unknown, so they are only counted or shown unchanged
            format = open_format(BYTES)
            contents = format.columns() or {}
        of_keys = [name for name, what in about.items() if what == "key"]
        types = {name: key_dtype(key_format) if columns is None else columns.get(name) for name in of_keys}
        keys = [KeyColumn(name, key_format, dtype) for name, dtype in types.items() if dtype is not None]
        return RecordRows(format.decoder(contents), about, keys)

    def _columns(self) -> Columns | None:
        own = open_format(self.options.format).columns()
        about = columns_about(self.options.record_columns, key_dtype(open_format(self.options.key_format)))
        return None if own is None or len(about) < len(self.options.record_columns) else {**own, **about}
