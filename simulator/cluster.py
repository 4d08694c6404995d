"""Where tasks run: hosts with local folders, logs, sources and targets, and who places containers.

The coordinator (``coordinator``) decides who is current. Here the dead are noticed, sometimes the living are taken for
dead, and replacements are placed: what Spark does, and its executors' heartbeats.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.api.specs import Durability, Settings
from headrace.core.errors import FencedError, FrameError
from headrace.core.frame import Header, Kind, body_of, encode
from headrace.core.ids import SSP, Offset, StreamId, TaskName
from headrace.protocol import instructions as do
from headrace.protocol.record import LocalCheckpoint
from headrace.systems.registry import SystemSpec
from headrace.task.connections import Connections
from headrace.task.host.attempt import Factories
from headrace.task.inputs.chooser import MEMORY_BYTES_MAX
from headrace.task.scope import TaskScope
from simulator.bare import BareIntakes, bare_scopes
from simulator.journal import Journal, WatchedMachine
from simulator.message import decode_message, encode_message
from simulator.objects import Objects
from simulator.oracle import Oracle
from simulator.power import Power
from simulator.shapes import Shape, TaskShape
from simulator.sources import ForeignApp, SourceLog
from simulator.startpoints import moved
from simulator.storage import Folder, SimLog
from simulator.systems import Log, RowTarget, SimAdmin
from simulator.world import Actor, Steps, World

if TYPE_CHECKING:
    from simulator.container import SimContainer
    from simulator.kinesis import SimStream
    from simulator.run import Parts

_DOOMS = (
    do.Resume,
    do.Feed,
    do.Finish,
    do.FlushOutputs,
    do.AppendChanges,
    do.AppendCommit,
    do.AppendCommit,
    do.ReadChangelog,
    do.WriteLocal,
    do.Report,
)

_DOOMS_OF_MOVES = (*_DOOMS, do.Resume, do.SendControl, do.ScanAhead, do.ReleaseOrders, do.ReleaseOrders)

_FOREIGN = 4711
"""A producer that isn't of the app."""


@dataclass(frozen=True)
class RunSettings:
    """What a run is like; drawn from its seed. ``sealed`` names the stages whose sources end."""

    interval_ms: int = 30
    exactly_once: bool = True
    sealed: frozenset[str] = frozenset()
    retry: float = 0.05
    skew_ms: int = 0
    hosts: int = 2
    faults: int = 5
    faults_until: float = 300.0
    trims: bool = True
    crowding: float = 0.0
    """How many of the containers that there could be are left out: their tasks share those that are left."""
    objects: bool = False
    """Snapshots are in an object store, and hosts have no disk in common."""
    power_fails: bool = False
    """All of it is on one machine, whose power is cut at times."""
    durability: Durability = "commit"
    early_bytes: tuple[int, ...] = (MEMORY_BYTES_MAX,)
    """How many bytes of early frames tasks keep in memory: each one of these."""
    patience_ms: float = math.inf
    """How long tasks wait for upstream tasks that are late."""
    ends_late: bool = False
    """No source ends before the faults are over."""


