"""A world for ``connectors/kafka/publishing``: a model of a broker's transactions, and lives of a writer that fail.

The broker has one partition of rows and one of progress. A life sends the records of a version together. They arrive
in any order of partitions, and are acknowledged so. Any request may be delivered late, even after its sender has died,
or has been told that it failed and asks again; and its reply may be lost. The world kills lives, freezes them while
their replacements work, lets time pass until transactions expire, forgets idle ids, and has another writer whose
transactions stay open for long. With ``unstable`` brokers, replicas also lag, leaders move and lose what they haven't
acknowledged, and readers get records late.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from publishing_broker import OTHER, PROGRESS, ROWS, WRITER, Broker, Failed, Fenced, Producer, Record, last_of

from headrace.connectors.kafka.publishing import (
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
    WantedVersion,
)

Request = Callable[[], Any]
Send = Callable[[], Record]


class Sending:
    """Records that are on their way together, those of a partition in their order: the queue of a client.

    It is over when all have arrived, and the ``awaited`` partitions have acknowledged theirs.
    """

    def __init__(self, sends: list[tuple[str, Send]], awaited: tuple[str, ...] = (ROWS, PROGRESS)) -> None:
        self.queues: dict[str, deque[Send]] = {}
        for partition, send in sends:
            self.queues.setdefault(partition, deque()).append(send)
        self.unacknowledged: deque[tuple[str, Send, Record]] = deque()
        self._awaited = awaited

    def __call__(self) -> None:
        """Deliver all that hasn't been delivered."""
        while left := [partition for partition, queue in self.queues.items() if queue]:
            self.deliver(left[0])

    def deliver(self, partition: str) -> None:
        """Deliver the next record of a partition: a broker refuses those behind one that was lost."""
        self.settle()
        send = self.queues[partition][0]
        record = send()
        self.queues[partition].popleft()
        self.unacknowledged.append((partition, send, record))

    def settle(self) -> bool:
        """Queue again what was lost. Whether all is acknowledged that is awaited."""
        waiting, self.unacknowledged = self.unacknowledged, deque()
        for partition, send, record in reversed(waiting):
            if record.lost:
                self.queues[partition].appendleft(send)
            elif not record.acknowledged:
                self.unacknowledged.appendleft((partition, send, record))
        waiting_for = {partition for partition, *_ in self.unacknowledged}
        return not any(self.queues.values()) and not waiting_for & set(self._awaited)


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
            wanted = None if self.version is None else WantedVersion(self.version, f"rows of {self.version}")
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
        yield Sending(self.records())

    def records(self) -> list[tuple[str, Send]]:
        assert self.version is not None
        rows = [self.record(ROWS, row) for row in rows_of(self.version)]
        return [*rows, self.record(PROGRESS, (WRITER, self.progress()))]

    def record(self, partition: str, value: Any) -> tuple[str, Send]:
        held = self.held
        return partition, lambda: self.broker.produce(self.id, held, partition, value)

    def produce(self, partition: str, value: Any) -> Sending:
        return Sending([self.record(partition, value)])

    def progress(self) -> Progress:
        assert self.version is not None
        return Progress(self.version, f"rows of {self.version}", self.name)

    def find(self) -> Progress | None:
        records, whole = self.broker.fetch(PROGRESS)
        return last_of(records) if whole else None


def rows_of(version: int) -> list[tuple[int, int]]:
    return [(version, row) for row in range(1 + version % 3)]


class World:
    """Lives of a writer, one after the other, of which some stay as stale copies; and another writer."""

    def __init__(self, seed: int, make: type[Life] = Life, versions: int = 8, *, unstable: bool = True) -> None:
        self.draw = random.Random(seed)
        self.unstable = unstable
        self.leads = ""
        """Which life has taken a version for published that isn't."""
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
        match self.draw.randrange(140 if self.unstable else 120):
            case number if number >= 120:
                self.disturb()
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

    def disturb(self) -> None:
        """Replicas lag or catch up, a leader moves, or readers get records late."""
        partition = self.draw.choice((ROWS, PROGRESS))
        match self.draw.randrange(4):
            case 0:
                self.broker.lagging.add(partition)
            case 1:
                self.broker.replicate(partition)
            case 2:
                self.broker.move(partition)
            case _:
                self.broker.late = self.draw.choice((0, 0, 1, 2))

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
            life.reply = self.deliver(life.request, loss)
        if life.reply is None or self.broker.now < life.frozen_until or self.draw.random() < 0.3:
            return
        (value, error), life.reply = life.reply, None
        life.request = life.steps.send(value) if error is None else life.steps.throw(error)
        known = life.machine.position
        if life.request is None and known is not None and known > self.broker.published():
            self.leads = f"{life.name} says {known} instead of {self.broker.published()}"

    def deliver(self, request: Request, loss: float) -> tuple[Any, Exception | None] | None:
        """The reply to a request, or to records that are sent together: None before all of these are acknowledged."""
        lost = self.draw.random()
        if lost < loss / 2:
            if self.unstable and self.draw.random() < 0.5:
                self.late.append(request)  # its sender asks again, and doesn't know that it is still on its way
            return None, Failed()
        if not isinstance(request, Sending):
            reply = self.attempt(request)
        elif left := [partition for partition, queue in request.queues.items() if queue]:
            partition = self.draw.choice(left)
            reply = self.attempt(lambda: request.deliver(partition))
        else:
            reply = None, None
        if lost < loss:
            return None, Failed()
        return reply if reply[1] is not None or not isinstance(request, Sending) or request.settle() else None

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
        self.broker.late = 0
        for partition in self.broker.partitions:
            self.broker.replicate(partition)
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
