"""Disks: folders are dicts, so the real ``TaskState`` runs over them unchanged.

A batch is there or not. A folder may be lost, locked or damaged; snapshots are copies that every host can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from headrace.core.clock import WallClock
from headrace.core.errors import FrameError, StateCorruptError, StateLockedError, StorageError
from headrace.core.ids import Offset
from headrace.core.log import RecentWarnings
from headrace.protocol.record import LOCAL_KEY, LocalCheckpoint
from headrace.stores.database import Batch, Database, FolderLock
from headrace.stores.transfer import SnapshotFile
from headrace.task.naming import remote_folder
from headrace.task.scope import TaskScope
from headrace.task.state.depot import Depot
from headrace.task.state.disk import Disk
from headrace.task.state.task_state import TaskState
from simulator.objects import files_of, folder_of
from simulator.storage import Folder

Stored = Callable[[str, LocalCheckpoint], None]
"""Receives each commit that is written to a folder, and the folder's name."""


class _Journal:
    """Takes down what a batch is told, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes | None, bytes | None]] = []
        """A key and its value (None: deleted); or with a third, the end of a range that goes."""

    def put(self, key: bytes, value: bytes) -> None:
        self.entries.append((key, value, None))

    def delete(self, key: bytes) -> None:
        self.entries.append((key, None, None))

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.entries.append((start, None, stop))


class SimBatch(Batch):
    """Writes that become visible together."""

    writes: Any

    def __init__(self) -> None:
        self.writes = _Journal()

    @property
    @override
    def empty(self) -> bool:
        return not self.writes.entries


class SimDatabase(Database):
    """A folder's contents, as RocksDB would keep them."""

    def __init__(self, contents: Folder, folder: Path = Path("copy"), disk: SimDisk | None = None) -> None:
        self.contents = contents
        self.folder = folder
        self._disk = disk

    @property
    @override
    def made(self) -> bool:
        return bool(self.contents.state) or self.contents.local is not None

    @override
    def get(self, key: bytes) -> bytes | None:
        if key == LOCAL_KEY:
            return self.contents.local
        value: bytes | None = self.contents.state.get(key)
        return value

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.contents.state.get(key) for key in keys]

    @override
    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        state = self.contents.state
        found = sorted((key for key in state if start <= key < stop), reverse=reverse)
        return iter([(key, state[key]) for key in found])

    @override
    def batch(self) -> Batch:
        return SimBatch()

    @override
    def write(self, batch: Batch) -> None:
        assert isinstance(batch, SimBatch)
        state = self.contents.state
        if self._disk is not None and self._disk.forgets:
            self.contents.before.append((dict(state), self.contents.local))
        for key, value, stop in batch.writes.entries:
            if stop is not None:
                for gone in [known for known in state if key <= known < stop]:
                    del state[gone]
            elif key == LOCAL_KEY and value is not None:
                self.contents.local = value
                if self._disk is not None:
                    self._disk.stored(self.folder.name, LocalCheckpoint.decode(value))
            elif value is None:
                state.pop(key, None)
            else:
                state[key] = value

    @override
    def snapshot(self, folder: Path) -> None:
        assert self._disk is not None
        if self._disk.compacts():
            self.contents.cut += 1
        self._disk.taken += 1
        self._disk.shared[folder] = Folder(dict(self.contents.state), self.contents.local, cut=self.contents.cut)

    @override
    def verify(self) -> None:
        return

    @override
    def begin_rebuilding(self) -> None:
        return

    @override
    def end_rebuilding(self) -> None:
        return

    @override
    def close(self) -> None:
        return


class SimLock(FolderLock):
    """Holds a folder until it is released."""

    def __init__(self, folder: Folder) -> None:
        self._contents = folder
        folder.owner = self

    @override
    def release(self) -> None:
        if self._contents.owner is self:
            self._contents.owner = None


