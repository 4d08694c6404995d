"""The state of one task: its stores, the database that caches them, the snapshots that bound the changelog.

The changelog is the truth. The local database corresponds to one commit in it and outlives the process. When it is
missing, damaged or doesn't fit the changelog, the newest snapshot takes its place. Snapshots are hard links; what is
before the last but one is trimmed. If there is a store of snapshots, only those that have arrived there count for that.

All on the run-loop thread, but for ``committed``; ``persist`` and ``snapshot_if_due`` wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

from headrace.core.errors import (
    CorruptLogError,
    DataError,
    InfrastructureError,
    StateCorruptError,
    StateLockedError,
    UnavailableError,
)
from headrace.core.ids import SSP, Offset
from headrace.core.log import RecentWarnings, logger
from headrace.protocol.changelog import ReplayStep
from headrace.protocol.record import LOCAL_KEY, Change, LocalCheckpoint
from headrace.stores.base import StateStore
from headrace.stores.database import Batch, Database, FolderLock, KeySpace, PartOfBatch, Pin
from headrace.stores.snapshots import SNAPSHOTS_KEPT
from headrace.task.naming import StateFolders
from headrace.task.state.depot import Depot, RemoteSnapshots
from headrace.task.state.disk import Disk, Snapshot

SNAPSHOT_AFTER_BYTES = 64 << 20
_PERSIST_AFTER_BYTES = 32 << 20
_MADE_AFTER_BYTES = 1 << 20
_BEYOND = b"\xff" * 8  # a key above all others, because keys of stores begin with the stores' names
_log = logger(__name__)


class TaskState:
    """Without ``folders`` stores live in memory. What is left of stores that were ``dropped`` is ignored."""

    def __init__(
        self,
        changelog: SSP,
        folders: StateFolders | None,
        warnings: RecentWarnings,
        disk: Disk | None = None,
        snapshot_after_bytes: int | None = None,
        dropped: Collection[str] = (),
        depot: Depot | None = None,
        stands_in: Callable[[], bool] = lambda: True,
    ) -> None:
        self._changelog = changelog
        self._folders = folders
        self._disk = disk or Disk()
        self._snapshot_after = snapshot_after_bytes
        self._dropped = dropped
        self._stands_in = stands_in
        self.locked_out = False  # whether the state waits until a standby or another process releases the task's folder
        self._database: Database | None = None
        self._lock: FolderLock | None = None
        self._stores: Mapping[str, StateStore] = {}
        self._held: list[Change] = []
        self._applied_bytes = self._adopted_bytes = self._since_snapshot = 0
        self._borrowed: Path | None = None
        self._restored: Snapshot | None = None
        self._damaged = self._readable = False
        self._unwritten: LocalCheckpoint | None = None  # the last commit, if the database doesn't hold it
        self.warnings = warnings
        self._remote: RemoteSnapshots | None = None
        if depot is not None and folders is not None and folders.remote is not None:
            self._remote = RemoteSnapshots(depot, folders.remote, folders.snapshots, self._disk, self._warn)

    def prepared(self) -> bool:
        """Whether the state can begin: its snapshot is local, and no standby or other process has its folder."""
        if self._remote is None or self._folders is None:
            return True
        try:
            self._opened(self._folders)
        except StateLockedError:
            self.locked_out = True
            return False
        self.locked_out = False
        if self._read_local() is not None:
            return True
        snapshots = self._snapshots()
        return self._remote.fetched(above=snapshots[-1].local.offset if snapshots else -1)

    @property
    def fetching(self) -> tuple[int, int] | None:
        return None if self._remote is None else self._remote.progress

    def begin(self, stores: Mapping[str, StateStore]) -> LocalCheckpoint | None:
        self._stores = stores
        self._unwritten = None
        self._held.clear()
        self._readable = False
        if self._folders is None:
            return None
        database = self._opened(self._folders)
        local = self._read_local()
        if local is None:
            if next(database.range(b"", _BEYOND), None) is not None:
                self._throw_away()  # a start that took over from a savepoint has died
            local = self._from_snapshot()
        if self._remote is not None:
            self._remote.begun(local)
        if local is not None:
            # A life that ends early must not put the next snapshot off forever. Where offsets count records instead
            # of bytes this is too little, which does no harm.
            newest = 0 if self._remote is None else self._remote.newest
            newest = max((snapshot.local.offset for snapshot in self._snapshots()), default=newest)
            self._since_snapshot = max(self._since_snapshot, local.offset - newest)
        database = self._opened(self._folders)
        self._forget_dropped(database)
        for id_, store in stores.items():
            store.attach(KeySpace(database, id_))
        return local

    def _opened(self, folders: StateFolders) -> Database:
        if self._database is None:
            self._database = self._open(folders)
            self._disk.discard_drafts(folders.snapshots)
        return self._database

    def _forget_dropped(self, database: Database) -> None:
        batch = database.batch()
        for name in self._dropped:
            nested = not any(kept.startswith(f"{name}.") for kept in self._stores)
            for start, stop in ((f"{name}\x00", f"{name}\x01"), (f"{name}.", f"{name}/"))[: 2 if nested else 1]:
                if next(database.range(start.encode(), stop.encode()), None) is not None:
                    batch.delete_range(start.encode(), stop.encode())
                    _log.info("deleting state that the app has dropped", changelog=str(self._changelog), state=name)
        database.write(batch)

    def misfit(self) -> None:
        """The local state isn't this changelog's: ``begin`` again once it is ``prepared``, from a snapshot if any."""
        which = "local state" if self._restored is None else f"snapshot {self._restored.folder.name}"
        self._warn(f"{which} doesn't fit the changelog; rebuilding it")
        if self._restored is not None:
            self._disk.set_aside(self._restored.folder)
        if self._remote is not None:
            self._remote.misfit(None if self._restored is None else self._restored.folder.name)
        self._throw_away()

    def _open(self, folders: StateFolders) -> Database:
        try:
            self._lock = self._lock or self._disk.lock(folders.local)
            database = self._disk.open(folders.local)
        except StateLockedError as error:
            if not self._stands_in():
                raise
            # Its holder is fenced off already; waiting for it to die could take forever.
            self._warn(f"{error.message}; using a folder of its own for this life")
            self._borrowed = self._disk.stand_in(folders.local)
            return self._disk.open(self._borrowed)
        except StateCorruptError as error:
            self._warn(f"{error.message}; rebuilding it")
            self._damaged = True
            self._disk.discard(folders.local)
            return self._disk.open(folders.local)
        self._disk.discard_abandoned(folders.local)
        return database

    def _from_snapshot(self) -> LocalCheckpoint | None:
        if self._folders is None or self._database is None:
            return None
        for snapshot in reversed(self._snapshots()):
            folder = self._database.folder
            self._database.close()
            self._disk.restore(snapshot.folder, folder)
            try:
                self._database = self._disk.open(folder)
                if self._damaged:
                    # Snapshots share files with the state, so they may be damaged in the same way.
                    self._database.verify()
                if self._read_local() == snapshot.local:
                    self._restored = snapshot
                    _log.info("restored a snapshot", changelog=str(self._changelog), snapshot=snapshot.folder.name)
                    return snapshot.local
                self._warn(f"the contents of snapshot {snapshot.folder.name} don't match its name")
            except StateCorruptError as error:
                self._warn(f"snapshot {snapshot.folder.name}: {error.message}")
            self._disk.set_aside(snapshot.folder)
            self._database.close()
            self._disk.discard(folder)
            self._database = self._disk.open(folder)
        self._restored = None
        return None

    @property
    def has_snapshot(self) -> bool:
        return bool(self._snapshots()) or (self._remote is not None and self._remote.may_have)

    def _throw_away(self) -> None:
        if self._database is not None:
            folder = self._database.folder
            self._database.close()
            self._disk.discard(folder)
            self._database = self._disk.open(folder)

    def _snapshots(self) -> list[Snapshot]:
        folders = self._folders
        return [] if folders is None else [Snapshot.at(path) for path in self._disk.snapshots(folders.snapshots)]

    def _read_local(self) -> LocalCheckpoint | None:
        data = self._database.get(LOCAL_KEY) if self._database is not None else None
        return None if data is None else LocalCheckpoint.decode(data)

    def changes(self, version: int) -> Iterator[Change]:
        for id_, store in self._stores.items():
            try:
                changes = store.take_changes(version)
            except DataError as error:
                if repr(id_) not in error.message:
                    error.message = f"rows for store {id_!r}: {error.message}"
                raise
            for change in changes:
                self._since_snapshot += len(change)
                yield Change(id_, change)

    def grown(self, size: int) -> None:
        self._since_snapshot += size

    def persist(self, local: LocalCheckpoint) -> None:
        """A task without state needs no database: it is made when reading the changelog again would take longer."""
        if self._database is None:
            return
        batch = self._persisted(self._database)
        if batch.empty and not self._database.made and self._since_snapshot < _MADE_AFTER_BYTES:
            self._unwritten = local
            return
        self._unwritten = None
        batch.put(LOCAL_KEY, local.encode())
        self._database.write(batch)

    def _write_what_is_left(self) -> None:
        if self._unwritten is not None and self._database is not None:
            batch = self._database.batch()
            batch.put(LOCAL_KEY, self._unwritten.encode())
            self._database.write(batch)
            self._unwritten = None

    def _persisted(self, database: Database) -> Batch:
        batch = database.batch()
        for id_, store in self._stores.items():
            store.persist(PartOfBatch(batch, id_))
        return batch

    def snapshot_if_due(self, local: LocalCheckpoint) -> Offset | None:
        """Return where the changelog may then be trimmed to; if it has to be sent first, ``learned`` tells later."""
        limit = SNAPSHOT_AFTER_BYTES if self._snapshot_after is None else self._snapshot_after
        if self._database is None or self._folders is None or self._since_snapshot < limit:
            return None
        taken = Snapshot(self._folders.snapshots / Snapshot.name(local), local)
        self._write_what_is_left()
        self._database.snapshot(taken.folder)
        self._since_snapshot = 0
        _log.debug("took a snapshot", changelog=str(self._changelog), snapshot=Snapshot.name(local))
        snapshots = self._snapshots()
        if self._remote is not None:
            self._remote.taken(taken)  # which needn't be the newest: its replacement may have taken others
        pending = () if self._remote is None else self._remote.pending
        for old in snapshots[:-SNAPSHOTS_KEPT]:
            if old.folder.name not in pending:
                self._disk.discard(old.folder)
        if self._remote is not None:
            return None
        return snapshots[-SNAPSHOTS_KEPT].local.offset if len(snapshots) >= SNAPSHOTS_KEPT else None

    def learned(self) -> Offset | None:
        return self._remote.trimmable() if self._remote is not None and self._remote.learned() else None

    def keep(self, database: Path, about: Path, data: bytes) -> None:
        if self._database is None:
            raise _in_memory()
        self._disk.discard(database)  # of a life that died on the way
        self._write_what_is_left()
        self._database.snapshot(database)
        self._disk.write(about, data)

    def donated(self, folder: Path) -> AbstractContextManager[Database]:
        return closing(self._disk.open_copy(folder))

    def adopt(self, change: Change) -> None:
        """The caller appends it to the changelog before the commit. What doesn't fit in memory goes to the database
        before that; a start that finds it without a commit drops it."""
        self._stores[change.store].apply(bytes(change.change))
        self._since_snapshot += len(change.change)
        self._adopted_bytes += len(change.change)
        if self._adopted_bytes > _PERSIST_AFTER_BYTES and self._database is not None:
            self._adopted_bytes = 0
            self._database.write(self._persisted(self._database))

    def take(self, step: ReplayStep, body: memoryview, local: LocalCheckpoint | None) -> None:
        match step:
            case ReplayStep.HOLD:
                self._held.append(Change.decode(body))
            case ReplayStep.APPLY:
                self.apply(local)
            case ReplayStep.FORGET:
                self.forget()

    def forget(self) -> None:
        self._held.clear()

    def apply(self, local: LocalCheckpoint | None) -> None:
        for change in self._held:
            store = self._stores.get(change.store)
            if store is None and self._is_dropped(change.store):
                continue
            if store is None:
                raise CorruptLogError(
                    f"{self._changelog} holds state of step {change.store!r}, which the app no longer has",
                    hint="the metadata of the app is lost, or older than its streams: put it back, or start the app "
                    "under another name (its state starts empty)",
                )
            store.apply(bytes(change.change))
            self._applied_bytes += len(change.change)
        self._held.clear()
        if self._applied_bytes > _PERSIST_AFTER_BYTES and local is not None:
            if self._database is not None:
                self._database.begin_rebuilding()
            self._settle(local)

    def _is_dropped(self, name: str) -> bool:
        return any(name == gone or name.startswith(f"{gone}.") for gone in self._dropped)

    def read_to(self, local: LocalCheckpoint | None) -> None:
        self._settle(local)
        if self._database is not None:
            self._database.end_rebuilding()

    def followed_to(self, local: LocalCheckpoint) -> None:
        """As ``read_to``, and the local state has this commit even if it changes nothing, or it would fall behind."""
        self._since_snapshot += self._applied_bytes
        self._applied_bytes = 0
        self.persist(local)
        if self._database is not None:
            self._database.end_rebuilding()

    def _settle(self, local: LocalCheckpoint | None) -> None:
        if local is not None and self._applied_bytes:
            self.persist(local)
        self._since_snapshot += self._applied_bytes
        self._applied_bytes = 0

    def begun(self) -> None:
        self._readable = True

    def committed(self) -> AbstractContextManager[Pin]:
        """The local database as it is now: it holds commits alone, and this is one of them. From any thread."""
        if self._folders is None:
            raise _in_memory()
        database = self._database if self._readable else None
        if database is None:
            raise UnavailableError("its state is being restored", hint="ask again; headrace status shows how far it is")
        return closing(database.pin())

    def entries(self) -> int:
        return sum(store.entries() for store in self._stores.values())

    def size(self) -> int | None:
        return None if self._database is None else self._database.size()

    def find_damage(self) -> None:
        """Read the local database, so that it is marked if it is damaged, and the next start rebuilds it."""
        if self._database is not None:
            with suppress(StateCorruptError):
                self._database.verify()

    def close(self) -> None:
        self._readable = False
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._borrowed is not None:
            self._disk.discard(self._borrowed)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _warn(self, text: str) -> None:
        self.warnings.add(_log, text)


def _in_memory() -> InfrastructureError:
    return InfrastructureError(
        "the app keeps its state in memory, where other processes can't read it",
        hint="run the app with app.run() or headrace run, which keep state on disk",
    )
