"""Sends snapshots of tasks to an object store, and fetches them, verified.

Sending and fetching are generators that yield before each call how long (ms) to wait first, so that a thread can be
interrupted there, and the simulator can let anything happen in between.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from headrace.core.calls import Retry
from headrace.core.errors import CorruptLogError, HeadraceError, InfrastructureError, UnavailableError, needing
from headrace.core.log import logger
from headrace.core.plug_ins import loaded, plug_in
from headrace.stores import snapshots
from headrace.stores.snapshots import Chunks, Content, Manifest, ObjectPlace, ObjectStore, StoredFile

T = TypeVar("T")
Work = Generator[float, None, T]  # calls to a store: before each, how long (ms) to wait
Done = Callable[[Manifest], None]
RETRY = Retry(6, 500, 30_000)
_DELETED_AT_ONCE = 500
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a snapshot on disk. The same ``identity`` implies the same contents."""

    name: str
    size: int
    identity: Hashable
    chunks: Chunks


class Calls:
    """Calls to a store, repeated while it is unavailable. ``warn`` gets each failure."""

    def __init__(self, store: ObjectStore, warn: Callable[[str], None], chance: random.Random) -> None:
        self.store = store
        self.warn = warn
        self._chance = chance

    def tried(self, call: Callable[[], T]) -> Work[T]:
        failures = 0
        pause_ms = 0.0
        while True:
            yield pause_ms
            try:
                return call()
            except UnavailableError as error:
                failures += 1
                after_ms = RETRY.pause_ms(failures, self._chance.random())
                if after_ms is None:
                    raise
                pause_ms = after_ms
                self.warn(f"the object store for snapshots doesn't answer: {error.message}")


@dataclass
class Sender:
    """What one incarnation has sent of a task's snapshots, whose ``folder`` ends in a slash. One thread uses it."""

    calls: Calls
    folder: str
    _generation: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)
    _sent: dict[Content, str] = field(default_factory=dict, init=False)
    _others: dict[Content, str] = field(default_factory=dict, init=False)
    _complete: list[Manifest] = field(default_factory=list, init=False)
    _known: dict[Hashable, Content] = field(default_factory=dict, init=False)

    def take_base(self, manifest: Manifest) -> None:
        """What is in it needn't cross the network again."""
        self._others |= {file.content: file.object for file in manifest.files}

    def look(self, at_most: int) -> Work[Manifest | None]:
        """Find the newest complete snapshot whose offset is at most this."""
        listing = yield from self._listing()
        for name in snapshots.manifest_names(listing):
            if int(snapshots.snapshot_of(name).partition("-")[0]) > at_most:
                continue
            data = yield from self.calls.tried(partial(self.calls.store.get, self.folder + name))
            if data is None:
                continue
            manifest = snapshots.read_manifest(data)
            if manifest is None:
                self.calls.warn(
                    f"snapshot {snapshots.snapshot_of(name)} in the object store is damaged; looking for an older one"
                )
            elif manifest.whole(listing):
                self.take_base(manifest)
                return manifest
        return None

    def send(self, offset: int, generation: int, version: int, files: Sequence[SnapshotFile], done: Done) -> Work[None]:
        """Send a snapshot, and call ``done`` when it has arrived. Then delete objects that aren't needed any more."""
        self._begin(generation)
        stored = []
        for file in files:
            yield 0.0
            content = self._content(file)
            name = self._sent.get(content)
            if name is None:
                name = yield from self._bring(file, content)
            stored.append(StoredFile(name=file.name, size=content.size, sha256=content.sha256, object=name))
        self._known = {file.identity: self._known[file.identity] for file in files}
        manifest = Manifest(offset=offset, generation=generation, version=version, files=tuple(stored))
        yield from self._publish(manifest)
        others = [one for one in self._complete if one.name != manifest.name]  # this one may be sent again
        self._complete = [*others, manifest][-snapshots.SNAPSHOTS_KEPT :]
        self._others.clear()
        done(manifest)
        names = yield from self._listing()
        for gone in snapshots.garbage(names, self._generation, self._complete):
            self._sent = {content: name for content, name in self._sent.items() if name not in set(gone)}
            for first in range(0, len(gone), _DELETED_AT_ONCE):
                paths = [self.folder + name for name in gone[first : first + _DELETED_AT_ONCE]]
                yield from self.calls.tried(partial(self.calls.store.delete, paths))
                _log.debug("deleted objects that no snapshot needs", folder=self.folder, objects=len(paths))

    def _begin(self, generation: int) -> None:
        """A manifest refers to objects of its own generation: what the one before has sent is copied."""
        if generation != self._generation:
            self._others |= self._sent
            self._sent, self._complete = {}, []
            self._generation, self._number = generation, 0

    def _content(self, file: SnapshotFile) -> Content:
        if file.identity not in self._known:
            digest = hashlib.sha256()
            for chunk in file.chunks():
                digest.update(chunk)
            self._known[file.identity] = Content(file.size, digest.hexdigest())
        return self._known[file.identity]

    def _bring(self, file: SnapshotFile, content: Content) -> Work[str]:
        self._number += 1
        name = snapshots.object_name(self._generation, self._number, file.name)
        source = self._others.get(content)
        copied = source is not None and (yield from self._copied(source, name))
        if not copied:
            yield from self.calls.tried(partial(self.calls.store.put, self.folder + name, file.size, file.chunks))
        self._sent[content] = name
        return name

    def _copied(self, source: str, name: str) -> Work[bool]:
        """False: the source was deleted."""
        return (yield from self.calls.tried(partial(self.calls.store.copy, self.folder + source, self.folder + name)))

    def _publish(self, manifest: Manifest) -> Work[None]:
        name, data = self.folder + manifest.name, manifest.encode()
        if (yield from self.calls.tried(partial(self.calls.store.create, name, data))):
            return
        found = yield from self.calls.tried(partial(self.calls.store.get, name))
        if found not in {data, None}:  # else an earlier try has written it, and a newer generation may have deleted it
            hint = "another app of this name uses the store, or once did: give this app another prefix"
            raise CorruptLogError(f"another program has written {name} in the object store for snapshots", hint=hint)

    def _listing(self) -> Work[dict[str, int]]:
        found = yield from self.calls.tried(partial(self.calls.store.list, self.folder))
        return {name.removeprefix(self.folder): size for name, size in found.items()}


