"""What is durable in the simulated world: logs, local folders, snapshots, a transactional target.

An append isn't in the log when ``send`` returns. It lands later, in order, alone or with others; an
acknowledgement may get lost, so that everything not acknowledged lands again; and when its writer dies, any
prefix of what is in flight may still land, at once or long after.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.core.errors import TrimmedOffsetError
from headrace.core.ids import Offset
from headrace.protocol.record import ReaderPosition
from simulator.world import World

STEP = 10
"""Offsets aren't consecutive, as in a log of bytes: who counts with + 1 is found out."""

TORN = 0.2
"""How often a writer that dies with records in flight leaves half a record."""


LEAVES_HOLES = 0.3
"""How often a power cut loses records in the middle."""


class Reader(Protocol):
    """Somebody who sleeps until there is something to read."""

    def stir(self) -> None:
        """Wake up."""
        ...


class SimLog:
    """One partition: records, oldest kept offset, and who wants to know of each append."""

    ended = False

    def __init__(self, name: str, *, wakes: bool = True) -> None:
        self.name = name
        self.wakes = wakes
        self.oldest: Offset = 0
        self.held_until = 0.0
        self.watchers: list[Callable[[Offset, bytes], None]] = []
        self.trimmed: Callable[[], None] = lambda: None
        """Called when something has been given up."""
        self.end: Offset = 0
        """Behind the last record, or behind what a torn append left."""
        self.readers: dict[Reader, None] = {}
        """Who is woken by an append; a dict, as a set has no order to rely on."""
        self.synced: Offset = 0
        """What lies before it survives a power cut."""
        self._offsets: list[Offset] = []
        self._tears: set[Offset] = set()
        self._records: dict[Offset, bytes] = {}

    def append(self, payload: bytes) -> None:
        """A record lands."""
        offset = self.end
        self._offsets.append(offset)
        self._records[offset] = payload
        self.end = offset + STEP
        for watch in self.watchers:
            watch(offset, payload)
        for reader in self.readers:
            reader.stir()

    def read(self, offset: Offset) -> bytes:
        """The record at an offset."""
        if offset < self.oldest:
            raise TrimmedOffsetError(f"{self.name}: offset {offset} lies below {self.oldest}, the oldest kept")
        return self._records[offset]

    def tear(self, size: int) -> None:
        """An append breaks off: what it left is no record, and is stepped over."""
        self._tears.add(self.end)
        self.end += size

    def readable(self, offset: Offset) -> bool:
        """A record begins at an offset, or what a torn append left, or nothing yet."""
        return offset in self._records or offset in self._tears or offset == self.end

    def offsets(self, start: Offset, stop: Offset) -> list[Offset]:
        """Where records stand from ``start`` on, before ``stop``."""
        return self._offsets[bisect_left(self._offsets, start) : bisect_left(self._offsets, stop)]

    def first(self, start: Offset) -> Offset | None:
        """Where the first record from ``start`` on stands; None: there is none yet."""
        number = bisect_left(self._offsets, start)
        return self._offsets[number] if number < len(self._offsets) else None

    def sync(self) -> None:
        """All that is there is on the disk."""
        self.synced = self.end

    def lose(self, chance: random.Random) -> frozenset[Offset]:
        """The power was cut: lose what wasn't on the disk, or some of it. Answers which records are gone.

        What is cut off ends the log, maybe within a record. Where something is lost in the middle, nothing is read.
        """
        doubtful = self.offsets(max(self.synced, self.oldest), self.end)
        draw = chance.random()
        if draw < LEAVES_HOLES:
            lost = {offset for offset in doubtful if chance.random() < 0.4}
            self._tears |= lost
        else:
            kept = chance.choice((0, len(doubtful), chance.randint(0, len(doubtful))))
            lost = set(doubtful[kept:])
            if lost:
                self.end = min(lost)
                self._tears = {offset for offset in self._tears if offset < self.end}
        for offset in lost:
            del self._records[offset]
        if lost:
            self._offsets = [offset for offset in self._offsets if offset not in lost]
            if self.end in lost and chance.random() < TORN:
                self.tear(chance.randint(1, STEP - 1))
        self.sync()
        return frozenset(lost)

    def trim(self, before: Offset) -> None:
        """Give up what lies below."""
        self.oldest = max(self.oldest, before)
        self.trimmed()


