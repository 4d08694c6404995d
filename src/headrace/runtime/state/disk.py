"""The folders of a task's state as ``TaskState`` uses them: a port, so that the simulator can have disks of its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from headrace.core.durable import replace_file
from headrace.stores.database import Database
from headrace.stores.state_folder import (
    FolderLock,
    discard,
    discard_abandoned,
    discard_drafts,
    restore_snapshot,
    stand_in_for,
)


class Disk:
    """The file system."""

    def lock(self, folder: Path) -> FolderLock:
        """Take the folder for this life; raises ``StateLockedError`` when another one has it."""
        return FolderLock(folder)

    def open(self, folder: Path) -> Database:
        """The database in a folder, empty if there is none; raises ``StateCorruptError``."""
        return Database(folder)

    def stand_in(self, folder: Path) -> Path:
        """A folder for a life that can't have this one."""
        return stand_in_for(folder)

    def discard(self, folder: Path) -> None:
        """Throw a folder away, if it is there."""
        discard(folder)

    def discard_abandoned(self, folder: Path) -> None:
        """Throw away the stand-ins of this folder that no life has open."""
        discard_abandoned(folder)

    def discard_drafts(self, snapshots: Path) -> None:
        """Throw away snapshots that were left half made."""
        discard_drafts(snapshots)

    def snapshots(self, folder: Path) -> list[Path]:
        """The snapshots in a folder, oldest first: their names begin with the offset of their commit."""
        return sorted(folder.glob("[0-9]*-*-*"))

    def restore(self, snapshot: Path, folder: Path) -> None:
        """Put a snapshot in the place of the local state."""
        restore_snapshot(snapshot, folder)

    def set_aside(self, snapshot: Path) -> None:
        """Take a snapshot out of the way that can't be used. Deleting it is left to whoever knows why."""
        aside = snapshot.with_name(f"unfit-{snapshot.name}")
        discard(aside)
        with suppress(FileNotFoundError):  # another incarnation has given it up for newer ones
            snapshot.rename(aside)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file, durably: it is there as a whole or not at all."""
        replace_file(path, data)

    def open_copy(self, folder: Path) -> Database:
        """The database in the folder of a savepoint, which others may have open, too. It is never changed."""
        return Database(folder, read_only=True)
