"""What the admin of a log in Kafka asks the brokers: topics and offsets. Each call waits for answers.

Calls that are independent of each other are sent together. A broker that doesn't answer is an ``UnavailableError``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.core.errors import StreamExistsError, StreamNotFoundError, UnavailableError
from headrace.core.ids import Offset
from headrace.systems.kafka.client import (
    ANSWER_S,
    AdminClient,
    ConfigResource,
    IsolationLevel,
    KafkaClient,
    KafkaError,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    open_admin,
)
from headrace.systems.kafka.log_topics import LogOptions

T = TypeVar("T")
_LOOK_S = 0.01
_NONE = -1
"""The answer if no record has the time. Lower values mean no answer, because a new topic has no leader at first."""
_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_LEADERS_MOVE_S = 5.0
_ASK_AGAIN = 20
"""How often a call is made again that another client's call has overtaken."""


class Cluster:
    """The brokers of a log. It connects when it is first used; threads may share it."""

    def __init__(self, options: LogOptions) -> None:
        self.options = options
        self._opening = threading.Lock()
        self._client: KafkaClient[AdminClient] | None = None

    def partitions(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if the topic doesn't exist."""
        asked = self._admin.raw.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
        try:
            return len(self._admin.answer(asked[topic], f"looking for topic {topic!r}").partitions)
        except StreamNotFoundError:
            return None

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic for frames, unless there is one of that name, and wait until brokers know it."""
        new = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=-1 if self.options.replication is None else self.options.replication,
            config=self.options.topic_settings(),
        )
        doing = f"creating topic {topic!r}"
        try:
            self._admin.answer(self._admin.raw.create_topics([new], request_timeout=ANSWER_S)[topic], doing)
        except StreamExistsError:
            pass  # another one has created it
        self._wait(doing, lambda: self.partitions(topic) is not None)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic at least so many partitions."""
        doing = f"adding partitions to topic {topic!r}"
        for _ in range(_ASK_AGAIN):
            found = self.partitions(topic)
            if found is None or found >= partitions:
                break
            future = self._admin.raw.create_partitions([NewPartitions(topic, partitions)], request_timeout=ANSWER_S)
            with self._admin.translating(doing):
                error = self._error(future[topic])
            if error is None:
                break
            if error.code() not in (KafkaError.INVALID_PARTITIONS, KafkaError.REASSIGNMENT_IN_PROGRESS):
                raise self._admin.problem(error, doing)
            threading.Event().wait(_LOOK_S)  # another one adds some at this moment
        self._wait(doing, lambda: (self.partitions(topic) or 0) >= partitions)

    def settings(self, topic: str) -> dict[str, str | None]:
        """The settings of a topic."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        asked = self._admin.raw.describe_configs([resource], request_timeout=ANSWER_S)
        found = self._admin.answer(asked[resource], f"reading the settings of topic {topic!r}")
        return {name: entry.value for name, entry in found.items()}

    def extents(self, topic: str, partitions: int) -> tuple[list[Offset], list[Offset]]:
        """Where each partition begins and ends."""

        def ask() -> tuple[list[Offset], list[Offset]]:
            oldest, upcoming = self.ask_extents(topic, partitions)
            return self.offsets(topic, oldest), self.offsets(topic, upcoming)

        return self._patiently(ask)

    def upcoming(self, topic: str, partition: int) -> Offset:
        """Where a partition ends."""
        return self._patiently(lambda: self.offsets(topic, self._ask(topic, {partition: _LATEST}))[0])

    def asked_upcoming(self, topic: str, partition: int) -> Future[Any]:
        """Ask where a partition ends, and don't wait. The result has an ``offset``."""
        return self._ask(topic, {partition: _LATEST})[partition]

    def at(self, topic: str, partition: int, time_ms: int) -> Offset | None:
        """Return the offset of the first record of that time or later; None if there is none."""
        spec = OffsetSpec.for_timestamp(max(0, time_ms))
        offset = self._patiently(lambda: self.offsets(topic, self._ask(topic, {partition: spec}))[0])
        return None if offset < 0 else offset

    def delete_before(self, topic: str, partition: int, before: Offset) -> None:
        """Delete the records below an offset, which is up to the end."""
        place = TopicPartition(topic, partition, before)
        asked = self._admin.raw.delete_records([place], request_timeout=ANSWER_S)
        for future in asked.values():
            self._admin.answer(future, f"trimming partition {partition} of topic {topic!r}")

    # -- without waiting -----------------------------------------------------------------------------------

    def ask_extents(self, topic: str, partitions: int) -> tuple[dict[int, Future[Any]], dict[int, Future[Any]]]:
        """Ask where each partition begins and ends; ``offsets`` reads the answers."""
        places = range(partitions)
        return self._ask(topic, dict.fromkeys(places, _EARLIEST)), self._ask(topic, dict.fromkeys(places, _LATEST))

    def offsets(self, topic: str, asked: Mapping[int, Future[Any]]) -> list[Offset]:
        """Return the answers by partition; -1 if no record has the requested time."""
        doing = f"looking for offsets of topic {topic!r}"
        found = [int(self._admin.answer(future, doing).offset) for _, future in sorted(asked.items())]
        if any(offset < _NONE for offset in found):
            raise UnavailableError(
                f"{doing}: the broker knows no offset yet", hint="check the broker; Headrace tries again"
            )
        return found

    # -- asking ----------------------------------------------------------------------------------------

    @property
    def _admin(self) -> KafkaClient[AdminClient]:
        with self._opening:
            if self._client is None:
                self._client = open_admin(self.options.settings)
            return self._client

    def _ask(self, topic: str, specs: Mapping[int, OffsetSpec]) -> dict[int, Future[Any]]:
        places = {TopicPartition(topic, partition): spec for partition, spec in specs.items()}
        asked = self._admin.raw.list_offsets(
            places, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ANSWER_S
        )
        return {place.partition: future for place, future in asked.items()}

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call again while leaders move, or one has just been chosen, and not every broker knows it."""
        end = time.monotonic() + _LEADERS_MOVE_S
        while True:
            try:
                return call()
            except UnavailableError:
                if time.monotonic() > end:
                    raise
                threading.Event().wait(_LOOK_S)

    def _error(self, future: Future[Any]) -> KafkaError | None:
        error = future.exception()
        if error is None:
            return None
        found = error.args[0] if error.args else None
        if not isinstance(found, KafkaError):
            raise error
        return found

    def _wait(self, doing: str, reached: Callable[[], bool]) -> None:
        """Wait until brokers know the controller's change, which no event reports."""
        end = time.monotonic() + ANSWER_S
        while not reached():
            if time.monotonic() > end:
                raise self._admin.problem(KafkaError(KafkaError._TIMED_OUT), doing)
            threading.Event().wait(_LOOK_S)
