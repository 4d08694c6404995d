"""Sending the snapshots of one task to an object store: which calls are made, in which order.

It is a generator that yields before each call how long (ms) to wait first, so that a thread can be interrupted there,
and the simulator can let anything happen in between.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.core.errors import CorruptLogError, UnavailableError
from headrace.core.log import logger
from headrace.core.retry import Retry
from headrace.stores.objects import layout
from headrace.stores.objects.contract import Chunks, ObjectStore
from headrace.stores.objects.layout import Content, Manifest, StoredFile

T = TypeVar("T")
Work = Generator[float, None, T]
"""Calls to a store: before each, how long (ms) to wait."""

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
        """Make a call, and retry transient errors. Raises permanent ones."""
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


class Sender:
    """What one incarnation has sent of a task's snapshots. One thread uses it."""

    def __init__(self, calls: Calls, folder: str) -> None:
        """``folder`` is the task's in the store, and ends in a slash."""
        self._calls = calls
        self._store = calls.store
        self._folder = folder
        self._generation = 0
        self._number = 0
        self._sent: dict[Content, str] = {}
        self._others: dict[Content, str] = {}
        self._complete: list[Manifest] = []
        self._known: dict[Hashable, Content] = {}

    def take_base(self, manifest: Manifest) -> None:
        """The task has begun with this snapshot: what is in it needn't cross the network again."""
        self._others |= {file.content: file.object for file in manifest.files}

    def look(self, at_most: int) -> Work[Manifest | None]:
        """Find the newest complete snapshot whose offset is at most this."""
        listing = yield from self._listing()
        for name in layout.manifest_names(listing):
            if int(layout.snapshot_of(name).partition("-")[0]) > at_most:
                continue
            data = yield from self._calls.tried(partial(self._store.get, self._folder + name))
            if data is None:
                continue
            manifest = layout.read_manifest(data)
            if manifest is None:
                self._calls.warn(
                    f"snapshot {layout.snapshot_of(name)} in the object store is damaged; looking for an older one"
                )
            elif manifest.whole(listing):
                self.take_base(manifest)
                return manifest
        return None

    def send(
        self,
        offset: int,
        generation: int,
        version: int,
        files: Sequence[SnapshotFile],
        done: Callable[[Manifest], None],
    ) -> Work[None]:
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
        self._complete = [*others, manifest][-layout.SNAPSHOTS_KEPT :]
        self._others.clear()
        done(manifest)
        yield from self._tidy()

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
        """Have a file in the store, under a new name."""
        self._number += 1
        name = layout.object_name(self._generation, self._number, file.name)
        source = self._others.get(content)
        copied = False
        if source is not None:
            copied = yield from self._copied(source, name)
        if not copied:
            yield from self._calls.tried(partial(self._store.put, self._folder + name, file.size, file.chunks))
        self._sent[content] = name
        return name

    def _copied(self, source: str, name: str) -> Work[bool]:
        """Copy within the store; return False if the source was deleted."""
        return (yield from self._calls.tried(partial(self._store.copy, self._folder + source, self._folder + name)))

    def _publish(self, manifest: Manifest) -> Work[None]:
        name, data = self._folder + manifest.name, manifest.encode()
        if (yield from self._calls.tried(partial(self._store.create, name, data))):
            return
        found = yield from self._calls.tried(partial(self._store.get, name))
        if found not in {data, None}:  # else an earlier try has written it, and a newer generation may have deleted it
            raise CorruptLogError(
                f"another program has written {name} in the object store for snapshots",
                hint="another app of this name uses the store, or once did: give this app another prefix",
            )

    def _listing(self) -> Work[dict[str, int]]:
        found = yield from self._calls.tried(partial(self._store.list, self._folder))
        return {name.removeprefix(self._folder): size for name, size in found.items()}

    def _tidy(self) -> Work[None]:
        names = yield from self._listing()
        for gone in self._garbage(names):
            self._sent = {content: name for content, name in self._sent.items() if name not in set(gone)}
            for first in range(0, len(gone), _DELETED_AT_ONCE):
                paths = [self._folder + name for name in gone[first : first + _DELETED_AT_ONCE]]
                yield from self._calls.tried(partial(self._store.delete, paths))
                _log.debug("deleted objects that no snapshot needs", folder=self._folder, objects=len(paths))

    def _garbage(self, names: Collection[str]) -> tuple[list[str], list[str]]:
        return layout.garbage(names, self._generation, self._complete)
