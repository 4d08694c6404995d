"""Show an app's progress to Kafka's tools: its commits, as offsets of a consumer group.

Nothing is read from there. The calls don't wait; what can't be committed is logged, and the next commit says more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from headrace.core.clock import Clock
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger
from headrace.systems.kafka.client import Consumer, KafkaClient, KafkaError, TopicPartition, no_right_to_group

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
