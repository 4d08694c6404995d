"""Management of the streams of a log in Kafka: registry, groups and ends. Threads may share it, but for ``unread``.

A stream ends with a mark in each partition, a record without a value, unlike any frame. A mark may be there twice:
which one counts is recorded. Answers of ``Metadata``, the registry, are as new as the question: the topic's end is
asked for, and read up to. One lock is held while a broker is waited for.

A run loop reports and asks for positions of readers many times a second, and doesn't wait: of each group one commit is
under way at a time, and questions are answered from the brokers' last answers.

A stream is in the registry before its topic is there, so a topic that exists without a stream belongs to another
program, and is left alone. Partitions are counted by the topic.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka.client import (
    ANSWER_S,
    Consumer,
    KafkaClient,
    KafkaError,
    Message,
    NewTopic,
    Producer,
    TopicPartition,
    open_consumer,
    open_plain_producer,
)
from headrace.connectors.kafka.settings import (
    LogOptions,
    Registry,
    StreamEntry,
    StreamOrder,
    addition,
    check_settings,
    creation,
    decode_order,
    encode_order,
)
from headrace.connectors.kafka.topics import OLDEST, UPCOMING, Asked, Groups, RecordTimes, Topics
from headrace.core.errors import (
    CorruptLogError,
    DeploymentError,
    HeadraceError,
    IndeterminateWriteError,
    StreamNotFoundError,
    UnavailableError,
    UsageError,
)
from headrace.core.ids import SSP, Offset, check_id
from headrace.core.log import logger
from headrace.systems.base import Admin, Extent, StreamInfo, check_within
from headrace.systems.shape import new_columns, require_same_shape, wanted_shape


def append(
    producer: KafkaClient[Producer], again: str, topic: str, partitions: int, value: bytes | None, key: bytes | None
) -> tuple[Offset, ...]:
    """Append a record to each partition; return where they are. ``again`` is what to do if no broker answers."""
    doing = f"sealing topic {topic!r}" if value is None else f"writing to topic {topic!r}"
    offsets: dict[int, Offset] = {}
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None:
            errors.append(error)
        elif partition is not None and offset is not None and offset >= 0:
            offsets[partition] = offset

    with producer.translating(doing):
        for partition in range(partitions):
            producer.raw.produce(topic, value, key, partition, on_delivery=delivered)
        producer.raw.flush(ANSWER_S + 1)
    if errors:
        raise producer.problem(errors[0], doing)
    if len(offsets) < partitions:
        raise IndeterminateWriteError(f"{doing}: no broker answered", hint=f"{again}: this is safe to repeat")
    return tuple(offsets[partition] for partition in range(partitions))


def mark_ends(options: LogOptions, stream: str, partitions: int) -> tuple[Offset, ...]:
    producer, key = open_plain_producer(options.settings), b"headrace-end"  # the key is for people
    return append(producer, "seal the stream again", options.topic(stream), partitions, None, key)


_USUAL = {"fetch.wait.max.ms": "100", "fetch.error.backoff.ms": "50", "queued.max.messages.kbytes": "4096"}


def create_topic(topics: Topics, options: LogOptions, topic: str, partitions: int) -> None:
    replication = -1 if options.replication is None else options.replication
    topics.create(NewTopic(topic, partitions, replication, config=options.topic_settings()))
    topics.await_topic(topic)


class Metadata:
    """The streams of a log, and a way to change them."""

    def __init__(self, options: LogOptions, topics: Topics) -> None:
        self._options = options
        self._topics = topics
        self._topic = options.registry
        self._lock = threading.Lock()
        self._registry = Registry()
        self._consumer: KafkaClient[Consumer] | None = None
        self._producer: KafkaClient[Producer] | None = None
        self._position: Offset = 0

    def refresh(self) -> Registry:
        with self._lock:
            self._read()
            return self._registry

    def order(self, order: StreamOrder) -> StreamEntry:
        with self._lock:
            if self._consumer is None:
                if self._topics.find(self._topic) is None:
                    create_topic(self._topics, self._options, self._topic, 1)
                check_settings(self._topic, self._topics.settings(self._topic))
                self._open()
            producer, self._producer = self._producer or open_plain_producer(self._options.settings), None
            (written,) = append(producer, "run the command again", self._topic, 1, encode_order(order), None)
            self._producer = producer  # after some errors it takes nothing more
            self._read(written + 1)
            return self._registry.require(order.stream)

    # -- the topic; the lock is held ---------------------------------------------------------------------

    def _open(self) -> KafkaClient[Consumer]:
        found = open_consumer(self._options.settings.tuned(_USUAL), "headrace", uncommitted=True)
        found.raw.assign([TopicPartition(self._topic, 0, self._position)])
        self._consumer = found
        return found

    def _read(self, end: Offset | None = None) -> None:
        if self._consumer is None:
            if self._topics.find(self._topic) is None:
                return  # nothing was ever ordered
            self._open()
        consumer = self._consumer
        assert consumer is not None
        if end is None:
            end = self._topics.upcoming(self._topic, [0])[0]
            if end < self._position:
                raise StreamNotFoundError(
                    f"the topic {self._topic!r} ends at {end}, but was read up to {self._position}: it was deleted or "
                    "replaced, and the list of streams is lost with it",
                    hint="restore the topic; to start over without its streams, use another prefix",
                )
        until = time.monotonic() + ANSWER_S
        while self._position < end:
            if time.monotonic() > until:
                said = f"the topic {self._topic!r} can't be read beyond offset {self._position} of {end}"
                raise UnavailableError(said, hint="check the broker; Headrace tries again")
            for message, error in zip(*consumer.received(0.1, 1000), strict=True):
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


_OLD_S = 0.1
_GUESS = 4096.0  # how large a record is taken to be before one was seen
_WEIGHT = 0.05
_log = logger(__name__)


class Sizes:
    """How large the records of each stream are, about: what this process has written and read of late."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def seen(self, stream: str, records: int, size: int) -> None:
        if records:
            mean = size / records
            self._means[stream] = mean + (self._means.get(stream, mean) - mean) * (1 - _WEIGHT) ** records

    def of(self, stream: str) -> float:
        return self._means.get(stream, _GUESS)


