"""Fetching the newest snapshot of a task from an object store, several files at a time, verified."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from typing import Protocol

from headrace.core.errors import UnavailableError
from headrace.core.log import logger
from headrace.stores.objects import layout
from headrace.stores.objects.contract import ObjectStore
from headrace.stores.objects.layout import Manifest, StoredFile
from headrace.stores.objects.sending import Calls, Work

PIECE_BYTES = 8 << 20
"""A file is fetched in pieces of this size: a call has a time limit, and on a slow line all of a file takes longer."""
LOOKS_MAX = 10
"""How often the store is listed at most, because what was found there is deleted meanwhile."""

_log = logger(__name__)


class Came(Enum):
    """The state of a fetched file."""

    WHOLE = "whole"
    GONE = "gone"
    DAMAGED = "damaged"


class Receiver(Protocol):
    """Takes the files of a snapshot, from several threads."""

    def begin(self, snapshot: str) -> None:
        """Forget the files so far, because those of this snapshot follow."""
        ...

    def take(self, name: str, start: int, data: bytes) -> None:
        """Keep the bytes of a file from ``start``. A file comes from its beginning to its end."""
        ...

    def complete(self) -> None:
        """Note that all files have arrived undamaged."""
        ...


Together = Callable[[Sequence[Work[Came]]], Work[Sequence[Came]]]
"""Runs all of these calls at the same time, and returns their results."""


class Fetch:
    """Fetches one snapshot. ``progress``: the number of bytes so far, and in total."""

    def __init__(self, calls: Calls, folder: str, receiver: Receiver, together: Together, at_once: int) -> None:
        self._calls = calls
        self._store: ObjectStore = calls.store
        self._folder = folder
        self._receiver = receiver
        self._together = together
        self._at_once = at_once
        self.progress = (0, 0)
        self.damaged: set[str] = set()
        """The names of snapshots that can't be used."""

    def newest(self, above: int, unfit: Collection[str]) -> Work[Manifest | None]:
        """Fetch the newest complete snapshot that isn't ``unfit``, if its offset is above this."""
        for _ in range(LOOKS_MAX):
            found = yield from self._calls.tried(partial(self._store.list, self._folder))
            listing = {name.removeprefix(self._folder): size for name, size in found.items()}
            for name in layout.manifest_names(listing):
                snapshot = layout.snapshot_of(name)
                if int(snapshot.partition("-")[0]) <= above:
                    return None
                if snapshot in unfit or snapshot in self.damaged:
                    continue
                data = yield from self._calls.tried(partial(self._store.get, self._folder + name))
                if data is None:
                    break
                manifest = layout.read_manifest(data)
                if manifest is None:
                    self._is_damaged(snapshot)
                    continue
                if not manifest.whole(listing):
                    _log.info(
                        "skipping an incomplete snapshot in the object store", folder=self._folder, snapshot=snapshot
                    )
                    continue
                came = yield from self._bring(manifest)
                if came is Came.WHOLE:
                    return manifest
                if came is Came.GONE:
                    break
                self._is_damaged(snapshot)
            else:
                return None
        raise UnavailableError(
            f"snapshots in {self._folder} are deleted faster than they can be fetched",
            hint="wait: the next start tries again",
        )

    def _is_damaged(self, snapshot: str) -> None:
        self._calls.warn(f"snapshot {snapshot} in the object store is damaged; trying an older one")
        self.damaged.add(snapshot)

    def _bring(self, manifest: Manifest) -> Work[Came]:
        self._receiver.begin(manifest.snapshot)
        self.progress = (0, manifest.size)
        files = manifest.files
        for first in range(0, len(files), self._at_once):
            some = files[first : first + self._at_once]
            came = yield from self._together([self._file(file) for file in some])
            for bad in (Came.GONE, Came.DAMAGED):
                if bad in came:
                    return bad
            self.progress = (self.progress[0] + sum(file.size for file in some), manifest.size)
        self._receiver.complete()
        return Came.WHOLE

    def _file(self, file: StoredFile) -> Work[Came]:
        digest, size = hashlib.sha256(), 0
        if not file.size:
            self._receiver.take(file.name, 0, b"")
        while size < file.size:
            length = min(PIECE_BYTES, file.size - size)
            data = yield from self._calls.tried(partial(self._store.read, self._folder + file.object, size, length))
            if data is None:
                return Came.GONE
            if len(data) != length:
                return Came.DAMAGED
            digest.update(data)
            self._receiver.take(file.name, size, data)
            size += length
        return Came.WHOLE if digest.hexdigest() == file.sha256 else Came.DAMAGED