AGAIN_MS = 30_000.0  # how long something waits that couldn't be done, before it is tried again


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do, for ``key``. A newer one for the same key replaces it while it waits."""

    key: Hashable
    steps: Callable[[], Work[None]]
    warn: Callable[[str], None]  # told why it fails
    dropped: Callable[[], None] = lambda: None  # called when it will never be done


class Waiting:
    """Jobs in order of arrival, each with the earliest time at which it may run."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, tuple[float, Job]] = {}

    def offer(self, job: Job) -> None:
        """Add a job; one of the same key that waits is dropped."""
        before = self._jobs.pop(job.key, None)
        self._jobs[job.key] = 0.0, job
        if before is not None:
            before[1].dropped()

    def failed(self, job: Job, now_ms: float) -> None:
        if job.key in self._jobs:
            job.dropped()
        else:
            self._jobs[job.key] = now_ms + AGAIN_MS, job

    def take(self, now_ms: float) -> Job | None:
        for key, (due_ms, job) in self._jobs.items():
            if due_ms <= now_ms:
                del self._jobs[key]
                return job
        return None

    def due_ms(self, now_ms: float) -> float | None:
        """None: there is nothing to do."""
        return max(0.0, min(due for due, _ in self._jobs.values()) - now_ms) if self._jobs else None


GROUP = "headrace.object_stores"  # the group of the entry point of the client of object stores


def open_objects(place: ObjectPlace) -> ObjectStore:
    what = f"the store of snapshots {place}"
    with needing("obstore", what, "objects", "wherever drivers, containers and commands run"):
        opener = plug_in(GROUP, "objects")
        if opener is None:
            raise ImportError("no package with a client of object stores is installed")
        store: ObjectStore = loaded(opener)(place)  # obstore must not be loaded before a process forks
    return store


def check_objects(place: ObjectPlace | None) -> None:
    """Write an object, read it and delete it. Raises ``InfrastructureError`` if the place can't be used."""
    if place is None:
        return
    store = open_objects(place)
    name, data = f"checks/{uuid.uuid4().hex}", b"headrace"
    try:
        store.create(name, data)
        found = store.get(name) == data and name in store.list("checks/")
        store.delete([name])
    except HeadraceError as error:
        raise InfrastructureError(
            f"the app can't keep its snapshots in {place}: {error.message}",
            hint="check that the store answers, that the bucket or folder exists, and that the credentials in the "
            "environment allow listing, reading, writing and deleting objects in it",
        ) from error
    if not found:
        what = f"the app can't keep its snapshots in {place}: an object can't be read right after it was written"
        raise InfrastructureError(what, hint="use a store with read-after-write consistency")


