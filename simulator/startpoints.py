"""Startpoints in the simulated world: the real book, fan-out and desk, and a user who writes at random moments.

The metadata store lets the user write in the middle of what the coordinator does, between its reading and its writing.
``moves`` judges all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.api.specs import Role
from headrace.coordinator.startpoints import StartpointService
from headrace.core.clock import Clock
from headrace.core.errors import FencedError, UsageError
from headrace.core.ids import SSP, TaskName
from headrace.life.changelogs import LastCommits as Committed
from headrace.life.inputs import AppInputs
from headrace.life.metadata import Change, MemoryMetadata, Version
from headrace.life.startpoints import StartpointBook, StartpointKey
from headrace.systems.startpoints import (
    End,
    EndOffset,
    EndTime,
    Outcome,
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from headrace.task.scope import TaskScope
from simulator.moves import Moves, Place
from simulator.sources import SourceLog
from simulator.storage import STEP
from simulator.world import Steps, World

if TYPE_CHECKING:
    from simulator.cluster import Cluster

APP = "app"
_OVERTAKES = 0.05
"""How often the user writes between the coordinator's look into the book and its writing."""

_DIES = 0.05
"""How often the coordinator dies when it has fanned out and has told nobody."""

_DOOMED = 0.4
"""How often a task dies that has something to apply."""


class SharedMetadata(MemoryMetadata):
    """A metadata store in which somebody else may write just before a write."""

    def __init__(self) -> None:
        super().__init__()
        self.before_write: Callable[[], None] = lambda: None

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        self.before_write()
        return super().write(namespace, changes)


class SimInputs(AppInputs):
    """The inputs of a simulated app: which tasks read a partition is known from their scopes."""

    readers: Mapping[tuple[str, int], tuple[str, ...]]

    @property
    @override
    def partitions(self) -> dict[tuple[str, int], tuple[str, ...]]:
        return dict(self.readers)


class SimClock(Clock):
    """The clock of user and coordinator."""

    def __init__(self, world: World) -> None:
        self._world = world

    @override
    def now_ms(self) -> int:
        return int(self._world.now)

    @override
    def monotonic_ms(self) -> float:
        return self._world.now


class SimStartpoints:
    """What the coordinator and its users have in common."""

    def __init__(self, world: World, moves: Moves) -> None:
        self.moves = moves
        self.metadata = SharedMetadata()
        self._clock = SimClock(world)
        self._inputs = SimInputs(app=APP, inputs=())
        object.__setattr__(self._inputs, "readers", moves.readers)
        self.book = StartpointBook(self.metadata, APP)
        moves.keep(StartpointBook(_Unseen(self.metadata), APP))

    def desk(self) -> StartpointService:
        """A new coordinator's."""
        return StartpointService(self.metadata, self._inputs, _unasked, self._clock)

    @contextmanager
    def fanning_out(self) -> Iterator[None]:
        """The coordinator fans out."""
        since = self.moves.written_so_far
        yield
        self.moves.fanned_out(since)

    @contextmanager
    def noting(self, task: str, outcome: Outcome) -> Iterator[None]:
        """The coordinator notes an outcome."""
        try:
            yield
        except FencedError:
            self.moves.refused(task, outcome)
            raise
        self.moves.noted(task, outcome)


