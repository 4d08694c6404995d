"""What a cluster knows of its topics: their partitions, and the offsets in these."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headrace.core.errors import HeadraceError, StreamExistsError, StreamNotFoundError, UnavailableError
from headrace.core.ids import Offset
from headrace.systems.kafka.client import (
    ANSWER_S,
    AdminClient,
    IsolationLevel,
    KafkaClient,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    cannot_log_in,
    open_admin,
)
from headrace.systems.kafka.settings import KafkaSettings

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
