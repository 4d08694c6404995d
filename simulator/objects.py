"""A store of snapshots: local folders and snapshots are lost with their host, and what a task needs is in the store.

Each call to the store takes a while, and may fail: before it has had any effect, after that, or long before it has.
Sending and fetching go on beside the run loop, for as long as the process lives, also when it was replaced long ago.

After each loss it is checked that a trimmed changelog can still be read from two snapshots.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from headrace.core.errors import HeadraceError, StorageError, UnavailableError
from headrace.core.ids import TaskName
from headrace.stores.snapshots import SNAPSHOTS_KEPT, Chunks, Manifest, ObjectStore, manifest_names
from headrace.stores.transfer import AGAIN_MS, Calls, Job, SnapshotFile, Waiting, Work
from headrace.task.naming import remote_folder
from headrace.task.state.depot import Depot
from simulator.storage import Folder
from simulator.world import Actor, Steps, World

if TYPE_CHECKING:
    from simulator.cluster import Cluster
    from simulator.container import SimContainer

T = TypeVar("T")
_PARTS = 4
"""Of how many files a snapshot consists, apart from the commit that it holds."""
_LOCAL = "LOCAL"
_HURRY = 200
"""Real pauses between tries are so many times as long."""


class MemoryObjects(ObjectStore):
    """Objects in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    @override
    def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = data
        return True

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        self.objects[name] = b"".join(chunks())

    @override
    def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        data = self.objects.get(name)
        return None if data is None else data[start : start + length]

    @override
    def list(self, prefix: str) -> dict[str, int]:
        return {name: len(data) for name, data in sorted(self.objects.items()) if name.startswith(prefix)}

    @override
    def copy(self, source: str, target: str) -> bool:
        if source not in self.objects:
            return False
        self.objects[target] = self.objects[source]
        return True

    @override
    def delete(self, names: Collection[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


# All that is in the store is looked at again whenever something changes in it.
_decoded = lru_cache(4096)(Manifest.decode)


@lru_cache(4096)
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files_of(folder: Folder) -> list[SnapshotFile]:
    """A snapshot as files, of which most stay the same when little changes."""
    parts: list[list[tuple[Any, Any]]] = [[] for _ in range(_PARTS)]
    for key in sorted(folder.state, key=repr):
        parts[zlib.crc32(f"{folder.cut} {key!r}".encode()) % _PARTS].append((key, folder.state[key]))
    contents = {f"{number:06}.sst": pickle.dumps((folder.cut, part)) for number, part in enumerate(parts)}
    contents[_LOCAL] = pickle.dumps((folder.cut, folder.local))
    return [SnapshotFile(name, len(data), (name, data), partial(iter, [data])) for name, data in contents.items()]


def folder_of(files: dict[str, bytes]) -> Folder:
    """The snapshot that consists of these files."""
    cut, local = pickle.loads(files[_LOCAL])
    state = {key: value for name, data in files.items() if name != _LOCAL for key, value in pickle.loads(data)[1]}
    return Folder(state, local, cut=cut)


class WatchedObjects(MemoryObjects):
    """The store itself. ``changed`` is called when an object is new, has gone, or has become another one."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: Callable[[], None] = lambda: None
        self.tell: Callable[[str], None] = lambda what: None

    @override
    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        self.tell(f"has {name}" if created else f"had {name}")
        self.changed()
        return created

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        self.tell(f"gets {name}")
        before = self.objects.get(name)
        super().put(name, size, chunks)
        if before is not None and before != self.objects[name]:
            self.changed()

    @override
    def delete(self, names: Collection[str]) -> None:
        super().delete(names)
        self.tell(f"has no more {' '.join(names)}")
        self.changed()


class FarObjects(ObjectStore):
    """The store as a process reaches it."""

    def __init__(self, world: World, store: ObjectStore, chance: random.Random) -> None:
        self._world = world
        self._store = store
        self._chance = chance
        self.unreliable = chance.choice((0.0, 0.05, 0.2))
        self.down_until = 0.0

    @override
    def create(self, name: str, data: bytes) -> bool:
        return self._call(lambda: self._store.create(name, data))

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        data = b"".join(chunks())
        self._call(lambda: self._store.put(name, size, partial(iter, [data])))

    @override
    def get(self, name: str) -> bytes | None:
        return self._call(lambda: self._store.get(name))

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        return self._call(lambda: self._store.read(name, start, length))

    @override
    def list(self, prefix: str) -> dict[str, int]:
        return self._call(lambda: self._store.list(prefix))

    @override
    def copy(self, source: str, target: str) -> bool:
        return self._call(lambda: self._store.copy(source, target))

    @override
    def delete(self, names: Collection[str]) -> None:
        self._call(lambda: self._store.delete(names))

    def _call(self, call: Callable[[], T]) -> T:
        if self._world.now < self.down_until:
            raise UnavailableError("the store is away")
        if self._chance.random() >= self.unreliable:
            return call()
        fate = self._chance.random()
        if fate < 0.3:
            call()
        elif fate < 0.6:
            self._world.after(self._chance.random() ** 2 * 300, partial(_late, call))
        raise UnavailableError("an answer of the store was lost")


def _late(call: Callable[[], object]) -> None:
    call()


class SimDepot(Depot):
    """What one process does with the store beside its run loop."""

    at_once = 1

    def __init__(self, objects: Objects, container: SimContainer) -> None:
        self._objects = objects
        self._container = container
        self._world = objects.world
        self._chance = objects.chance
        self._waiting = Waiting()
        self._sender: Actor | None = None
        self._actors: list[Actor] = []
        self._delay = self._chance.choice((0.3, 2.0, 10.0, 60.0))
        """How long a call takes at most."""
        self._pauses = self._chance.random() < 0.3
        """It stands still when the run loop does: it may be the machine, or only a function of the app."""

    @override
    def calls(self, warn: Callable[[str], None]) -> Calls:
        return Calls(self._objects.far, warn, self._chance)

    @override
    def ring(self) -> None:
        self._container.heard()
        self._container.ring()

    @override
    def send(self, job: Job) -> None:
        self._waiting.offer(job)
        if self._sender is None:
            self._sender = self._spawn("sends", self._send_all())

    @override
    def fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> None:
        self._spawn("fetches", self._fetch(steps, failed))

    @override
    def together(self, works: Sequence[Work[T]]) -> Work[Sequence[T]]:
        answers = []
        for work in works:
            answers.append((yield from work))
        return answers

    def close(self) -> None:
        """The process is gone."""
        for actor in self._actors:
            actor.kill()

    def _spawn(self, what: str, steps: Steps) -> Actor:
        actor = self._world.spawn(f"{self._container.name} {what}", steps)
        self._actors.append(actor)
        return actor

    def _send_all(self) -> Steps:
        while True:
            job = self._waiting.take(self._world.now)
            if job is None:
                yield 1.0 + self._chance.random() * 2
                continue
            try:
                yield from self._doing(job.steps())
            except StorageError as error:
                job.warn(f"a snapshot can't be sent: {error.message}")
                job.dropped()
            except HeadraceError as error:
                job.warn(f"a snapshot can't be sent: {error.message}")
                self._waiting.failed(job, self._world.now - AGAIN_MS * (1 - 1 / (10 * _HURRY)))

    def _fetch(self, steps: Work[None], failed: Callable[[Exception], None]) -> Steps:
        try:
            yield from self._doing(steps)
        except HeadraceError as error:
            failed(error)
        self.ring()

    def _doing(self, steps: Work[None]) -> Steps:
        for wait_ms in steps:
            yield wait_ms / _HURRY + self._chance.random() ** 2 * self._delay
            while self._container.actor.paused and self._pauses:
                yield 5.0


class Objects:
    """The store of a cluster, and the snapshots that each host has on its disk."""

    def __init__(self, cluster: Cluster) -> None:
        self.world = cluster.world
        self.chance = random.Random(f"objects {self.world.seed}")
        self.store = WatchedObjects()
        self.far = FarObjects(self.world, self.store, self.chance)
        self.snapshots: list[dict[Path, Folder]] = [{} for _ in cluster.disks]
        self._cluster = cluster
        self.store.changed = self.check
        self.store.tell = partial(self.world.tell, "store")
        self._newest: dict[TaskName, int] = {}
        """The offset of the newest snapshot that was complete when its manifest was written."""
        for log in cluster.changelogs.values():
            log.trimmed = self.check

    def folder(self, task: TaskName) -> str:
        """A task's folder in the store."""
        scope = self._cluster.scopes[task]
        return remote_folder(scope.app, task, scope.settings.timeline)

    def complete(self, task: TaskName) -> Iterator[tuple[Manifest, Folder]]:
        """The complete snapshots of a task: all of their objects are there, and are what they should be."""
        for manifest, files in self._complete(task):
            yield manifest, folder_of(files)

    def _complete(self, task: TaskName) -> Iterator[tuple[Manifest, dict[str, bytes]]]:
        folder, objects = self.folder(task), self.store.objects
        for name in manifest_names(name.removeprefix(folder) for name in self.store.list(folder)):
            manifest = _decoded(objects[folder + name])
            files = {file.name: objects.get(folder + file.object, b"") for file in manifest.files}
            if all(_sha256(files[file.name]) == file.sha256 for file in manifest.files):
                yield manifest, files

    def check(self) -> None:
        """Each changelog that is trimmed can be read from two snapshots, and the newest snapshot stays complete."""
        for task, log in self._cluster.changelogs.items():
            offsets = sorted(manifest.offset for manifest, _ in self._complete(task))
            newest, before = max(offsets, default=-1), self._newest.get(task, -1)
            self._newest[task] = max(newest, before)
            if newest < before:
                self._cluster.oracle.fail(str(task), f"its newest snapshot, at {before}, isn't complete any more")
            if log.oldest and sum(offset >= log.oldest for offset in offsets) < SNAPSHOTS_KEPT:
                what = f"its changelog begins at {log.oldest}, and complete snapshots are at {offsets}"
                self._cluster.oracle.fail(str(task), what)

    def compacts(self) -> bool:
        """A database is divided into other files when a snapshot is taken."""
        return self.chance.random() < 0.3

    # -- what goes wrong

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """What can go wrong with it, and how often."""
        return [(12, self.lose_host), (2, self._go_away), (12, self._stand_still)]

    def lose_host(self) -> None:
        """A machine is lost with all that is on it."""
        host = self.chance.randrange(len(self.snapshots))
        self.world.tell("faults", f"host {host} is lost")
        for container in self._cluster.containers:
            if container.host == host and container.alive:
                container.die()
        self.snapshots[host].clear()
        for folder in self._cluster.disks[host].values():
            folder.wipe()

    def _stand_still(self) -> None:
        """A run loop does one thing for long. Its container is replaced, and goes on sending."""
        current = [one for one in self._cluster.current.values() if one.alive]
        if current:
            victim = self.chance.choice(current)
            self.world.tell(victim.name, "stands still, and is believed dead")
            victim.actor.pause(50 + self.chance.random() * 200)
            self._cluster.suspect(victim)

    def _go_away(self) -> None:
        ms = self.chance.random() * 150
        self.world.tell("faults", f"the store is away for {ms:.0f} ms")
        self.far.down_until = self.world.now + ms

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self.far.unreliable = self.far.down_until = 0.0
