"""Where tasks run: hosts with local folders, the metadata store, and a coordinator that may die.

The coordinator notices the dead, sometimes believes the living dead, and places replacements. Generations, who
is current and what is over live in the metadata store and change by compare-and-set; all else may be lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.checkpoint.record import LocalCheckpoint
from headrace.core.errors import FrameError
from headrace.core.ids import SSP, Offset, TaskName
from simulator.oracle import Oracle
from simulator.shapes import Shape, TaskShape
from simulator.storage import Channel, Folder, SimLog, SimSnapshot
from simulator.world import Actor, Steps, World


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


@dataclass(frozen=True)
class SimAssignment:
    """What the metadata store holds of a task."""

    generation: int = 0
    incarnation: int = 0
    over: bool = False


@dataclass
class Metadata:
    """A store with compare-and-set."""

    tasks: dict[TaskName, SimAssignment] = field(default_factory=dict)

    def read(self, task: TaskName) -> SimAssignment:
        """What is known."""
        return self.tasks.get(task, SimAssignment())

    def swap(self, task: TaskName, expected: SimAssignment, new: SimAssignment) -> bool:
        """Set, if nothing has changed since it was read."""
        if self.read(task) != expected:
            return False
        self.tasks[task] = new
        return True


class Incarnation:
    """One life of a task: what dies with it, and what is known of it from outside."""

    def __init__(self, cluster: Cluster, shape: TaskShape, number: int, host: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.shape = shape
        self.number = number
        self.host = host
        self.name = f"{shape.name}~{number}"
        self.skew = cluster.draw_skew()
        self.channels: dict[SimLog, Channel] = {}
        self.folder: Folder | None = None
        self.disk_fails = False
        self.actor: Actor

    def run(self) -> Steps:
        """The life."""
        raise NotImplementedError

    def status(self) -> str:
        """Where it stands, for a run that hangs."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """It still takes steps."""
        return self.actor.alive

    def channel(self, log: SimLog) -> Channel:
        """The way to a log."""
        if log not in self.channels:
            self.channels[log] = Channel(self.world, log, self.cluster.settings.retry)
        return self.channels[log]

    def die(self) -> None:
        """Stop at once; what is in flight is left to chance."""
        self.actor.kill()
        for channel in self.channels.values():
            channel.die()
        self.release()

    def release(self) -> None:
        """Give the folder's lock back."""
        if self.folder is not None and self.folder.owner is self:
            self.folder.owner = None


SourceMessage = tuple[int, int, int, float]
"""Id, key, event time, and when it arrives."""

Placing = Callable[["Cluster", TaskShape, int, int], Incarnation]