class User:
    """Writes, deletes and applies startpoints; deletes those that can't be applied."""

    def __init__(self, cluster: Cluster, startpoints: SimStartpoints) -> None:
        self._world = cluster.world
        self._cluster = cluster
        self._moves = startpoints.moves
        self._book = startpoints.book
        self._busy = False
        self._last: StartpointKey | None = None
        self._count = 0
        startpoints.metadata.before_write = self._overtake

    def run(self) -> Steps:
        """Do something now and then until the faults are over."""
        chance, until = self._world.chance, self._cluster.settings.faults_until
        for _ in range(chance.choice((1, 2, 4, 8))):
            yield chance.random() * max(0.0, until - self._world.now) * 0.5
            if self._world.now >= until:
                break
            if chance.random() < 0.3:
                self.trim()
            if chance.random() < 0.85:
                self.write()
                if chance.random() < 0.5:
                    yield chance.choice((0.0, chance.random() * 20))
                    self.apply()
            else:
                self.delete()

    def write(self) -> None:
        """Write some startpoints at once; often for what the last one was for."""
        chance = self._world.chance
        partitions = sorted(self._moves.readers)
        points: dict[StartpointKey, Startpoint] = {}
        for stream, partition in chance.sample(partitions, min(len(partitions), chance.choice((1, 1, 1, 2)))):
            key = self._last
            if key is None or chance.random() < 0.6:
                task = chance.choice((None, chance.choice(self._moves.readers[stream, partition])))
                key = StartpointKey(stream, partition, task)
                if chance.random() < 0.02:
                    key = chance.choice((StartpointKey(stream, 99), StartpointKey(stream, partition, "nobody/0")))
            self._last = key
            points[key] = self._draw(key)
        with self._acting():
            self._book.write(points, int(self._world.now))
            self._world.tell("user", "writes " + "; ".join(f"{key} {point}" for key, point in points.items()))
            self._moves.wrote(points)

    def apply(self) -> None:
        """Have what is written applied now, if there is a coordinator."""
        cluster = self._cluster
        if not cluster.coordinator.up:
            return
        self._world.tell("user", "has startpoints applied")
        if self._world.now >= cluster.settings.faults_until:
            cluster.coordinator.apply()
            return
        if self._world.chance.random() < _DIES:
            cluster.coordinator.fan_out()
            cluster.crash_coordinator(self._world.chance.random() * 50)
        else:
            cluster.coordinator.apply()
        for key in self._moves.unapplied():
            if key.task is not None and self._world.chance.random() < _DOOMED:
                cluster.doom(TaskName.parse(key.task))

    def trim(self) -> None:
        """Give up the beginning of a source, but nothing that somebody will go on with."""
        name = self._world.chance.choice(sorted(self._moves.readers))
        log = self._moves.log_of(StartpointKey(*name))
        if log is not None:
            most = self._moves.needed(name) - log.oldest + STEP - 1
            log.oldest += int(self._world.chance.random() * most) // STEP * STEP
            self._world.tell("user", f"gives up {name} before {log.oldest}")

    def delete(self) -> None:
        """Delete one that isn't done with, if that is allowed."""
        states = self._book.states()
        if states:
            key = self._world.chance.choice(states).key
            self._delete(lambda other: other == key)

    def delete_failed(self) -> None:
        """Delete what keeps the app from running."""
        failed = {
            state.key for state in self._book.states() if state.state == "failed" and state.generation is not None
        }
        if failed and self._world.chance.random() < 0.8:
            self._delete(lambda key: key in failed)

    def _delete(self, wanted: Callable[[StartpointKey], bool]) -> None:
        with self._acting():
            try:
                gone = self._book.delete(wanted, int(self._world.now), live=self._cluster.coordinator.up)
            except UsageError as error:
                self._world.tell("user", f"may not delete: {error.message}")
                return
            self._world.tell("user", f"deletes {gone}")
            self._moves.deleted(gone)

    def _draw(self, key: StartpointKey) -> Startpoint:
        chance, now = self._world.chance, int(self._world.now)
        self._count += 1
        name: dict[str, Any] = {"id": f"s{self._count}", "created_ms": now}
        if chance.random() < 0.4 and (end := self._draw_end(key)) is not None:
            name["until"] = end
        match chance.randrange(4):
            case 0:
                return StartpointOldest(**name)
            case 1:
                return StartpointUpcoming(**name)
            case 2:
                time_ms = now + 20 - int(chance.random() * (now + 20))
                return StartpointTimestamp(time_ms=time_ms, **name)
        there = self._there(key)
        offset = chance.choice(there)
        if chance.random() < 0.05:
            offset = chance.choice((offset + 1, there[-1] + 5 * STEP, there[0] - STEP))
        return StartpointSpecific(offset=offset, **name)

    def _draw_end(self, key: StartpointKey) -> End | None:
        """Where a startpoint ends; None if nothing is there that it could end at."""
        chance, now = self._world.chance, int(self._world.now)
        if chance.random() < 0.3:
            return EndTime(time_ms=now - int(chance.random() * now * 0.5))
        there = self._there(key)[1:]
        return EndOffset(offset=chance.choice(there[-8:])) if there else None

    def _there(self, key: StartpointKey) -> list[int]:
        """Where frames begin now, and the end."""
        log = self._moves.log_of(key)
        return [*range(log.oldest, log.end + 1, STEP)] if log is not None else [0]

    def _overtake(self) -> None:
        if not self._busy and self._world.chance.random() < _OVERTAKES:
            self._moves.counts["overtaken"] += 1
            self.write()

    @contextmanager
    def _acting(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


def readers(scopes: Mapping[TaskName, TaskScope]) -> dict[tuple[str, int], tuple[str, ...]]:
    """The tasks that read each source partition, by the name under which they keep their positions in it."""
    found: dict[tuple[str, int], tuple[str, ...]] = {}
    for name, scope in scopes.items():
        for ssp, spec in scope.inputs.items():
            if spec.role is Role.SOURCE:
                at = scope.position_name(ssp), ssp.partition
                found[at] = (*found.get(at, ()), str(name))
    return found


def moved(cluster: Cluster, message_at: Callable[[SSP, SourceLog, int], int]) -> User:
    """Let there be startpoints in a cluster whose sources exist, and whose coordinator hasn't begun."""
    moves = Moves(cluster.world, cluster.oracle.fail, readers(cluster.scopes))
    for scope in cluster.scopes.values():
        for ssp, spec in scope.inputs.items():
            if spec.role is Role.SOURCE:
                log = cluster.sources[ssp]
                moves.place(
                    (scope.position_name(ssp), ssp.partition),
                    Place(ssp, log, lambda offset, ssp=ssp, log=log: message_at(ssp, log, offset), log.oldest),  # type: ignore[misc]
                )
    cluster.oracle.moves = moves
    startpoints = SimStartpoints(cluster.world, moves)
    cluster.coordinator.serve(startpoints)
    return User(cluster, startpoints)


class _Unseen(MemoryMetadata):
    """The same store, for the judge: nobody writes before it looks."""

    def __init__(self, shared: MemoryMetadata) -> None:
        super().__init__()
        self._entries = shared._entries


def _unasked() -> Committed:
    raise AssertionError("nobody asks what is committed")
