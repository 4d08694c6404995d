"""Positions of readers as committed offsets of groups, and how far readers are behind. Nothing here waits.

A run loop reports and asks many times a second. Of each group one commit is under way at a time; what is reported
meanwhile goes out with the next one. What is asked for is answered from the last answers of the brokers, and they are
asked again when those are old.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger
from headrace.systems.kafka.log_cluster import Cluster
from headrace.systems.kafka.log_groups import Groups

_OLD_S = 0.1
_GUESS = 4096.0
"""How large a record is taken to be before one was seen."""
_WEIGHT = 0.05

_log = logger(__name__)


class Sizes:
    """How large the records of each stream are, about: what this process has written and read of late."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def seen(self, stream: str, records: int, size: int) -> None:
        """Take records with so many bytes in."""
        if records:
            mean = size / records
            self._means[stream] = mean + (self._means.get(stream, mean) - mean) * (1 - _WEIGHT) ** records

    def of(self, stream: str) -> float:
        """The mean size of a record."""
        return self._means.get(stream, _GUESS)


class Reports:
    """Commits positions. Threads may share it."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[tuple[str, int], Offset]] = {}
        self._under_way: set[str] = set()
        self._throttle = Throttle(_log)

    def report(self, group: str, topic: str, partition: int, position: Offset) -> None:
        """Commit a position soon."""
        with self._lock:
            self._waiting.setdefault(group, {})[topic, partition] = position
            if group in self._under_way:
                return
            self._under_way.add(group)
        self._send(group)

    def _send(self, group: str) -> None:
        with self._lock:
            positions = self._waiting.pop(group, None)
            if positions is None:
                self._under_way.discard(group)
                return
        self._groups.commit(group, positions).add_done_callback(lambda answer: self._sent(group, answer))

    def _sent(self, group: str, answer: Future[None]) -> None:
        try:
            answer.result()
        except HeadraceError as error:
            self._throttle.warning("positions can't be reported to Kafka", group=group, error=error.message)
        self._send(group)


@dataclass(slots=True)
class _Watched:
    asked_s: float = float("-inf")
    oldest: dict[int, Future[Any]] = field(default_factory=dict)
    upcoming: dict[int, Future[Any]] = field(default_factory=dict)
    committed: Future[dict[int, Offset]] | None = None
    unread: list[Offset] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether all that was asked is known."""
        answers = (self.committed, *self.oldest.values(), *self.upcoming.values())
        return all(answer is not None and answer.done() for answer in answers)


class Distances:
    """How many records of streams are unread. One thread uses it."""

    def __init__(self, cluster: Cluster, groups: Groups) -> None:
        self._cluster = cluster
        self._groups = groups
        self._watched: dict[tuple[str, str], _Watched] = {}

    def unread(self, topic: str, partitions: int, group: str) -> list[Offset]:
        """What the last answers say, of each partition; empty before there are any."""
        one = self._watched.setdefault((topic, group), _Watched())
        if one.committed is not None and one.answered:
            try:
                begins, ends = (self._cluster.offsets(topic, asked) for asked in (one.oldest, one.upcoming))
                read = one.committed.result()
            except HeadraceError as error:
                _log.debug("can't find out how far readers are behind", topic=topic, error=error.message)
            else:
                one.unread = [ends[number] - read.get(number, begins[number]) for number in range(len(ends))]
            one.committed = None
        now = time.monotonic()
        if one.committed is None and now - one.asked_s > _OLD_S:
            one.asked_s = now
            one.oldest, one.upcoming = self._cluster.ask_extents(topic, partitions)
            one.committed = self._groups.committed(group, topic, partitions)
        return one.unread
