"""What a cluster knows of its topics: partitions, offsets, times, limits, and groups.

topics
    What a cluster knows of its topics: their partitions, and the offsets in these.

group commits
    Show an app's progress to Kafka's tools: its commits, as offsets of a consumer group.

    Nothing is read from there. The calls don't wait; what can't be committed is logged, and the next commit says more.

record times
    When records of Kafka were appended: reads one record, to have its time. Waits for a broker.

admin
    Describes a topic as a stream of rows.

topic settings
    The settings of a topic, as far as this user may see them.

topic limits
    What an output has to know of its topic: its partitions, and how large a record can be.

    Both may change while the app runs, and are looked at now and then. More partitions are taken in with the next
    version, as Kafka's own producers do. Keys then go to other partitions than before, so a warning says so.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.connectors.kafka.client import (
    ANSWER_S,
    AdminClient,
    ConfigResource,
    Consumer,
    IsolationLevel,
    KafkaClient,
    KafkaError,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    cannot_log_in,
    no_right_to_group,
    open_admin,
    open_consumer,
)
from headrace.connectors.kafka.settings import KafkaSettings, Options
from headrace.core.clock import Clock
from headrace.core.errors import (
    HeadraceError,
    StreamExistsError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnavailableError,
    UsageError,
)
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import Columns
from headrace.systems.base import Extent, StreamInfo, UnwatchedAdmin, check_within

# -- topics ------------------------------------------------------------------------------------------
LOOK_S = 0.2
_NEAR = 3
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class Topic:
    """How many partitions a topic has, and its id, which no other one gets; empty if brokers know none."""

    partitions: int
    id: str


class Topics:
    """The topics of a cluster. It connects when it is first used, and waits ``answer_s`` for each answer.

    Without ``uncommitted``, a partition ends where its oldest open transaction begins: nothing is read beyond it.
    All methods raise ``StreamNotFoundError`` for a missing topic, and ``UnavailableError`` if no broker answers.
    """

    def __init__(self, settings: KafkaSettings, *, uncommitted: bool = False, answer_s: float = ANSWER_S) -> None:
        self._settings = settings
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        self._answer_s = answer_s
        self._client: KafkaClient[AdminClient] | None = None

    @property
    def client(self) -> KafkaClient[AdminClient]:
        """The client."""
        if self._client is None:
            self._client = open_admin(self._settings)
        return self._client

    def names(self) -> list[str]:
        """The names of all topics that this user may see, sorted."""
        with self.client.translating("listing topics"):
            return sorted(self.client.raw.list_topics(timeout=self._answer_s).topics)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        return self.describe(topic).partitions

    def describe(self, topic: str) -> Topic:
        """What there is to know of a topic. The error for one that isn't there names others like it.

        A topic is never created by asking.
        """
        asked = TopicCollection([topic])
        futures = self.client.raw.describe_topics(asked, request_timeout=self._answer_s)
        try:
            found = self._answers(f"looking for topic {topic!r}", futures)[topic]
        except StreamNotFoundError as error:
            raise self._unknown(topic) from error
        id_ = str(found.topic_id)
        return Topic(len(found.partitions), "" if id_ == _NO_ID else id_)

    def create(self, new: NewTopic, what: str, hint: str) -> bool:
        """Create a topic; return False if another client was faster. ``hint`` helps if this user may not.

        ``what`` says in messages which topic this is.
        """
        try:
            with self.client.translating(f"creating topic {new.topic!r}{what}"):
                self.client.raw.create_topics([new], request_timeout=self._answer_s)[new.topic].result()
        except StreamExistsError:
            return False
        except HeadraceError as error:
            if not error.retry:
                error.hint = hint
            raise
        return True

    def oldest(self, topic: str, partitions: Iterable[int]) -> dict[int, Offset]:
        """The first offset of each of these partitions that is kept."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def upcoming(self, topic: str, partitions: Iterable[int]) -> dict[int, Offset]:
        """Where each of these partitions ends."""
        return self._offsets(topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def at(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, Offset | None]:
        """The offset of the first record of each partition with this timestamp or a later one; None if there's none."""
        found = self._offsets(topic, partitions, OffsetSpec.for_timestamp(max(0, time_ms)))
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def asked_upcoming(self, topic: str, partitions: Iterable[int]) -> dict[int, Future[Any]]:
        """Ask where each of these partitions ends, and don't wait. The results have an ``offset``."""
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        futures = self._list_offsets(asked)
        return {place.partition: future for place, future in futures.items()}

    def close(self) -> None:
        """Disconnect."""
        self._client = None

    def _offsets(self, topic: str, partitions: Iterable[int], spec: OffsetSpec) -> dict[int, Offset]:
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        if not asked:
            return {}
        until_s = time.monotonic() + self._answer_s
        while True:
            try:
                found = self._answers(f"looking for offsets of topic {topic!r}", self._list_offsets(asked))
                return {place.partition: answer.offset for place, answer in found.items()}
            except UnavailableError:  # a leader that has just been elected is unknown to some brokers for a moment
                if time.monotonic() > until_s:
                    raise
                self.client.raw.poll(LOOK_S)

    def _list_offsets(self, asked: dict[TopicPartition, OffsetSpec]) -> Mapping[Any, Future[Any]]:
        return self.client.raw.list_offsets(asked, isolation_level=self._isolation, request_timeout=self._answer_s)

    def _answers(self, doing: str, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """The answers. Raises at once if the login is refused: librdkafka would go on trying."""
        while wait(futures.values(), LOOK_S).not_done:
            with self.client.translating(doing):
                self.client.raw.poll(0)
            if problem := cannot_log_in(self.client, doing):
                raise problem
        return {key: self.client.answer(future, doing) for key, future in futures.items()}

    def _unknown(self, topic: str) -> StreamNotFoundError:
        names = [name for name in self.names() if not name.startswith("__")]
        near = get_close_matches(topic, names, n=_NEAR)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        elif names:
            hint = "create it, or check the name and the cluster: this user sees " + (
                f"{len(names)} others" if len(names) > _NEAR else ", ".join(map(repr, names))
            )
        else:
            hint = "create it, or check the cluster: this user sees no topics there"
        return StreamNotFoundError(f"there is no topic {topic!r} at {self._settings.brokers}", hint=hint)


# -- group commits -----------------------------------------------------------------------------------
EVERY_MS = 1000.0
CLOSE_S = 2.0
"""How long the last commit may take."""

_log = logger(__name__)


def group_of(reader: str) -> str:
    """The name of the group of a stage, ``app/stage``."""
    return f"headrace.{reader.replace('/', '.')}"


class GroupCommits:
    """The commits of one stage in one topic. One thread uses it."""

    def __init__(
        self,
        topic: str,
        group: str,
        open_client: Callable[[str, Callable[[KafkaError | None], None]], KafkaClient[Consumer]],
        clock: Clock,
    ) -> None:
        """``open_client`` opens a client of a group, which calls a function after each commit."""
        self._topic = topic
        self._group = group
        self._client = open_client(group, self._answered)
        self._clock = clock
        self._waiting: dict[int, Offset] = {}
        self._sent_ms = -EVERY_MS
        self._under_way = 0
        self._refused = False
        self._throttle = Throttle(_log)

    def note(self, partition: int, position: Offset) -> None:
        """Take in a commit, and send those that wait if it is time."""
        self._waiting[partition] = position
        self._poll(0)
        if not self._under_way and self._clock.monotonic_ms() - self._sent_ms >= EVERY_MS:
            self._send()

    def close(self) -> None:
        """Send what waits, and wait for the answer a little."""
        end_ms = self._clock.monotonic_ms() + CLOSE_S * 1000
        while (self._under_way or self._waiting) and not self._refused and self._clock.monotonic_ms() < end_ms:
            if not self._under_way:
                self._send()
            self._poll(0.05)
        if self._under_way:  # librdkafka would wait for the answer, up to a minute
            threading.Thread(target=self._client.raw.close, name=f"closing {self._group}", daemon=True).start()
        else:
            self._client.raw.close()

    def committed(self, partitions: int) -> Mapping[int, Offset]:
        """Return the group's committed offsets, whoever committed them."""
        places = [TopicPartition(self._topic, partition) for partition in range(partitions)]
        with self._client.translating(f"looking for offsets of group {self._group!r}"):
            found = self._client.raw.committed(places, CLOSE_S)
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def _poll(self, timeout_s: float) -> None:
        """Take in answers. Commits that find no group because there is no right to it get none: they wait for one."""
        message = self._client.raw.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None:
            self._refused = no_right_to_group(error)
            self._warn(error)

    def _send(self) -> None:
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in self._waiting.items()]
        self._waiting = {}
        self._sent_ms = self._clock.monotonic_ms()
        self._under_way += 1
        with self._client.translating(f"committing to group {self._group!r}"):
            self._client.raw.commit(offsets=places, asynchronous=True)

    def _answered(self, error: KafkaError | None) -> None:
        self._under_way = 0
        self._refused = False
        if error is not None:
            self._warn(error)

    def _warn(self, error: KafkaError) -> None:
        problem = self._client.problem(error, f"committing to group {self._group!r}")
        self._throttle.warning("positions can't be shown to Kafka's tools", error=problem.message)


# -- record times ------------------------------------------------------------------------------------
_USUAL = {
    "fetch.wait.max.ms": "10",
    "fetch.error.backoff.ms": "50",
    "fetch.queue.backoff.ms": "1",
    "queued.max.messages.kbytes": "1024",
}


class RecordTimes:
    """Times of records. Threads may share it. It connects when it is first used."""

    def __init__(self, settings: KafkaSettings, *, uncommitted: bool) -> None:
        self._settings = settings.tuned(_USUAL)
        self._uncommitted = uncommitted
        self._lock = threading.Lock()
        self._consumer: KafkaClient[Consumer] | None = None

    def read(self, topic: str, partition: int, offset: Offset) -> int | None:
        """The time of the first record at an offset or later; None if there is none, or if the offset was trimmed."""
        with self._lock:
            if self._consumer is None:
                self._consumer = open_consumer(self._settings, "headrace", uncommitted=self._uncommitted)
            consumer = self._consumer
            with consumer.translating(f"reading topic {topic!r}"):
                consumer.raw.assign([TopicPartition(topic, partition, offset)])
                try:
                    return _read(consumer, topic)
                except TrimmedOffsetError:
                    return None
                finally:
                    consumer.raw.unassign()

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.raw.close()
            self._consumer = None


def _read(consumer: KafkaClient[Consumer], topic: str) -> int | None:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        for message, error in zip(*consumer.received(0.1), strict=True):
            if error is None:
                found = message.timestamp()[1]
                return found if found >= 0 else None
            if error.code() == KafkaError._PARTITION_EOF:
                return None
            problem = consumer.problem(error, f"reading topic {topic!r}")
            if not problem.retry:
                raise problem
    raise UnavailableError(f"the topic {topic!r} can't be read", hint="check the broker; Headrace tries again")


# -- admin -------------------------------------------------------------------------------------------
class KafkaAdmin(UnwatchedAdmin):
    """The one topic is a stream of any name: the options say which one it is.

    ``columns`` are those that the formats say by themselves, if they do.
    """

    def __init__(
        self,
        options: Options,
        topics: Topics,
        columns: Columns | None,
        group_commits: Callable[[str], GroupCommits],
    ) -> None:
        super().__init__()
        self._options = options
        self._topics = topics
        self._columns = columns
        self._group_commits = group_commits
        self._times = RecordTimes(options.settings, uncommitted=options.uncommitted)
        self._groups: dict[str, GroupCommits] = {}
        self._throttle = Throttle(_log)

    @property
    def _topic(self) -> str:
        return self._options.topic

    @override
    def list(self) -> builtins.list[str]:
        return self._topics.names()

    @override
    def describe(self, stream: str) -> StreamInfo:
        """Raises ``StreamNotFoundError``, which names topics with similar names."""
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
            raise UsageError(
                f"end= of topic {self._topic!r} has no offset for partition {missing}",
                hint="name an offset for each of the topic's partitions, or a time",
            )
        bounded = end is not None
        return StreamInfo(stream, partitions, columns, bounded=bounded, until_offset=True, identity=topic.id)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Raises ``UsageError``: an input is created by its writers."""
        raise self._refused("is an input, so Headrace doesn't create it", "use kafka-topics.sh --create")

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise self._refused("has no columns; its records do", "add the column to the input's schema")

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise self._refused(
            "is an input, so Headrace doesn't add partitions to it", "use kafka-topics.sh --alter --partitions"
        )

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Each partition up to its oldest open transaction, unless uncommitted records are read, too."""
        partitions = range(self._topics.partitions(self._topic))
        low = self._topics.oldest(self._topic, partitions)
        high = self._topics.upcoming(self._topic, partitions)
        return [Extent(low[p], max(low[p], high[p]), trimmed=low[p] > 0) for p in partitions]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        """By the timestamps of records, which are their writers' or the broker's, as the topic is set up."""
        self._check_partition(ssp)
        found = self._topics.at(self._topic, [ssp.partition], time_ms)[ssp.partition]
        return self._topics.upcoming(self._topic, [ssp.partition])[ssp.partition] if found is None else found

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Reads the record."""
        return self._times.read(self._topic, ssp.partition, offset)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """An offset in a gap is as good as the next one after it."""
        extents = self.extents(ssp.stream.name)
        if not 0 <= ssp.partition < len(extents):
            raise StreamNotFoundError(f"{ssp}: the topic has partitions 0 to {len(extents) - 1}")
        check_within(ssp, offset, extents[ssp.partition])

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
            self._groups[group] = self._group_commits(group)
        self._groups[group].note(ssp.partition, position)

    @override
    def close(self) -> None:
        groups, self._groups = self._groups, {}
        for commits in groups.values():
            commits.close()
        self._topics.close()
        self._times.close()

    def _check_partition(self, ssp: SSP) -> None:
        partitions = self._topics.partitions(self._topic)
        if not 0 <= ssp.partition < partitions:
            raise StreamNotFoundError(f"{ssp}: the topic has partitions 0 to {partitions - 1}")

    def _refused(self, why: str, hint: str) -> UsageError:
        return UsageError(f"the topic {self._topic!r} {why}", hint=hint)


# -- topic settings ----------------------------------------------------------------------------------
_ANSWER_S = 3.0


def topic_settings(topics: Topics, topic: str) -> dict[str, str]:
    """Return the settings by name; none if this user isn't allowed to see them."""
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = topics.client
    try:
        with client.translating(f"looking for the settings of topic {topic!r}"):
            found = client.raw.describe_configs([asked], request_timeout=_ANSWER_S)[asked].result()
    except HeadraceError as error:
        if error.retry:
            raise
        _log.debug("can't read the settings of a topic", topic=topic, why=error.message)
        return {}
    return {name: entry.value for name, entry in found.items() if entry.value is not None}


# -- topic limits ------------------------------------------------------------------------------------
RECORD_BYTES = 1_048_588
"""What a topic takes unless its settings or the broker's say otherwise."""
LIMITS_LOOK_S = 30.0


class TopicLimits:
    """The partitions and the limit of one topic. The threads of several writers use it."""

    def __init__(self, topic: str, topics: Topics) -> None:
        self.topic = topic
        self.partitions = 0
        self.record_bytes = RECORD_BYTES
        self._topics = topics
        self._lock = threading.Lock()
        self._next_s = float("-inf")

    @property
    def known(self) -> bool:
        """Whether the topic was looked at."""
        return self.partitions > 0

    def look(self) -> None:
        """Look at the topic, unless that was done a moment ago. Raises ``StreamNotFoundError`` if it isn't there."""
        with self._lock:
            if time.monotonic() < self._next_s:
                return
            try:
                found = self._topics.partitions(self.topic)
                settings = topic_settings(self._topics, self.topic)
            except StreamNotFoundError as error:
                error.hint = f"{error.hint}; committed rows wait until the topic exists"
                raise
            except UnavailableError as error:
                if not self.known:
                    raise
                _log.debug("can't find out whether a topic has changed", topic=self.topic, why=error.message)
            else:
                if self.known and found != self.partitions:
                    _log.warning(
                        "the topic's partition count has changed: from now on, keys go to other partitions",
                        topic=self.topic,
                        before=self.partitions,
                        now=found,
                    )
                self.partitions = found
                self.record_bytes = int(settings.get("max.message.bytes", RECORD_BYTES))
            self._next_s = time.monotonic() + LIMITS_LOOK_S