class Channel:
    """One writer's way to one log: what is in flight, in order."""

    def __init__(self, world: World, log: SimLog, retry: float) -> None:
        self.log = log
        self.acknowledged: Offset = 0
        self._world = world
        self._retry = retry
        self.flying: list[bytes] = []
        """The records that aren't acknowledged."""
        self._landed = 0
        self._planned = False
        self._most: int | None = None

    def send(self, payload: bytes) -> None:
        """Hand a record over."""
        self.flying.append(payload)
        self._plan()

    def die(self) -> None:
        """The writer is gone: nothing of what is in flight lands, or a prefix, soon or late."""
        chance = self._world.chance
        waiting = len(self.flying) - self._landed
        self._most = 0 if chance.random() < 0.4 else chance.randint(0, waiting)
        if waiting and self._world.mishaps.random() < TORN:
            # It dies in the middle of a write: what lands of it, lands now, and its last record in part.
            self._most = self._world.mishaps.randrange(waiting)
            self._land()
            self.flying.clear()
            self.log.tear(self._world.mishaps.randint(1, STEP - 1))
            self._world.tell(self.log.name, "ends in half a record")
            return
        if chance.random() < 0.5:
            self._planned = True
            self._world.after(chance.random() * 300, self._land)

    def vanish(self) -> None:
        """The machine has lost its power: nothing lands any more."""
        self.flying.clear()
        self._landed, self._most = 0, 0

    def _plan(self) -> None:
        if not self._planned and self.flying:
            self._planned = True
            delay = self._world.chance.random() ** 3 * 4
            self._world.after(max(delay, self.log.held_until - self._world.now), self._land)

    def _land(self) -> None:
        self._planned = False
        waiting = len(self.flying) - self._landed
        if self._most is not None:
            waiting = min(waiting, self._most)
        chance = self._world.chance
        count = waiting if waiting < 2 or chance.random() < 0.5 else chance.randint(1, waiting)
        for payload in self.flying[self._landed : self._landed + count]:
            self.log.append(payload)
        self._landed += count
        if self._most is not None:
            self._most -= count
            if self._most <= 0:
                self.flying.clear()
                return
        if chance.random() < self._retry:
            self._landed = 0
        else:
            del self.flying[: self._landed]
            self._landed = 0
            self.acknowledged = self.log.end
        self._plan()


@dataclass
class Folder:
    """A task's local state on one host: what RocksDB would hold, and the lock of whoever has it open."""

    state: dict[Any, Any] = field(default_factory=dict)
    local: bytes | None = None
    owner: object | None = None
    cut: int = 0
    """How it is divided into files: compaction changes that."""
    before: deque[tuple[dict[Any, Any], bytes | None]] = field(default_factory=lambda: deque(maxlen=3))
    """What it was before the last writes, if a power cut may bring that back."""

    def wipe(self) -> None:
        """Everything is gone."""
        self.state.clear()
        self.local = None


class Target:
    """A foreign system with transactions: rows and the reader's position change together or not at all."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.position: bytes | None = None
        self.transactions = 0

    def load(self) -> tuple[int, ReaderPosition | None]:
        """Where to go on, and the number that a transaction has to name."""
        return self.transactions, ReaderPosition.decode(self.position) if self.position else None

    def store(self, expected: int, position: ReaderPosition, rows: list[int]) -> bool:
        """Commit, unless another transaction came in between."""
        if expected != self.transactions:
            return False
        self.transactions += 1
        self.position = position.encode()
        self.rows += rows
        return True
