"""A model of a Kafka broker, for ``publishing_world``: two partitions, and transactions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.connectors.kafka.publishing import Progress

ROWS, PROGRESS = "rows", "progress"
COMMITTED = ("prepared", "committed")
WRITER, OTHER = "app/stage/0/out", "app/stage/1/out"


class Fenced(Exception):
    """The broker refuses a producer."""


class Failed(Exception):
    """A request failed, or nobody knows whether it worked."""


@dataclass
class Transaction:
    """A transaction: ``open``, then ``prepared`` to commit, then ``committed``; or ``aborted``."""

    since: float
    status: str = "open"


@dataclass
class Producer:
    """What the broker knows of a transactional id."""

    pid: int
    epoch: int = 0
    transaction: Transaction | None = None


@dataclass(eq=False)
class Record:
    """A record in the leader's log. It is ``acknowledged`` once the replicas have it too, or ``lost`` before."""

    value: Any
    transaction: Transaction
    acknowledged: bool = False
    lost: bool = False


@dataclass
class Broker:
    """Two partitions, and the coordinator of transactions."""

    now: float = 0.0
    partitions: dict[str, list[Record]] = field(default_factory=lambda: {ROWS: [], PROGRESS: []})
    lagging: set[str] = field(default_factory=set)
    """Partitions whose replicas get nothing."""
    moving: set[str] = field(default_factory=set)
    """Partitions whose next reader isn't answered: the leader has just moved."""
    late: int = 0
    """So many of the newest records haven't come to readers yet."""
    producers: dict[str, Producer] = field(default_factory=dict)
    racing: bool = False
    """The next one that takes an id over is overtaken by somebody else meanwhile."""
    _pids: int = 0

    def init(self, id_: str) -> tuple[int, int]:
        if self.racing:
            self.racing = False
            raise Fenced
        producer = self.producers.get(id_)
        if producer is None:
            self._pids += 1
            producer = self.producers[id_] = Producer(self._pids)
        transaction = producer.transaction
        if transaction is not None:
            transaction.status = "aborted" if transaction.status == "open" else "committed"
        producer.transaction = None
        producer.epoch += 1
        return producer.pid, producer.epoch

    def produce(self, id_: str, held: tuple[int, int], partition: str, value: Any) -> Record:
        producer = self._owned(id_, held)
        self.mark(producer)
        if producer.transaction is None:
            producer.transaction = Transaction(self.now)
        record = Record(value, producer.transaction)
        self.partitions[partition].append(record)
        if partition not in self.lagging:
            self.replicate(partition)
        return record

    def replicate(self, partition: str) -> None:
        """The replicas get all that the leader has."""
        self.lagging.discard(partition)
        for record in self.partitions[partition]:
            record.acknowledged = True

    def move(self, partition: str) -> None:
        """A replica becomes the leader: what it doesn't have is gone."""
        self.lagging.discard(partition)
        self.moving.add(partition)
        for record in self.partitions[partition]:
            record.lost = not record.acknowledged
        self.partitions[partition] = [record for record in self.partitions[partition] if not record.lost]

    def abort(self, id_: str, held: tuple[int, int]) -> None:
        producer = self._owned(id_, held)
        if producer.transaction is not None and producer.transaction.status == "open":
            producer.transaction.status = "aborted"
            producer.transaction = None

    def commit(self, id_: str, held: tuple[int, int]) -> None:
        producer = self._owned(id_, held)
        if producer.transaction is None:
            raise Failed
        producer.transaction.status = "prepared"

    def mark(self, producer: Producer) -> None:
        """Write the markers of a commit, which come after its reply."""
        if producer.transaction is not None and producer.transaction.status == "prepared":
            producer.transaction.status = "committed"
            producer.transaction = None

    def expire(self, timeout: float) -> None:
        for producer in self.producers.values():
            transaction = producer.transaction
            if transaction is not None and transaction.status == "open" and self.now - transaction.since > timeout:
                transaction.status = "aborted"
                producer.transaction = None
                producer.epoch += 1

    def forget(self, id_: str) -> None:
        if id_ in self.producers and self.producers[id_].transaction is None:
            del self.producers[id_]

    def committed(self, partition: str) -> tuple[list[Any], bool]:
        """What there is for a reader of committed records; and whether that is up to the high watermark."""
        found = []
        for record in self.partitions[partition]:
            if not record.acknowledged:
                break
            if record.transaction.status in ("open", "prepared"):
                return found, False
            if record.transaction.status == "committed":
                found.append(record.value)
        return found, True

    def fetch(self, partition: str) -> tuple[list[Any], bool]:
        """What a reader of committed records gets now; and whether that is up to the high watermark."""
        if partition in self.moving:
            self.moving.discard(partition)
            raise Failed
        found, whole = self.committed(partition)
        return (found[: -self.late], False) if self.late and found else (found, whole)

    def published(self) -> int:
        """The newest version that is committed, whoever can read it yet."""
        done = [record.value for record in self.partitions[PROGRESS] if record.transaction.status in COMMITTED]
        return last_of(done).version

    def _owned(self, id_: str, held: tuple[int, int]) -> Producer:
        producer = self.producers.get(id_)
        if producer is None:
            raise Failed
        if (producer.pid, producer.epoch) != held:
            raise Fenced
        return producer


def last_of(records: list[Any]) -> Progress:
    """The writer's newest record."""
    return next((progress for writer, progress in reversed(records) if writer == WRITER), Progress())