class Cluster:
    """All that containers share."""

    supervisor: Actor
    objects: Objects | None = None
    """The store of snapshots, if there is one."""
    power: Power | None = None
    """The power, if it may fail."""

    def __init__(self, world: World, shape: Shape, settings: RunSettings, oracle: Oracle, parts: Parts) -> None:
        self.world = world
        self.shape = shape
        self.settings = settings
        self.oracle = oracle
        oracle.impatient = self.impatient
        self.parts = parts
        self.tasks = shape.tasks()
        self.scopes = self.make_scopes()
        self.disks: list[dict[Path, Folder]] = [{} for _ in range(settings.hosts)]
        self.shared: dict[Path, Folder] = {}
        """Snapshots, which every host can reach."""
        self.files: dict[Path, bytes] = {}
        """The commits in savepoints; their databases are with the snapshots."""
        self.targets: dict[StreamId, RowTarget] = {}
        self.skews: dict[int, float] = {}
        self.vacant: dict[int, float] = {}
        """By seat until when nobody takes it."""
        """How far the clocks of the next incarnations at these seats are off; those of others are drawn."""
        self.doomed: dict[TaskName, type] = {}
        """Tasks whose process dies before the next instruction of a kind."""
        self.logs: dict[SSP, SimLog] = {ssp: SimLog(str(ssp)) for task in self.tasks for ssp in outputs_of(task)}
        self.changelogs = {task.name: SimLog(f"changelog {task.name}", wakes=False) for task in self.tasks}
        self.sources: dict[SSP, SourceLog] = {}
        self._messages = 0
        self.draw_sources()
        self.partitions: dict[SSP, Log] = {**self.logs, **self.sources}
        self.partitions |= {self.changelog_of(name): log for name, log in self.changelogs.items()}
        slots = {stream.plan.spec.stream.name: stream.plan.partitions for stream in self.slotted}
        self.admin = SimAdmin(self.partitions, {}, slots)
        self.admin.mishaps = world.mishaps
        self._shapes = {task.name: task for task in self.tasks}
        self._folders = {f"{name.stage}-{name.number}": name for name in self._shapes}
        self.coordinator = parts.coordinator(world)
        self.deal()
        self.user = moved(self, self.message_at) if shape.moved else None
        self.current: dict[int, SimContainer] = {}
        self.staff()
        self.coordinator.begin()
        self.containers: list[SimContainer] = []
        self._suspected: set[int] = set()
        for ssp, log in self.logs.items():
            oracle.watch_stream(ssp, log)
        for task, log in self.changelogs.items():
            oracle.watch_changelog(task, log)
        if settings.objects:
            self.objects = Objects(self)
        if settings.power_fails:
            self.power = Power(self)

    @property
    def slotted(self) -> Collection[SimStream]:
        """The sources whose partitions are slots."""
        return ()

    @property
    def impatient(self) -> bool:
        """Tasks don't wait long for upstream tasks that are late."""
        return self.settings.patience_ms < math.inf

    # -- what an app is made of --------------------------------------------------------------------------

    def make_scopes(self) -> dict[TaskName, TaskScope]:
        """The tasks as their hosts see them."""
        guarantee = "exactly_once" if self.settings.exactly_once else "at_least_once"
        settings = Settings(
            home="sim",
            checkpoint_interval_ms=self.settings.interval_ms,
            guarantee=guarantee,  # type: ignore[arg-type]
            durability=self.settings.durability,
            internal=SystemSpec("sim", "log"),
        )
        return bare_scopes(self.shape, self.tasks, settings)

    def changelog_of(self, task: TaskName) -> SSP:
        """Where the changelog of a task is."""
        return self.scopes[task].changelog[0]

    def factories(
        self, scope: TaskScope, journal: Journal, machine: WatchedMachine, connections: Connections
    ) -> Factories:
        """What the attempts of a task are made of."""
        return Factories(
            task=lambda port, metrics, calls: self.parts.bare(scope, metrics, journal, machine, connections),
            intakes=lambda task, letters, metrics: BareIntakes(task, journal),
        )

    def shape_of(self, task: TaskName) -> TaskShape:
        """The shape of a task."""
        return self._shapes[task]

    def deal(self) -> None:
        """Let the coordinator deal what is dealt while an app runs."""

    # -- messages ----------------------------------------------------------------------------------------

    def new_message(self) -> int:
        """A fresh id."""
        self._messages += 1
        return self._messages

    @property
    def sources_read(self) -> bool:
        """All source messages have been there for the taking."""
        return all(log.arrived for log in self.sources.values())

    def draw_sources(self) -> None:
        """Make up what the sources hold, and tell the oracle."""
        chance = self.world.chance
        for task in self.tasks:
            for ssp in task.sources:
                if ssp in self.sources:  # all tasks of the stage read it
                    continue
                messages = [
                    (self.new_message(), chance.randrange(3), 8 * i + chance.randrange(5))
                    for i in range(chance.randint(4, 12))
                ]
                frames, committed = self._written(messages)
                for message, key, _ in messages:
                    if message in committed:
                        self.oracle.source(task.stage.name, message, key)
                times = sorted(chance.random() * self.settings.faults_until for _ in frames)
                ends_at = self.end_of(times[-1]) if task.stage.name in self.settings.sealed else None
                self.sources[ssp] = log = SourceLog(self.world, frames, times, 0, ends_at)
                log.kept = len(frames) != len(messages)

    def end_of(self, last: float) -> float:
        """When a source ends whose last frame comes then. Mostly later if positions move: then they can't any more."""
        settings = self.settings
        if not self.shape.moved or self.world.chance.random() < 0.1:
            return last
        return settings.faults_until + 10 * settings.interval_ms

    def message_at(self, ssp: SSP, log: SourceLog, offset: Offset) -> int:
        """The id of the message in a frame of a source."""
        return decode_message(body_of(log.read(offset)))[0]

    def _written(self, messages: list[tuple[int, int, int]]) -> tuple[list[bytes], set[int]]:
        """The frames of a source, and which messages count: often all, or another exactly-once app has written it."""
        if self.world.chance.random() < 0.6:
            frames = [encode(Header(Kind.USER), encode_message(*message)) for message in messages]
            return frames, {message for message, _, _ in messages}
        app = ForeignApp(self.world.chance, _FOREIGN)
        for message in messages:
            app.write(message[0], encode_message(*message))
        app.end()
        return app.frames, set(app.committed)

    def draw_skew(self, seat: int) -> float:
        """How far a new incarnation's clock is off."""
        skew = self.settings.skew_ms
        drawn = self.world.chance.uniform(-skew, skew)
        return self.skews.pop(seat, drawn)

    # -- placing -----------------------------------------------------------------------------------------

    def staff(self) -> None:
        """Have as many containers as the tasks that there are now call for."""
        stages: dict[str, list[TaskName]] = {}
        for name in self.scopes:
            stages.setdefault(name.stage, []).append(name)
        self.seats = max(1, round(len(self.scopes) * (1 - self.settings.crowding)))
        self.coordinator.assign(stages, self.seats)
        self.current = {seat: container for seat, container in self.current.items() if seat < self.seats}

    def start(self) -> None:
        """Place everything for the first time."""
        for seat in range(self.seats):
            self.place(seat)
        self.watch()
        if self.user is not None:
            self.world.spawn("user", self.user.run())

    def watch(self) -> None:
        """Begin to notice who dies."""
        self.supervisor = self.world.spawn("supervisor", self._watch())

    def _watch(self) -> Steps:
        coordinator = self.coordinator
        while True:
            if coordinator.up:
                self.pass_on_orders()
                coordinator.ledger.tick(self.world.now)
                if coordinator.ledger.state == "failed":
                    self.world.tell("coordinator", "the app failed too often in a row, and is started again")
                    self.restart()
                elif coordinator.draining and coordinator.ledger.state == "finished":
                    self.restart()
                for seat in range(self.seats):
                    vacant = self.world.now < self.vacant.get(seat, 0.0)
                    if coordinator.left(seat) and self._is_gone(self.current[seat]) and not vacant:
                        self.place(seat)
            yield 5 + self.world.chance.random() * 15

    def _is_gone(self, container: SimContainer) -> bool:
        lost = self.coordinator.ledger.state_of(container.seat) == "lost" and self.coordinator.is_current(container)
        return not container.alive or lost or container.number in self._suspected

    def pass_on_orders(self) -> None:
        """Containers that aren't frozen give a sign of life, and get their orders. Zombies are out of touch."""
        for container in self.current.values():
            if container.alive and not container.actor.paused and self.coordinator.is_current(container):
                self.send_heartbeat(container)

    def send_heartbeat(self, container: SimContainer) -> None:
        """A container gives a sign of life and gets its orders."""
        with suppress(FencedError):
            container.obey(self.coordinator.heartbeat(self.coordinator.sign_of_life(container)))

    def commits(self, container: SimContainer, task: TaskName) -> None:
        """A container has sent the record of a commit, and waits for it to land."""

    def restart(self) -> None:
        """A new run of the app: a new driver, or the same one again after a drain."""
        if self.user is not None:
            self.user.delete_failed()
        self.coordinator.begin()
        for seat in range(self.seats):
            self.place(seat)

    def suspect(self, container: SimContainer) -> None:
        """Take a living incarnation for dead."""
        self._suspected.add(container.number)

    def place(self, seat: int) -> SimContainer:
        """Start a new incarnation, on the same host or another."""
        chance = self.world.chance
        before = self.current.get(seat)
        host = before.host if before and chance.random() < 0.6 else chance.randrange(len(self.disks))
        attempt = before.attempt + 1 if before and before.term == self.coordinator.term else 0
        container = self.parts.container(self, seat, attempt, len(self.containers) + 1, host)
        self.containers.append(container)
        self.current[seat] = container
        container.actor = self.world.spawn(container.name, container.run())
        if self.world.story is not None:
            container.tell(f"placed on host {host}, clock {container.skew:+.0f} ms")
        return container

    # -- what goes wrong ---------------------------------------------------------------------------------

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """What else can go wrong with this cluster, and how often."""
        found: list[tuple[float, Callable[[], None]]] = [
            (3, self._doom),
            *([(2, self._disturb_admin)] if self.shape.moved else []),
        ]
        if self.power is not None:
            found += self.power.faults()
        return found if self.objects is None else [*found, *self.objects.faults()]

    def lose_sources(self, chance: random.Random) -> None:
        """The power was cut: sources lose messages that weren't on the disk. They never existed, then."""
        for log in self.sources.values():
            if log.kept:
                continue
            messages = [decode_message(body_of(log.read(at)))[0] for at in log.all_offsets]
            lost = log.lose(chance)
            self.oracle.unmade(messages[number] for number in lost)

    def _disturb_admin(self) -> None:
        """Who asks how far sources go gets no answer for a while."""
        self.admin.failing = 0.7
        self.world.after(self.world.chance.random() * 60, self._soothe_admin)

    def _soothe_admin(self) -> None:
        self.admin.failing = 0.0

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self._soothe_admin()
        self.vacant.clear()
        if self.power is not None:
            self.power.calm()
        if self.objects is not None:
            self.objects.heal()
        self.doomed.clear()
        if not self.coordinator.up:
            self.restart()
        if self.user is not None:
            self.user.apply()

    def _doom(self) -> None:
        self.doom(self.world.chance.choice(self.tasks).name)

    def doom(self, task: TaskName) -> None:
        """A task dies at the next instruction of a kind: most of them take no time, and chance would miss them."""
        self.doomed[task] = self.world.chance.choice(_DOOMS_OF_MOVES if self.shape.moved else _DOOMS)
        self.world.tell("faults", f"the next {self.doomed[task].__name__} of {task} won't be performed")

    def crash_coordinator(self, ms: float) -> None:
        """Lose the driver; another one begins after a while. Some of its containers die with it, others live on."""
        self.coordinator.crash()
        term = self.coordinator.term
        self._suspected.clear()
        self.world.tell("coordinator", f"crashes for {ms:.0f} ms")
        for container in self.containers:
            if container.alive and self.world.chance.random() < 0.4:
                container.die()

        def back() -> None:
            if self.coordinator.term == term:
                self.restart()

        self.world.after(ms, back)

    def drain(self) -> None:
        """Have all containers commit and end; then the app is started again."""
        if self.coordinator.up and self.coordinator.ledger.state != "finished":
            self.world.tell("coordinator", "drains the app")
            self.coordinator.draining = True
            self.coordinator.ledger.drain()

    def close(self) -> None:
        """End the run: processes that still live let go of what they hold."""
        for container in self.containers:
            container.release()

    # -- what tasks leave here ----------------------------------------------------------------------------

    @property
    def all_over(self) -> bool:
        """The app has ended."""
        return self.coordinator.finished

    def shared_with(self, host: int) -> dict[Path, Folder]:
        """The snapshots that a host can reach."""
        return self.shared if self.objects is None else self.objects.snapshots[host]

    def stored(self, folder: str, local: LocalCheckpoint) -> None:
        """A commit was written to a local folder, or to one that stands in for it."""
        self.oracle.stored(self._shapes[self._folders[folder.split(".", maxsplit=1)[0]]], local)

    def check_copies(self) -> None:
        """Folders and snapshots hold what they claim."""
        for host in self.disks:
            for path, folder in host.items():
                self._check_copy(path.name.split(".")[0], "folder", folder)
        for shared in [self.shared] if self.objects is None else self.objects.snapshots:
            for path, folder in shared.items():
                self._check_copy(path.parent.name, "snapshot", folder)
        if self.objects is not None:
            for task in self.changelogs:
                for _, folder in self.objects.complete(task):
                    self._check_copy(f"{task.stage}-{task.number}", "snapshot in the store", folder)

    def _check_copy(self, task: str, what: str, folder: Folder) -> None:
        if folder.local is not None:
            with suppress(FrameError):
                local = LocalCheckpoint.decode(folder.local)
                self.oracle.check_copy(self._folders[task], what, folder.state, local)


def outputs_of(task: TaskShape) -> list[SSP]:
    """The partitions that a task writes."""
    return [SSP(stream, partition) for stream, count in task.outputs.items() for partition in range(count)]