class Cluster:
    """All that tasks share."""

    def __init__(self, world: World, shape: Shape, settings: RunSettings, oracle: Oracle, placing: Placing) -> None:
        self.world = world
        self.shape = shape
        self.settings = settings
        self.oracle = oracle
        self.tasks = shape.tasks()
        self.metadata = Metadata()
        self.coordinator_up = True
        self.coordinator_term = 0
        self.current: dict[TaskName, Incarnation] = {}
        self.incarnations: list[Incarnation] = []
        self.folders: list[dict[TaskName, Folder]] = [{} for _ in range(settings.hosts)]
        self.snapshots: dict[TaskName, list[SimSnapshot]] = defaultdict(list)
        self.changelogs = {task.name: SimLog(f"changelog {task.name}") for task in self.tasks}
        self.logs: dict[SSP, SimLog] = {ssp: SimLog(str(ssp)) for task in self.tasks for ssp in _outputs(task)}
        self.reported: dict[SSP, dict[TaskName, Offset | None]] = {
            ssp: {task.name: None for task in self.tasks if ssp in task.inputs} for ssp in self.logs
        }
        self.sources: dict[SSP, list[SourceMessage]] = {}
        self._messages = 0
        self.draw_sources()
        self._placing = placing
        self._suspected: set[int] = set()
        for ssp, log in self.logs.items():
            oracle.watch_stream(ssp, log)
        for task, log in self.changelogs.items():
            oracle.watch_changelog(task, log)

    # -- messages ----------------------------------------------------------------------------------------

    def new_message(self) -> int:
        """A fresh id."""
        self._messages += 1
        return self._messages

    def source_ready(self, ssp: SSP, position: int) -> bool:
        """There is a message now; or its end, which counts as one."""
        messages = self.sources[ssp]
        if position >= len(messages):
            return position == len(messages) and ssp.stream.name in self.settings.sealed
        return messages[position][3] <= self.world.now

    @property
    def sources_read(self) -> bool:
        """All source messages have been there for the taking."""
        return all(messages[-1][3] <= self.world.now for messages in self.sources.values())

    def draw_sources(self) -> None:
        """Make up what the sources hold, and tell the oracle."""
        chance = self.world.chance
        for task in self.tasks:
            for ssp in task.sources:
                count = chance.randint(4, 12)
                times = sorted(chance.random() * self.settings.faults_until for _ in range(count))
                self.sources[ssp] = [
                    (self.new_message(), chance.randrange(3), 8 * i + chance.randrange(5), at)
                    for i, at in enumerate(times)
                ]
                for message, key, _, _ in self.sources[ssp]:
                    self.oracle.source(task.stage.name, message, key)

    def draw_skew(self) -> float:
        """How far a new incarnation's clock is off."""
        skew = self.settings.skew_ms
        return self.world.chance.uniform(-skew, skew)

    # -- the coordinator ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Place everything for the first time."""
        for task in self.tasks:
            self.place(task)
        self.world.spawn("coordinator", self._watch())

    def _watch(self) -> Steps:
        while True:
            if self.coordinator_up:
                for task in self.tasks:
                    current = self.current[task.name]
                    if self.metadata.read(task.name).over:
                        continue
                    if not current.alive or current.number in self._suspected:
                        self.place(task)
            yield 5 + self.world.chance.random() * 15

    def suspect(self, incarnation: Incarnation) -> None:
        """Take a living incarnation for dead."""
        self._suspected.add(incarnation.number)

    def place(self, task: TaskShape) -> Incarnation:
        """Start a new incarnation, on the same host or another, and make it the current one."""
        chance = self.world.chance
        before = self.current.get(task.name)
        host = before.host if before and chance.random() < 0.6 else chance.randrange(len(self.folders))
        number = len(self.incarnations) + 1
        known = self.metadata.read(task.name)
        self.metadata.swap(task.name, known, replace(known, incarnation=number))
        incarnation = self._placing(self, task, number, host)
        self.incarnations.append(incarnation)
        self.current[task.name] = incarnation
        incarnation.actor = self.world.spawn(incarnation.name, incarnation.run())
        if self.world.story is not None:
            self.world.tell(incarnation.name, f"placed on host {host}, clock {incarnation.skew:+.0f} ms")
        return incarnation

    def generation(self, incarnation: Incarnation) -> Generator[float, None, int | None]:
        """Get a generation; None: refused, another incarnation is current."""
        task, chance = incarnation.shape.name, self.world.chance
        while True:
            while not self.coordinator_up:
                yield 5.0
            term, known = self.coordinator_term, self.metadata.read(task)
            if known.incarnation != incarnation.number:
                return None
            yield chance.random()
            issued = self.issue(task, known)
            yield chance.random()
            if issued is not None and term == self.coordinator_term:
                return issued

    def issue(self, task: TaskName, known: SimAssignment) -> int | None:
        """The next generation by compare-and-set; None: somebody else was faster."""
        new = replace(known, generation=known.generation + 1)
        return new.generation if self.metadata.swap(task, known, new) else None

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """Further faults of this cluster, and how often they occur."""
        return []

    def heal(self) -> None:
        """Nothing goes wrong any more."""

    def crash_coordinator(self, ms: float) -> None:
        """Lose the coordinator; another one begins after a while, and what was asked of the first has no answer.

        Sometimes the first continues to run, as a second driver would, and places a running task again.
        """
        self.coordinator_up = False
        self.coordinator_term += 1
        self._suspected.clear()
        self.world.tell("coordinator", f"crashes for {ms:.0f} ms")

        def back() -> None:
            self.coordinator_up = True
            task = self.world.chance.choice(self.tasks)
            if self.world.chance.random() < 0.4 and not self.metadata.read(task.name).over:
                self.place(task)

        self.world.after(ms, back)

    def close(self) -> None:
        """The run is over: whoever still lives lets go what it holds."""
        for incarnation in self.incarnations:
            incarnation.release()

    # -- what tasks leave here ----------------------------------------------------------------------------

    def over(self, task: TaskName) -> None:
        """A task will never run again."""
        known = self.metadata.read(task)
        self.metadata.swap(task, known, replace(known, over=True))

    @property
    def all_over(self) -> bool:
        """The app has ended."""
        return all(self.metadata.read(task.name).over for task in self.tasks)

    def check_copies(self) -> None:
        """Folders and snapshots hold what they claim."""
        for host in self.folders:
            for task, folder in host.items():
                self._check_copy(task, "folder", folder.state, folder.local)
        for task, snapshots in self.snapshots.items():
            for snapshot in snapshots:
                self._check_copy(task, "snapshot", snapshot.state, snapshot.local.encode())

    def _check_copy(self, task: TaskName, what: str, state: dict[Any, Any], local: bytes | None) -> None:
        if local is not None:
            with suppress(FrameError):
                self.oracle.check_copy(task, what, state, LocalCheckpoint.decode(local))

    def open_folder(self, incarnation: Incarnation) -> Folder:
        """The task's folder on the incarnation's host, locked; a fresh one when a living zombie holds it."""
        folders, task = self.folders[incarnation.host], incarnation.shape.name
        folder = folders.setdefault(task, Folder())
        if folder.owner is not None and folder.owner is not incarnation:
            self.world.tell(incarnation.name, "finds its folder locked, takes a fresh one")
            folder = Folder()
        folder.owner = incarnation
        incarnation.folder = folder
        return folder

    def report(self, task: TaskName, inputs: tuple[tuple[SSP, Offset | None], ...]) -> None:
        """Publish positions; what all readers of a partition have passed is trimmed at times."""
        for ssp, offset in inputs:
            known = self.reported[ssp]
            known[task] = offset
            if self.settings.trims and None not in known.values() and self.world.chance.random() < 0.3:
                self.logs[ssp].trim(min(o for o in known.values() if o is not None))


def _outputs(task: TaskShape) -> list[SSP]:
    return [SSP(stream, partition) for stream, count in task.outputs.items() for partition in range(count)]
