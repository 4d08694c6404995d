"""What a cluster knows: topics, their offsets and settings, times of records, and positions of groups.

All calls of ``Topics`` but ``ask`` wait for answers. A broker that doesn't answer is an ``UnavailableError``. Threads
may share ``Topics``, ``RecordTimes`` and ``Groups``.

``GroupCommits`` shows an app's progress to Kafka's tools; nothing is read from there, and its calls don't wait.
``Groups`` has positions for logs. The admin's calls for groups aren't used: if a broker dies during one, an assertion
of librdkafka may end the process (its issue 4605).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headrace.connectors.kafka.client import (
    ANSWER_S,
    AdminClient,
    ConfigResource,
    Consumer,
    IsolationLevel,
    KafkaClient,
    KafkaError,
    KafkaException,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    cannot_log_in,
    no_right_to_group,
    open_admin,
    open_consumer,
)
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.core.clock import Clock
from headrace.core.errors import (
    HeadraceError,
    StreamExistsError,
    StreamNotFoundError,
    TrimmedOffsetError,
    UnavailableError,
)
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger

LOOK_S = 0.2
LEADERS_MOVE_S = 5.0
_AGAIN_S = 0.01
_OVERTAKEN = 20  # how often partitions are added again that another client's call has overtaken
_NEAR = 3
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_NONE = -1  # the answer if no record has the time. Lower: no answer, as a new topic has no leader at first.
OLDEST, UPCOMING = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_log = logger(__name__)
Asked = Mapping[int, Future[Any]]


@dataclass(frozen=True, slots=True)
class Topic:
    """``id`` is one that no other topic gets; empty if brokers know none."""

    partitions: int
    id: str


class Topics:
    """The topics of a cluster. It connects when it is first used, and waits ``answer_s`` for each answer.

    Without ``uncommitted``, a partition ends where its oldest open transaction begins: nothing is read beyond it. All
    methods but ``find`` raise ``StreamNotFoundError`` for a missing topic.
    """

    def __init__(self, settings: KafkaSettings, *, uncommitted: bool = False, answer_s: float = ANSWER_S) -> None:
        self._settings = settings
        self._isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        self._answer_s = answer_s
        self._opening = threading.Lock()
        self._client: KafkaClient[AdminClient] | None = None

    @property
    def client(self) -> KafkaClient[AdminClient]:
        with self._opening:
            if self._client is None:
                self._client = open_admin(self._settings)
            return self._client

    def close(self) -> None:
        self._client = None

    def names(self) -> list[str]:
        with self.client.translating("listing topics"):
            return sorted(self.client.raw.list_topics(timeout=self._answer_s).topics)

    def find(self, topic: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic. A topic is never created by asking."""
        try:
            return self._described(topic).partitions
        except StreamNotFoundError:
            return None

    def describe(self, topic: str) -> Topic:
        """What there is to know of a topic. The error for one that isn't there names others like it."""
        try:
            return self._described(topic)
        except StreamNotFoundError as error:
            raise self._unknown(topic) from error

    def settings(self, topic: str, *, hidden: bool = False) -> dict[str, str]:
        """The settings of a topic. ``hidden``: none if this user isn't allowed to see them; else that is an error."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        futures = self.client.raw.describe_configs([asked], request_timeout=self._answer_s)
        try:
            found = self._answers(f"reading the settings of topic {topic!r}", futures)[asked]
        except HeadraceError as error:
            if error.retry or not hidden:
                raise
            _log.debug("can't read the settings of a topic", topic=topic, why=error.message)
            return {}
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def create(self, new: NewTopic, what: str = "", hint: str | None = None) -> bool:
        """Create a topic, ``what`` in messages. False: another client was faster. ``hint``: if this user may not."""
        try:
            doing = f"creating topic {new.topic!r}{what}"
            self._answers(doing, self.client.raw.create_topics([new], request_timeout=self._answer_s))
        except StreamExistsError:
            return False
        except HeadraceError as error:
            if not error.retry and hint is not None:
                error.hint = hint
            raise
        return True

    def await_topic(self, topic: str, partitions: int = 1) -> None:
        """Wait until brokers know a topic with so many partitions, which no event reports."""
        end = time.monotonic() + self._answer_s
        while (self.find(topic) or 0) < partitions:
            if time.monotonic() > end:
                raise self.client.problem(KafkaError(KafkaError._TIMED_OUT), f"waiting for topic {topic!r}")
            threading.Event().wait(_AGAIN_S)

    def grow(self, topic: str, partitions: int) -> None:
        for _ in range(_OVERTAKEN):
            found = self.find(topic)
            if found is None or found >= partitions:
                break
            new = [NewPartitions(topic, partitions)]
            error = self.client.raw.create_partitions(new, request_timeout=self._answer_s)[topic].exception()
            if error is None:
                break
            if not isinstance(error, KafkaException):
                raise error
            reason = error.args[0]
            if reason.code() not in (KafkaError.INVALID_PARTITIONS, KafkaError.REASSIGNMENT_IN_PROGRESS):
                raise self.client.problem(reason, f"adding partitions to topic {topic!r}")
            threading.Event().wait(_AGAIN_S)  # another one adds some at this moment
        self.await_topic(topic, partitions)

    def delete_before(self, topic: str, partition: int, before: Offset) -> None:
        places = [TopicPartition(topic, partition, before)]
        futures = self.client.raw.delete_records(places, request_timeout=self._answer_s)
        self._answers(f"trimming partition {partition} of topic {topic!r}", futures)

    def extents(self, topic: str, partitions: int) -> tuple[dict[int, Offset], dict[int, Offset]]:
        oldest, upcoming = self._offsets(topic, range(partitions), OLDEST, UPCOMING)
        return oldest, upcoming

    def oldest(self, topic: str, partitions: Iterable[int]) -> dict[int, Offset]:
        return self._offsets(topic, partitions, OLDEST)[0]

    def upcoming(self, topic: str, partitions: Iterable[int]) -> dict[int, Offset]:
        return self._offsets(topic, partitions, UPCOMING)[0]

    def at(self, topic: str, partition: int, time_ms: int) -> Offset | None:
        found = self._offsets(topic, [partition], OffsetSpec.for_timestamp(max(0, time_ms)))[0][partition]
        return None if found == _NONE else found

    def ask(self, topic: str, partitions: Iterable[int], spec: OffsetSpec = UPCOMING) -> Asked:
        """Ask for an offset of each partition, by default its end, and don't wait; ``answered`` reads the answers."""
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        if not asked:
            return {}
        futures = self.client.raw.list_offsets(asked, isolation_level=self._isolation, request_timeout=self._answer_s)
        return {place.partition: future for place, future in futures.items()}

    def answered(self, topic: str, asked: Asked) -> dict[int, Offset]:
        """The answers; -1 if no record has the requested time."""
        doing = f"looking for offsets of topic {topic!r}"
        found = {partition: int(answer.offset) for partition, answer in self._answers(doing, asked).items()}
        if any(offset < _NONE for offset in found.values()):
            hint = "check the broker; Headrace tries again"
            raise UnavailableError(f"{doing}: the broker knows no offset yet", hint=hint)
        return found

    def _offsets(self, topic: str, partitions: Iterable[int], *specs: OffsetSpec) -> list[dict[int, Offset]]:
        """Ask again while leaders move, or one has just been chosen, and not every broker knows it."""
        places = list(partitions)
        until_s = time.monotonic() + min(self._answer_s, LEADERS_MOVE_S)
        while True:
            asked = [self.ask(topic, places, spec) for spec in specs]
            try:
                return [self.answered(topic, one) for one in asked]
            except UnavailableError:
                if time.monotonic() > until_s:
                    raise
            self.client.raw.poll(_AGAIN_S)

    def _described(self, topic: str) -> Topic:
        futures = self.client.raw.describe_topics(TopicCollection([topic]), request_timeout=self._answer_s)
        found = self._answers(f"looking for topic {topic!r}", futures)[topic]
        id_ = str(found.topic_id)
        return Topic(len(found.partitions), "" if id_ == _NO_ID else id_)

    def _answers(self, doing: str, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """Raises at once if the login is refused: librdkafka would go on trying."""
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
            others = f"{len(names)} others" if len(names) > _NEAR else ", ".join(map(repr, names))
            hint = f"create it, or check the name and the cluster: this user sees {others}"
        else:
            hint = "create it, or check the cluster: this user sees no topics there"
        return StreamNotFoundError(f"there is no topic {topic!r} at {self._settings.brokers}", hint=hint)


_WAITS = {"fetch.wait.max.ms": "10", "fetch.error.backoff.ms": "50", "fetch.queue.backoff.ms": "1"}
_USUAL = {**_WAITS, "queued.max.messages.kbytes": "1024"}


class RecordTimes:
    """Times of records. It connects when it is first used."""

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


RECORD_BYTES = 1_048_588  # what a topic takes unless its settings or the broker's say otherwise
LIMITS_LOOK_S = 30.0


class TopicLimits:
    """The partitions and the record limit of a topic. The threads of several writers share it.

    More partitions are taken in with the next version, as Kafka's own producers do.
    """

    def __init__(self, topic: str, topics: Topics) -> None:
        self.topic = topic
        self.partitions = 0  # 0 before the first look
        self.record_bytes = RECORD_BYTES
        self._topics = topics
        self._lock = threading.Lock()
        self._next_s = float("-inf")

    def look(self) -> None:
        """Look at the topic, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() < self._next_s:
                return
            try:
                found = self._topics.describe(self.topic).partitions
                settings = self._topics.settings(self.topic, hidden=True)
            except StreamNotFoundError as error:
                error.hint = f"{error.hint}; committed rows wait until the topic exists"
                raise
            except UnavailableError as error:
                if not self.partitions:
                    raise
                _log.debug("can't find out whether a topic has changed", topic=self.topic, why=error.message)
            else:
                if self.partitions not in (0, found):
                    said = "the topic's partition count has changed: from now on, keys go to other partitions"
                    _log.warning(said, topic=self.topic, before=self.partitions, now=found)
                self.partitions = found
                self.record_bytes = int(settings.get("max.message.bytes", RECORD_BYTES))
            self._next_s = time.monotonic() + LIMITS_LOOK_S


EVERY_MS = 1000.0
CLOSE_S = 2.0  # how long the last commit may take


def group_of(reader: str) -> str:
    return f"headrace.{reader.replace('/', '.')}"


class GroupCommits:
    """The commits of one stage in one topic. One thread uses it."""

    def __init__(self, settings: KafkaSettings, topic: str, group: str, clock: Clock) -> None:
        self._topic = topic
        self._group = group
        self._client = open_consumer(settings, group, committed=self._answered)
        self._clock = clock
        self._waiting: dict[int, Offset] = {}
        self._sent_ms = -EVERY_MS
        self._under_way = 0
        self._refused = False
        self._throttle = Throttle(_log)

    def note(self, partition: int, position: Offset) -> None:
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


CALL_S = 5.0  # how long a call waits for a broker; a commit, twice as long: for a coordinator first


class Groups:
    """Positions of groups, with a consumer for each that joins none. A thread makes the calls; callers needn't wait."""

    def __init__(self, settings: KafkaSettings) -> None:
        call_ms = str(int(CALL_S * 1000))
        self._settings = settings.tuned({"socket.timeout.ms": call_ms, "session.timeout.ms": call_ms})
        self._thread = ThreadPoolExecutor(1, "kafka-groups")
        self._consumers: dict[str, KafkaClient[Consumer]] = {}  # of the thread
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[tuple[str, int], Offset]] = {}
        self._under_way: set[str] = set()
        self._throttle = Throttle(_log)

    def report(self, group: str, topic: str, partition: int, position: Offset) -> None:
        """Commit a position of a group without members soon: with the next commit, if one is under way."""
        with self._lock:
            self._waiting.setdefault(group, {})[topic, partition] = position
            if group in self._under_way:
                return
            self._under_way.add(group)
        self._send(group)

    def committed(self, group: str, topic: str, partitions: int) -> Future[dict[int, Offset]]:
        """Ask for the committed positions of a group by partition; those without one are left out."""
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return self._thread.submit(self._committed, group, places)

    def close(self) -> None:
        """Disconnect after the calls that wait, and those that their answers bring. It may be used again."""
        self._thread.submit(lambda: None).result()
        self._thread.submit(self._disconnect).result()

    def _send(self, group: str) -> None:
        with self._lock:
            positions = self._waiting.pop(group, None)
            if positions is None:
                self._under_way.discard(group)
                return
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
        self._thread.submit(self._commit, group, places).add_done_callback(lambda answer: self._sent(group, answer))

    def _sent(self, group: str, answer: Future[None]) -> None:
        try:
            answer.result()
        except HeadraceError as error:
            self._throttle.warning("positions can't be reported to Kafka", group=group, error=error.message)
        self._send(group)

    # -- in the thread

    def _commit(self, group: str, places: list[TopicPartition]) -> None:
        client = self._client(group)
        with client.translating(f"committing positions of group {group!r}"):
            done = client.raw.commit(offsets=places, asynchronous=False)
        self._check(client, group, done or ())

    def _committed(self, group: str, places: list[TopicPartition]) -> dict[int, Offset]:
        client = self._client(group)
        with client.translating(f"reading positions of group {group!r}"):
            try:
                found = client.raw.committed(places, CALL_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise
                return {}  # it has never committed
        self._check(client, group, found)
        return {place.partition: place.offset for place in found if place.offset >= 0}

    def _check(self, client: KafkaClient[Consumer], group: str, places: Iterable[TopicPartition]) -> None:
        for place in places:
            if place.error is not None:
                raise client.problem(place.error, f"positions of group {group!r} in topic {place.topic!r}")

    def _client(self, group: str) -> KafkaClient[Consumer]:
        if group not in self._consumers:
            self._consumers[group] = open_consumer(self._settings, group)
        return self._consumers[group]

    def _disconnect(self) -> None:
        while self._consumers:
            self._consumers.popitem()[1].raw.close()
