"""The snapshots of one task in the object store, from the view of its run loop.

The run loop passes snapshots on and learns later that they have arrived; only then may the changelog be trimmed. It
trusts only snapshots that this incarnation has sent, has fetched, or has found complete when it began, and ignores
later snapshots of others. Everything here runs on the run-loop thread, except methods that say otherwise: these leave
notes and wake the run loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from headrace.checkpoint.record import LocalCheckpoint
from headrace.core.ids import Offset
from headrace.runtime.state.depot import Depot
from headrace.runtime.state.disk import Disk
from headrace.runtime.state.snapshots import Snapshot
from headrace.stores.objects.fetching import Fetch, Receiver
from headrace.stores.objects.layout import Manifest, trimmable
from headrace.stores.objects.queue import Job
from headrace.stores.objects.sending import Sender, Work

FRUITLESS_MAX = 2
"""How often in a row nothing may be found before a task believes that there is nothing."""


class RemoteSnapshots:
    """One task's folder in the store of snapshots. ``folder`` ends in a slash; ``local`` has the snapshots on disk."""

    def __init__(self, depot: Depot, folder: str, local: Path, disk: Disk, warn: Callable[[str], None]) -> None:
        self._depot = depot
        self._folder = folder
        self._local = local
        self._disk = disk
        self._warn = warn
        self._sender = Sender(depot.calls(warn), folder)
        self._notes: deque[Callable[[], None]] = deque()
        self._complete: set[Offset] = set()
        self._trimmed: Offset = -1
        self._fetch: Fetch | None = None
        self._over = False
        self._error: Exception | None = None
        self._came: Manifest | None = None
        self._unfit: set[str] = set()
        self._fruitless = 0
        self._looked = False
        self._histories = 0
        """How many changelogs there have been that didn't fit."""
        self.pending: set[str] = set()
        """The names of snapshots that wait to be sent, or are being sent: their folders are needed."""

    # -- beginning

    def fetched(self, above: Offset) -> bool:
        """False while the newest snapshot above this offset is fetched, or looked for. The first call begins that.

        Raises why it can't be fetched.
        """
        if self._fetch is None:
            receiver = _ToDisk(self._disk, self._local)
            calls = self._depot.calls(self._warn)
            self._fetch = fetch = Fetch(calls, self._folder, receiver, self._depot.together, self._depot.at_once)
            self._over, self._error, self._came = False, None, None
            self._depot.fetch(self._fetching(fetch, above), self._failed)
        if not self._over:
            return False
        if self._error is not None:
            error, self._error, self._fetch = self._error, None, None
            raise error
        return True

    @property
    def progress(self) -> tuple[int, int] | None:
        """While a snapshot is fetched: the number of bytes so far, and in total."""
        return None if self._fetch is None or self._over else self._fetch.progress

    @property
    def may_have(self) -> bool:
        """Note that a snapshot may have appeared since the last look."""
        return self._fruitless < FRUITLESS_MAX

    def begun(self, local: LocalCheckpoint | None) -> None:
        """The task has begun at this commit."""
        came, fetch = self._came, self._fetch
        self._fetch = self._came = None
        if fetch is not None:
            self._unfit |= fetch.damaged
            self._fruitless = 0 if came is not None else self._fruitless + 1
        if came is not None and local is not None and came.snapshot == Snapshot.name(local):
            self._looked = True
            self._complete.add(came.offset)
            self._depot.send(Job((self._folder, "base"), lambda: self._basing(came), self._warn))
        elif local is not None and not self._looked:
            self._looked = True
            offset, history = local.offset, self._histories
            self._depot.send(Job((self._folder, "base"), lambda: self._looking(offset, history), self._warn))

    def misfit(self, restored: str | None) -> None:
        """The state isn't the changelog's, and comes from this snapshot: what is known may be of another changelog."""
        if restored is not None:
            self._unfit.add(restored)
        self._complete.clear()
        self._histories += 1

    # -- at work

    def taken(self, snapshot: Snapshot) -> None:
        """Send a snapshot, when it is its turn."""
        name, local = snapshot.folder.name, snapshot.local
        self.pending.add(name)

        def steps() -> Work[None]:
            files = self._disk.snapshot_files(snapshot.folder)
            return self._sender.send(local.offset, local.generation, local.version, files, self._arrived)

        def dropped() -> None:
            self._note(lambda: self.pending.discard(name))

        self._depot.send(Job((self._folder, "snapshot"), steps, self._warn, dropped))

    def learned(self) -> bool:
        """Record events since the last call; return False if there were none."""
        news = False
        while self._notes:
            self._notes.popleft()()
            news = True
        return news

    def trimmable(self) -> Offset | None:
        """To where the changelog may be trimmed, if it may be trimmed further than the last time."""
        offset = trimmable(self._complete)
        if offset is None or offset <= self._trimmed:
            return None
        self._trimmed = offset
        return offset

    @property
    def newest(self) -> Offset:
        """The offset of the newest snapshot that is known to be complete, or 0."""
        return max(self._complete, default=0)

    # -- on other threads

    def _fetching(self, fetch: Fetch, above: Offset) -> Work[None]:
        self._came = yield from fetch.newest(above, self._unfit)
        self._over = True

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._over = True

    def _basing(self, manifest: Manifest) -> Work[None]:
        yield 0.0
        self._sender.take_base(manifest)

    def _looking(self, at_most: Offset, history: int) -> Work[None]:
        manifest = yield from self._sender.look(at_most)
        if manifest is None:
            return
        offset = manifest.offset

        def note() -> None:
            if history == self._histories:
                self._complete.add(offset)

        self._note(note)

    def _arrived(self, manifest: Manifest) -> None:
        def note() -> None:
            self.pending.discard(manifest.snapshot)
            self._complete.add(manifest.offset)

        self._note(note)

    def _note(self, note: Callable[[], None]) -> None:
        self._notes.append(note)
        self._depot.ring()


class _ToDisk(Receiver):
    """Builds a folder from the fetched files."""

    def __init__(self, disk: Disk, snapshots: Path) -> None:
        self._disk = disk
        self._snapshots = snapshots
        self._folder = snapshots

    @override
    def begin(self, snapshot: str) -> None:
        self._folder = self._snapshots / snapshot
        self._disk.begin_draft(self._folder)

    @override
    def take(self, name: str, start: int, data: bytes) -> None:
        self._disk.fill_draft(self._folder, name, start, data)

    @override
    def complete(self) -> None:
        self._disk.complete_draft(self._folder)
