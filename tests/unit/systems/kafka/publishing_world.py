"""A world for ``systems/kafka/publishing``: a model of a broker's transactions, and lives of a writer that fail.

The broker has one partition of rows and one of progress. A life sends one request at a time. A request may be
delivered late, even after its sender has died, and its reply may be lost. The world kills lives, freezes them while
their replacements work, lets time pass until transactions expire, forgets idle ids, and has another writer whose
transactions stay open for long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.systems.kafka.publishing import (
    GRACE_MS,
    HOLDING,
    TABLE,
    TIMEOUT_MS,
    Action,
    Event,
    Progress,
    Publishing,
    Row,
    State,
    Wanted,
)

ROWS, PROGRESS = "rows", "progress"
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


@dataclass
class Broker:
    """Two partitions, and the coordinator of transactions."""

    now: float = 0.0
    partitions: dict[str, list[tuple[Any, Transaction]]] = field(default_factory=lambda: {ROWS: [], PROGRESS: []})
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

    def produce(self, id_: str, held: tuple[int, int], partition: str, value: Any) -> None:
        producer = self._owned(id_, held)
        self.mark(producer)
        if producer.transaction is None:
            producer.transaction = Transaction(self.now)
        self.partitions[partition].append((value, producer.transaction))

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
        """What a reader of committed records gets; and whether that is up to the high watermark."""
        found = []
        for value, transaction in self.partitions[partition]:
            if transaction.status in ("open", "prepared"):
                return found, False
            if transaction.status == "committed":
                found.append(value)
        return found, True

    def _owned(self, id_: str, held: tuple[int, int]) -> Producer:
        producer = self.producers.get(id_)
        if producer is None:
            raise Failed
        if (producer.pid, producer.epoch) != held:
            raise Fenced
        return producer


Request = Callable[[], Any]


class Life:
    """A process that publishes the versions in its outbox. Subclasses make one mistake each."""

    table: Mapping[State, Mapping[Event, Row]] = TABLE

    def __init__(self, broker: Broker, number: int, outbox: list[int], floor: int) -> None:
        self.broker = broker
        self.name = f"life-{number}"
        self.outbox = list(outbox)
        self.machine = Publishing(self.name, self.table)
        self.machine.trust(floor)
        self.waits_until = 0.0
        self.held = (0, 0)
        self.version: int | None = None
        self.began = 0.0
        self.steps = self.run()
        self.request: Request | None = next(self.steps)
        self.reply: tuple[Any, Exception | None] | None = None
        self.frozen_until = 0.0

    @property
    def id(self) -> str:
        return WRITER

    def run(self) -> Generator[Request | None, Any, None]:
        """Publish what is in the outbox, request by request; None is a pause."""
        while True:
            self.version = self.outbox[0] if self.outbox else None
            wanted = None if self.version is None else Wanted(self.version, f"rows of {self.version}")
            action = self.machine.ask(wanted, self.broker.now)
            while action is not Action.REST:
                action = yield from self.perform(action)
            if self.machine.state not in HOLDING:
                self.held = (0, 0)
            if self.version in self.outbox and self.machine.there(self.version):
                self.outbox.remove(self.version)
            self.waits_until = self.broker.now + GRACE_MS
            yield None

    def perform(self, action: Action) -> Generator[Request, Any, Action]:
        try:
            if action is Action.OPEN:
                self.held = yield lambda: self.broker.init(self.id)
                return self.machine.opened()
            if action in (Action.FIND, Action.LOOK):
                return self.machine.read((yield self.find), self.broker.now)
            if action is Action.SEND:
                self.began = self.broker.now
                yield from self.send()
                return self.machine.sent()
            yield lambda: self.broker.commit(self.id, self.held)
            return self.machine.committed()
        except Fenced:
            return self.machine.fenced(self.broker.now - self.began)
        except Failed:
            return self.machine.failed()

    def send(self) -> Generator[Request, Any, None]:
        assert self.version is not None
        for row in rows_of(self.version):
            yield self.produce(ROWS, row)
        yield self.produce(PROGRESS, (WRITER, self.progress()))

    def produce(self, partition: str, value: Any) -> Request:
        held = self.held
        return lambda: self.broker.produce(self.id, held, partition, value)

    def progress(self) -> Progress:
        assert self.version is not None
        return Progress(self.version, f"rows of {self.version}", self.name)

    def find(self) -> Progress | None:
        records, whole = self.broker.committed(PROGRESS)
        return last_of(records) if whole else None


def last_of(records: list[Any]) -> Progress:
    """The writer's newest record."""
    return next((progress for writer, progress in reversed(records) if writer == WRITER), Progress())


def rows_of(version: int) -> list[tuple[int, int]]:
    return [(version, row) for row in range(1 + version % 3)]


