"""The folders of local state and snapshots: locks, drafts, substitutes, restoring and deleting them.

A folder that is being written has the name of a draft until it is complete, so what a killed process leaves is never
taken for a state or a snapshot. Everything here may block on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import ClassVar

from headrace.core import descriptors
from headrace.core.errors import InfrastructureError, StateCorruptError, StateLockedError, StorageError
from headrace.core.log import logger
from headrace.core.private_folder import make_private_folder, open_private

_STAND_INS = ".stand-ins"
"""The folder of substitutes. Among the folders of thousands of tasks, a search for them would take too long."""
_LOCKED_HINT = "a replaced container may still be running; it stops by itself"
_log = logger(__name__)


class FolderLock:
    """The right to use a folder and to delete it. RocksDB's own lock is inside the folder, and is deleted with it.

    The lock ends with the process. A second lock of the same folder in one process is refused, too.
    """

    _held: ClassVar[set[Path]] = set()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        """Raise ``StateLockedError`` if it is held elsewhere, ``StorageError`` if the file system refuses it."""
        self._path = folder.with_name(f".{folder.name}.lock")
        with self._guard:
            if self._path in self._held:
                raise StateLockedError(
                    f"state folder {folder} is open elsewhere in this process", hint="close it first"
                )
            try:
                make_private_folder(folder.parent)
                self._file = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_APPEND), "ab")
            except OSError as error:
                raise classified(folder, error) from error
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StateLockedError(
                        f"state folder {folder} is open in another process: {error}", hint=_LOCKED_HINT
                    ) from error
                raise classified(folder, error) from error
            self._held.add(self._path)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        with self._guard:
            if not self._file.closed:
                self._held.discard(self._path)
                self._file.close()


def restore_snapshot(snapshot: Path, folder: Path) -> None:
    """Replace the local state by a snapshot, by hard links if possible. The snapshot remains."""
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make_private_folder(draft.parent)
        shutil.copytree(snapshot, draft, copy_function=_link_table_else_copy)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise StorageError(
            f"snapshot {snapshot} can't be restored to {folder}: {error}",
            hint="check the disk's free space, and that this user may read and write both folders",
        ) from error


def discard(folder: Path) -> None:
    """Delete local state."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _log.warning("can't delete local state, which still takes space on the disk", folder=str(folder))


def discard_drafts(snapshots: Path) -> None:
    """Delete the unfinished snapshots of killed incarnations. A zombie that is still writing one fails."""
    for draft in snapshots.glob(str(draft_of(Path("*")))):
        _log.info("deleting the unfinished snapshot of a killed process", folder=str(draft))
        discard(draft)


def draft_of(folder: Path) -> Path:
    """Return the name that ``folder`` has until it is complete."""
    return folder.with_name(f".{folder.name}.draft")


def stand_in_for(folder: Path) -> Path:
    """Return a new substitute for ``folder``, for an incarnation that can't have it because it is locked."""
    return folder.parent / _STAND_INS / f"{folder.name}.{uuid.uuid4().hex[:8]}"


def discard_abandoned(folder: Path) -> None:
    """Delete the substitutes for ``folder`` that aren't open in any process."""
    for stand_in in list((folder.parent / _STAND_INS).glob(f"{folder.name}.*")):
        try:
            with (stand_in / "LOCK").open("ab") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            discard(stand_in)
        except OSError:
            continue  # it is open
        else:
            _log.info("deleting the state folder of a dead process", folder=str(stand_in))
            discard(stand_in)


def _link_table_else_copy(source: str, target: str) -> str:
    """Link tables and blobs, which never change, so that both folders share them. Copy logs and manifests."""
    if Path(source).suffix in (".sst", ".blob"):
        try:
            Path(target).hardlink_to(source)
        except OSError as error:  # another file system, or one without hard links: a copy is as good, and slower
            _log.debug("a file of a snapshot is copied, not linked", file=source, error=error.strerror)
            shutil.copy2(source, target)
    else:
        shutil.copy2(source, target)
    return target


def classified(folder: Path, error: Exception) -> InfrastructureError:
    """Return the error to raise for one of RocksDB or the file system."""
    text = str(error)
    if descriptors.FULL in text:  # RocksDB reports this about its lock, which no process holds
        return StorageError(f"state folder {folder}: {text}", hint=descriptors.hint())
    if "lock" in text.lower() and ("LOCK" in text or "hold" in text.lower()):
        return StateLockedError(f"state folder {folder} is open elsewhere: {text}", hint=_LOCKED_HINT)
    # An I/O error means trouble with the disk (full, a quota, too many open files), and the state is intact. Only a
    # missing file means that the state is damaged.
    if isinstance(error, OSError) or (text.startswith("IO error") and "No such file" not in text):
        return StorageError(f"state folder {folder}: {text}", hint="check the disk's free space and the folder's owner")
    return StateCorruptError(
        f"state folder {folder} can't be read: {text}", hint="nothing is lost: the next start rebuilds it"
    )
