"""Positions of groups in Kafka: committed and looked up by consumers that join no group. Callers needn't wait.

A thread makes the calls, one after the other, and ends when there are none. The admin's calls for groups aren't used:
if a broker dies during one, an assertion of librdkafka may end the process (its issue 4605).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from headrace.core.ids import Offset
from headrace.systems.kafka.client import (
    Consumer,
    KafkaClient,
    KafkaError,
    KafkaException,
    TopicPartition,
    open_consumer,
)
from headrace.systems.kafka.log_topics import LogOptions

CALL_S = 5.0
"""How long a call waits for a broker; a commit, twice as long: for a coordinator first."""

T = TypeVar("T")


class Groups:
    """The groups of a log, with a consumer for each. Threads may share it.

    Few calls wait at a time, because a caller waits for its answer before it asks the same again.
    """

    def __init__(self, options: LogOptions) -> None:
        call_ms = str(int(CALL_S * 1000))
        self._settings = options.settings.tuned({"socket.timeout.ms": call_ms, "session.timeout.ms": call_ms})
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._running = False
        self._consumers: dict[str, KafkaClient[Consumer]] = {}
        """Of the thread."""

    def commit(self, group: str, positions: Mapping[tuple[str, int], Offset]) -> Future[None]:
        """Commit positions of a group without members."""
        places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
        return self._call(lambda: self._commit(group, places))

    def committed(self, group: str, topic: str, partitions: int) -> Future[dict[int, Offset]]:
        """Ask for the committed positions of a group by partition; those without one are left out."""
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return self._call(lambda: self._committed(group, places))

    def close(self) -> None:
        """Disconnect after the calls that wait, and those that their answers bring. It may be used again."""
        self._call(lambda: None).result()
        self._call(self._disconnect).result()

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

    def _call(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def make() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is for who has asked
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._calls.append(make)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="kafka-groups", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                call = self._calls.popleft()
            call()