@dataclass(slots=True)
class _Distance:
    asked_s: float = float("-inf")
    oldest: Asked = field(default_factory=dict)
    upcoming: Asked = field(default_factory=dict)
    committed: Future[dict[int, Offset]] | None = None
    unread: list[Offset] = field(default_factory=list)


class KafkaLogAdmin(Admin):
    """The admin of a log."""

    def __init__(self, options: LogOptions, topics: Topics, metadata: Metadata, sizes: Sizes) -> None:
        self._options = options
        self._topics = topics
        self._metadata = metadata
        self._sizes = sizes
        self._groups = Groups(options.settings)
        self._watched: dict[tuple[str, str], _Distance] = {}
        self._partitions: dict[str, int] = {}
        """Of streams whose readers are watched. An app that writes a stream doesn't add partitions to it."""
        self._times = RecordTimes(options.settings, uncommitted=True)

    @override
    def list(self) -> builtins.list[str]:
        return sorted(self._metadata.refresh().entries)

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        topic = self._options.topic(stream)
        entry = self._metadata.refresh().entries.get(stream)
        partitions = None if entry is None else self._topics.find(topic)
        return None if entry is None or partitions is None else replace(entry.info, partitions=partitions)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        topic = self._options.topic(stream)
        wanted = wanted_shape(stream, partitions, columns, key)
        entry = self._metadata.refresh().entries.get(stream)
        if entry is None:
            entry = self._new(topic, wanted)
        found = self._topics.find(topic)
        if found is None:
            require_same_shape(entry.info, wanted)
            create_topic(self._topics, self._options, topic, entry.info.partitions)
            found = self._topics.find(topic)
        check_settings(topic, self._topics.settings(topic))
        return require_same_shape(replace(entry.info, partitions=found or entry.info.partitions), wanted)

    def _new(self, topic: str, wanted: StreamInfo) -> StreamEntry:
        if self._topics.find(topic) is not None:
            found = self._metadata.refresh().entries.get(wanted.name)
            if found is None:
                said = f"the topic {topic!r} exists already, and isn't one of Headrace's streams"
                raise DeploymentError(said, hint="use another name or prefix, or delete the topic")
            return found
        return self._metadata.order(creation(wanted))

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        entry, partitions = self._require(stream)
        if more := new_columns(entry.info, columns):
            entry = self._metadata.order(addition(stream, more))
            new_columns(entry.info, columns)  # another one may have added them with other types
        return replace(entry.info, partitions=partitions)

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        wanted_shape(stream, max(partitions, 1), None)
        entry, found = self._require(stream)
        if partitions > found:
            entry.require_open()
            self._topics.grow(self._options.topic(stream), partitions)
            entry, found = self._require(stream)
        return replace(entry.info, partitions=found)

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        entry, partitions = self._require(stream)
        low, high = self._topics.extents(self._options.topic(stream), partitions)
        sealed = entry.ends is not None
        ends = {number: entry.end(number) or 0 for number in range(partitions)} if sealed else high
        return [Extent(min(low[n], ends[n]), ends[n], sealed, trimmed=low[n] > 0) for n in range(partitions)]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        extent = self.extent(ssp)
        found = self._topics.at(self._options.topic(ssp.stream.name), ssp.partition, time_ms)
        return extent.upcoming if found is None else max(extent.oldest, min(found, extent.upcoming))

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        extent = self.extent(ssp)
        if offset >= extent.upcoming:
            return None
        return self._times.read(self._options.topic(ssp.stream.name), ssp.partition, max(offset, extent.oldest))

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        check_within(ssp, offset, self.extent(ssp))

    @override
    def seal(self, stream: str) -> None:
        """End the stream: first forbid writes, then write a mark to each partition, then record the ends.

        So no writer that has written after a mark continues. Without recorded ends, readers wait at a mark until
        another call completes it.
        """
        entry, partitions = self._require(stream)
        if entry.ends is not None:
            return
        if not entry.sealing:
            self._metadata.order(StreamOrder("sealing", stream))
        self._metadata.order(StreamOrder("sealed", stream, ends=mark_ends(self._options, stream, partitions)))

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        extent = self.extent(ssp)
        if before > extent.upcoming:
            raise UsageError(f"{ssp}: can't trim before {before}: the end is {extent.upcoming}")
        if before > extent.oldest:
            self._topics.delete_before(self._options.topic(ssp.stream.name), ssp.partition, before)

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        self._groups.report(self._group(group), self._options.topic(ssp.stream.name), ssp.partition, position)

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        _, partitions = self._require(stream)
        return self._groups.committed(self._group(group), self._options.topic(stream), partitions).result()

    @override
    def close(self) -> None:
        """Waits until positions have been committed that were reported, for some seconds at most."""
        self._groups.close()
        self._times.close()

    @override
    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """Never waits: it returns the last answers, and nothing before the first one."""
        topic = self._options.topic(stream)
        partitions = self._partitions.get(stream)
        if partitions is None:
            partitions = self._partitions[stream] = self._require(stream)[1]
        group = self._group(group)
        one = self._watched.setdefault((topic, group), _Distance())
        answers = (one.committed, *one.oldest.values(), *one.upcoming.values())
        if one.committed is not None and all(answer is not None and answer.done() for answer in answers):
            try:
                begins, ends = (self._topics.answered(topic, asked) for asked in (one.oldest, one.upcoming))
                read = one.committed.result()
            except HeadraceError as error:
                _log.debug("can't find out how far readers are behind", topic=topic, error=error.message)
            else:
                one.unread = [ends[number] - read.get(number, begins[number]) for number in range(len(ends))]
            one.committed = None
        now = time.monotonic()
        if one.committed is None and now - one.asked_s > _OLD_S:
            one.asked_s = now
            one.oldest, one.upcoming = (self._topics.ask(topic, range(partitions), spec) for spec in (OLDEST, UPCOMING))
            one.committed = self._groups.committed(group, topic, partitions)
        size = self._sizes.of(stream)
        return [int(records * size) for records in one.unread]

    @override
    def bytes_per_offset(self, stream: str) -> float:
        return self._sizes.of(stream)

    def _group(self, group: str) -> str:
        return f"{self._options.prefix}{check_id('group', group)}"

    def _require(self, stream: str) -> tuple[StreamEntry, int]:
        entry = self._metadata.refresh().require(check_id("stream", stream))
        partitions = self._topics.find(self._options.topic(stream))
        if partitions is None:
            raise self._gone(stream)
        return entry, partitions

    def _gone(self, stream: str) -> HeadraceError:
        return StreamNotFoundError(
            f"stream {stream!r} has lost its topic {self._options.topic(stream)!r}: the topic is missing or incomplete",
            hint="the topic was probably deleted: restore it, or create the stream again without its former records",
        )