class World:
    """Lives of a writer, one after the other, of which some stay as stale copies; and another writer."""

    def __init__(self, seed: int, make: type[Life] = Life, versions: int = 8) -> None:
        self.draw = random.Random(seed)
        self.broker = Broker()
        self.make = make
        self.versions = versions
        self.committed: list[int] = []
        self.logged = -1
        """What the newest commit says of what was published."""
        self.lives: list[Life] = []
        self.late: list[Request] = []
        """Requests of the dead that are still on their way."""
        self._born = 0
        self._others = (0, 0)
        self.spawn()

    @property
    def life(self) -> Life:
        """The present one, which commits versions."""
        return self.lives[-1]

    def spawn(self) -> None:
        self.lives.append(self.make(self.broker, self._born, self.waiting(), self.logged))
        self._born += 1
        self.lives = self.lives[-4:]

    def waiting(self) -> list[int]:
        """What a process that starts, or a task that is rolled back, finds in its outbox."""
        return [version for version in self.committed if version > self.logged]

    def run(self, steps: int = 220) -> None:
        """Let anything happen for a while, and then nothing bad until everything is published."""
        for _ in range(steps):
            self.happen()
            self.broker.now += self.draw.choice((1, 5, 50))
        self.settle()

    def happen(self) -> None:
        match self.draw.randrange(120):
            case 0 | 1 | 2:
                self.kill()
            case 3 | 4 | 5:
                self.life.frozen_until = self.broker.now + self.draw.choice((500, 5_000, 30_000))
                self.spawn()
            case 6 | 7:
                self.broker.now += self.draw.choice((1_000, TIMEOUT_MS + 1))
                self.broker.expire(TIMEOUT_MS)
            case 8 | 9:
                self.broker.forget(self.draw.choice([WRITER, OTHER]))
            case 10 | 11:
                self.broker.racing = True
            case number if number < 22:
                self.other_writes()
            case number if number < 34:
                self.mark()
            case number if number < 38 and self.late:
                self.attempt(self.late.pop(self.draw.randrange(len(self.late))))
            case number if number < 48:
                self.commit()
            case number if number < 54:
                self.life.outbox = self.waiting()
            case _:
                self.step(self.draw.choice([*self.lives, self.life]), loss=0.1)

    def commit(self) -> None:
        """The present life commits a version, and with it what it knows to be published."""
        if len(self.committed) < self.versions:
            known = self.life.machine.position
            if known is not None and self.draw.random() < 0.2:
                self.logged = max(self.logged, known)
            self.life.outbox.append(len(self.committed))
            self.committed.append(len(self.committed))

    def kill(self) -> None:
        life = self.life
        if life.request is not None and life.reply is None and self.draw.random() < 0.5:
            self.late.append(life.request)
        self.lives.remove(life)
        self.spawn()

    def step(self, life: Life, loss: float) -> None:
        """Deliver a life's request, or its reply. A frozen one's request is delivered all the same."""
        if life.request is None:
            if self.broker.now >= max(life.frozen_until, life.waits_until):
                life.request = next(life.steps)
            return
        if life.reply is None:
            lost = self.draw.random()
            if lost < loss / 2:
                life.reply = (None, Failed())
            else:
                life.reply = self.attempt(life.request)
                if lost < loss:
                    life.reply = (None, Failed())
        if self.broker.now < life.frozen_until or self.draw.random() < 0.3:
            return
        (value, error), life.reply = life.reply, None
        life.request = life.steps.send(value) if error is None else life.steps.throw(error)

    def attempt(self, request: Request) -> tuple[Any, Exception | None]:
        try:
            return request(), None
        except (Fenced, Failed) as error:
            return None, error

    def mark(self) -> None:
        self.broker.mark(self.draw.choice([*self.broker.producers.values(), Producer(0)]))

    def other_writes(self) -> None:
        """The other writer begins a transaction, commits one, or is replaced."""
        try:
            if self.draw.random() < 0.5:
                self.broker.produce(OTHER, self._others, PROGRESS, (OTHER, Progress(7)))
            else:
                self.broker.commit(OTHER, self._others)
        except (Fenced, Failed):
            self.broker.racing = False
            self._others = self.broker.init(OTHER)

    def settle(self) -> None:
        """Nothing goes wrong any more: the last life publishes everything."""
        self.broker.now += 60_000
        self.broker.expire(TIMEOUT_MS)
        for request in self.late:
            self.attempt(request)
        self.kill()
        while len(self.committed) < self.versions:
            self.commit()
        for _ in range(3_000):
            if not self.life.outbox or self.life.machine.state in (State.LOST, State.SHARED):
                break
            self.broker.now += 20
            for producer in self.broker.producers.values():
                self.broker.mark(producer)
            for life in self.lives:
                self.step(life, loss=0.0)
        for producer in self.broker.producers.values():
            self.broker.mark(producer)

    def visible(self) -> list[tuple[int, int]]:
        """The rows that a reader of committed records gets."""
        rows, _ = self.broker.committed(ROWS)
        return rows

    def expected(self) -> list[tuple[int, int]]:
        return [row for version in self.committed for row in rows_of(version)]
