"""The folders of a task's state and its snapshots, as a port that the simulator replaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.core.errors import StorageError
from headrace.core.files import make_private_folder, open_private, replace_file, sync_folder
from headrace.protocol.record import LocalCheckpoint
from headrace.stores import database
from headrace.stores.database import Database, FolderLock
from headrace.stores.transfer import SnapshotFile

_CHUNK_BYTES = 1 << 20


class Disk:
    """The file system."""

    def lock(self, folder: Path) -> FolderLock:
        return FolderLock(folder)

    def open(self, folder: Path) -> Database:
        return Database(folder, lazily=True)

    def stand_in(self, folder: Path) -> Path:
        return database.stand_in_for(folder)

    def discard(self, folder: Path) -> None:
        database.discard(folder)

    def discard_abandoned(self, folder: Path) -> None:
        database.discard_abandoned(folder)

    def discard_drafts(self, snapshots: Path) -> None:
        database.discard_drafts(snapshots)

    def snapshots(self, folder: Path) -> list[Path]:
        """The snapshots in a folder, oldest first: their names begin with the offset of their commit."""
        return sorted(folder.glob("[0-9]*-*-*"))

    def restore(self, snapshot: Path, folder: Path) -> None:
        database.restore_snapshot(snapshot, folder)

    def set_aside(self, snapshot: Path) -> None:
        """Move an unusable snapshot out of the way, without deleting it, so that its damage can be examined."""
        aside = snapshot.with_name(f"unfit-{snapshot.name}")
        database.discard(aside)
        with suppress(FileNotFoundError):  # another incarnation has given it up for newer ones
            snapshot.rename(aside)

    def write(self, path: Path, data: bytes) -> None:
        replace_file(path, data)

    def open_copy(self, folder: Path) -> Database:
        """The database in the folder of a savepoint, which others may have open, too. It is never changed."""
        return Database(folder, read_only=True)

    def snapshot_files(self, snapshot: Path) -> list[SnapshotFile]:
        try:
            return [_snapshot_file(path) for path in sorted(snapshot.iterdir())]
        except OSError as error:
            raise StorageError(f"snapshot {snapshot} can't be read: {error}") from error

    def begin_draft(self, snapshot: Path) -> None:
        draft = database.draft_of(snapshot)
        database.discard(draft)
        try:
            make_private_folder(draft)
        except OSError as error:
            raise _unwritable(snapshot, error) from error

    def fill_draft(self, snapshot: Path, name: str, start: int, data: bytes) -> None:
        """Write these bytes into a file of a snapshot that is being made. A stale copy of the task may do the same."""
        path = database.draft_of(snapshot) / name
        try:
            with open(path, "r+b", opener=open_private if start == 0 else None) as file:
                file.seek(start)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(snapshot, error) from error

    def complete_draft(self, snapshot: Path) -> None:
        try:
            database.draft_of(snapshot).rename(snapshot)
            sync_folder(snapshot.parent)
        except OSError as error:
            raise _unwritable(snapshot, error) from error


def _snapshot_file(path: Path) -> SnapshotFile:
    """Tables and blobs are hard links, so the same file is in many snapshots."""
    stat = path.stat()
    return SnapshotFile(path.name, stat.st_size, (stat.st_ino, stat.st_size, stat.st_mtime_ns), partial(_chunks, path))


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise StorageError(f"{path} can't be read: {error}") from error


def _unwritable(snapshot: Path, error: OSError) -> StorageError:
    return StorageError(
        f"snapshot {snapshot} can't be written: {error}",
        hint="check the free space of the disk, and who owns the folder",
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's folder, named after the commit that it holds."""

    folder: Path
    local: LocalCheckpoint

    @staticmethod
    def name(local: LocalCheckpoint) -> str:
        """Folder names sort by offset. Manifests in an object store have the same names."""
        return f"{local.offset:020}-{local.generation}-{local.version}"

    @classmethod
    def at(cls, path: Path) -> Snapshot:
        offset, generation, version = path.name.split("-", 2)
        return cls(path, LocalCheckpoint(int(offset), int(generation), int(version)))

    @classmethod
    def all(cls, folder: Path) -> list[Snapshot]:
        return [cls.at(path) for path in Disk().snapshots(folder)]