PIECE_BYTES = 8 << 20
"""A file is fetched in pieces of this size: a call has a time limit, and on a slow line all of a file takes longer."""
LOOKS_MAX = 10  # how often the store is listed at most, because what was found there is deleted meanwhile


class Came(Enum):
    """The state of a fetched file."""

    WHOLE = "whole"
    GONE = "gone"
    DAMAGED = "damaged"


class Receiver(Protocol):
    """Takes the files of a snapshot, from several threads."""

    def begin(self, snapshot: str) -> None:
        """Forget the files so far, because those of this snapshot follow."""

    def take(self, name: str, start: int, data: bytes) -> None:
        """Keep the bytes of a file from ``start``. A file comes from its beginning to its end."""

    def complete(self) -> None:
        """Note that all files have arrived undamaged."""


Together = Callable[[Sequence[Work[Came]]], Work[Sequence[Came]]]
"""Runs all of these calls at the same time, and returns their results."""


@dataclass(slots=True)
class Fetch:
    """Fetches one snapshot. ``progress``: the number of bytes so far, and in total."""

    calls: Calls
    folder: str
    receiver: Receiver
    together: Together
    at_once: int
    progress: tuple[int, int] = (0, 0)
    damaged: set[str] = field(default_factory=set)  # the names of snapshots that can't be used

    def newest(self, above: int, unfit: Collection[str]) -> Work[Manifest | None]:
        """Fetch the newest complete snapshot that isn't ``unfit``, if its offset is above this."""
        for _ in range(LOOKS_MAX):
            found = yield from self.calls.tried(partial(self.calls.store.list, self.folder))
            listing = {name.removeprefix(self.folder): size for name, size in found.items()}
            for name in snapshots.manifest_names(listing):
                snapshot = snapshots.snapshot_of(name)
                if int(snapshot.partition("-")[0]) <= above:
                    return None
                if snapshot in unfit or snapshot in self.damaged:
                    continue
                data = yield from self.calls.tried(partial(self.calls.store.get, self.folder + name))
                if data is None:
                    break
                manifest = snapshots.read_manifest(data)
                if manifest is None:
                    self._is_damaged(snapshot)
                    continue
                if not manifest.whole(listing):
                    said = "skipping an incomplete snapshot in the object store"
                    _log.info(said, folder=self.folder, snapshot=snapshot)
                    continue
                came = yield from self._bring(manifest)
                if came is Came.WHOLE:
                    return manifest
                if came is Came.GONE:
                    break
                self._is_damaged(snapshot)
            else:
                return None
        what = f"snapshots in {self.folder} are deleted faster than they can be fetched"
        raise UnavailableError(what, hint="wait: the next start tries again")

    def _is_damaged(self, snapshot: str) -> None:
        self.calls.warn(f"snapshot {snapshot} in the object store is damaged; trying an older one")
        self.damaged.add(snapshot)

    def _bring(self, manifest: Manifest) -> Work[Came]:
        self.receiver.begin(manifest.snapshot)
        self.progress = (0, manifest.size)
        files = manifest.files
        for first in range(0, len(files), self.at_once):
            some = files[first : first + self.at_once]
            came = yield from self.together([self._file(file) for file in some])
            for bad in (Came.GONE, Came.DAMAGED):
                if bad in came:
                    return bad
            self.progress = (self.progress[0] + sum(file.size for file in some), manifest.size)
        self.receiver.complete()
        return Came.WHOLE

    def _file(self, file: StoredFile) -> Work[Came]:
        digest, size = hashlib.sha256(), 0
        if not file.size:
            self.receiver.take(file.name, 0, b"")
        while size < file.size:
            length = min(PIECE_BYTES, file.size - size)
            data = yield from self.calls.tried(partial(self.calls.store.read, self.folder + file.object, size, length))
            if data is None:
                return Came.GONE
            if len(data) != length:
                return Came.DAMAGED
            digest.update(data)
            self.receiver.take(file.name, size, data)
            size += length
        return Came.WHOLE if digest.hexdigest() == file.sha256 else Came.DAMAGED