class SimDisk(Disk):
    """The folders of one host; the snapshots and the files of savepoints, which all share."""

    def __init__(
        self, local: dict[Path, Folder], shared: dict[Path, Folder], stored: Stored, files: dict[Path, bytes]
    ) -> None:
        self.local = local
        self.shared = shared
        self.stored = stored
        self.files = files
        self.taken = 0
        """How many snapshots have been taken here."""
        self._drafts: dict[Path, dict[str, bytes]] = {}
        self.fetched: Callable[[Path], None] = lambda snapshot: None
        self.compacts: Callable[[], bool] = lambda: False
        self.forgets = False
        """A power cut may take back the last writes to a folder."""

    @override
    def lock(self, folder: Path) -> FolderLock:
        contents = self.local.setdefault(folder, Folder())
        if contents.owner is not None:
            raise StateLockedError("finds its folder locked")
        return SimLock(contents)

    @override
    def open(self, folder: Path) -> Database:
        contents = self.local.setdefault(folder, Folder())
        if contents.local is not None:
            try:
                LocalCheckpoint.decode(contents.local)
            except FrameError as error:
                raise StateCorruptError(f"finds its folder damaged: {error.message}") from error
        return SimDatabase(contents, folder, self)

    @override
    def stand_in(self, folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.{len(self.local)}")

    @override
    def discard(self, folder: Path) -> None:
        if folder in self.shared:
            del self.shared[folder]
        elif folder in self.local:
            self.local[folder].wipe()

    @override
    def discard_abandoned(self, folder: Path) -> None:
        return

    @override
    def discard_drafts(self, snapshots: Path) -> None:
        return

    @override
    def open_copy(self, folder: Path) -> Database:
        return SimDatabase(self.shared[folder], folder)

    @override
    def write(self, path: Path, data: bytes) -> None:
        self.files[path] = data

    @override
    def snapshots(self, folder: Path) -> list[Path]:
        # Texts, because making and comparing the parents of paths took more time than all else that disks do.
        start = f"{folder}/"
        inside = {text: path for path in self.shared if (text := str(path)).startswith(start)}
        return [inside[text] for text in sorted(inside) if "/" not in text[len(start) :]]

    @override
    def restore(self, snapshot: Path, folder: Path) -> None:
        copy, contents = self.shared[snapshot], self.local[folder]
        contents.wipe()
        contents.state.update(copy.state)
        contents.local, contents.cut = copy.local, copy.cut

    @override
    def set_aside(self, snapshot: Path) -> None:
        self.shared.pop(snapshot, None)

    @override
    def snapshot_files(self, snapshot: Path) -> list[SnapshotFile]:
        if snapshot not in self.shared:
            raise StorageError(f"snapshot {snapshot.name} is gone")
        return files_of(self.shared[snapshot])

    @override
    def begin_draft(self, snapshot: Path) -> None:
        self._drafts[snapshot] = {}

    @override
    def fill_draft(self, snapshot: Path, name: str, start: int, data: bytes) -> None:
        draft = self._drafts[snapshot]
        draft[name] = draft.get(name, b"")[:start] + data

    @override
    def complete_draft(self, snapshot: Path) -> None:
        self.shared[snapshot] = folder_of(self._drafts.pop(snapshot))
        self.fetched(snapshot)


class SimState(TaskState):
    """The real state; what it warns of goes into the story."""

    def __init__(
        self, scope: TaskScope, disk: SimDisk, limit: int, tell: Callable[[str], None], depot: Depot | None = None
    ) -> None:
        warnings = RecentWarnings(WallClock())
        folders = scope.folders
        if depot is not None and folders is not None:
            folders = replace(folders, remote=remote_folder(scope.app, scope.name, scope.settings.timeline))
        super().__init__(scope.changelog[0], folders, warnings, disk, limit, scope.dropped, depot)
        self._tell = tell
        self._mine = disk

    @override
    def snapshot_if_due(self, local: LocalCheckpoint) -> Offset | None:
        taken = self._mine.taken
        trim = super().snapshot_if_due(local)
        if self._mine.taken != taken:
            self._tell(f"takes a snapshot of {local}")
        return trim

    @override
    def _warn(self, text: str) -> None:
        super()._warn(text)
        self._tell(f"its {text}" if text.startswith("local state") else text)
