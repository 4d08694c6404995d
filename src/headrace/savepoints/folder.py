"""The savepoints of an app on the disk: drafts, finished ones and copies, and the lock for changing them.

A savepoint appears atomically: it is made in a draft folder, which is renamed when all of it is durable. A killed
command leaves a draft, which the next command deletes. Tables of databases never change, so copies share them by hard
links if the file system can. Everything here may block on the disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.checkpoint.founding import COMMIT_FILE, KeptCommit
from headrace.core.durable import sync_folder, writing
from headrace.core.errors import DataError, InfrastructureError, UnavailableError, UsageError
from headrace.core.ids import TaskName, check_id
from headrace.core.log import logger
from headrace.core.private_folder import make_private, make_private_folder, open_private, write_private
from headrace.runtime.naming import savepoints_folder, task_folder
from headrace.savepoints.manifest import FILE, FileSum, Manifest, TaskCopy

_DRAFT = ".draft-"
_LOCK = ".lock"
_CHUNK = 1 << 20
_log = logger(__name__)

Progress = Callable[[str], None]
"""Receives messages about the progress, for display."""


class Shelf:
    """The savepoints of an app."""

    def __init__(self, home: Path, app: str) -> None:
        self.folder = savepoints_folder(home, app)
        self._app = app

    def names(self) -> list[str]:
        """Return the names of the finished savepoints."""
        return sorted(path.parent.name for path in self.folder.glob(f"[!.]*/{FILE}"))

    def path(self, name: str) -> Path:
        """Return the folder of a savepoint. Raises ``UsageError`` if it doesn't exist."""
        check_name(name)
        path = self.folder / name
        if not (path / FILE).exists():
            there = ", ".join(self.names())
            raise UsageError(
                f"app {self._app!r} has no savepoint {name!r}",
                hint=f"it has {there}"
                if there
                else f"take one of the running app: headrace savepoint create {self._app} "
                f"{name}; or name the home folder that it uses with --home",
            )
        return path

    def manifest(self, name: str) -> Manifest:
        """Read a savepoint's manifest."""
        return read_manifest(self.path(name))

    def check_free(self, name: str) -> None:
        """Raise ``UsageError`` if a savepoint of this name exists."""
        check_name(name)
        if (self.folder / name).exists():
            raise UsageError(
                f"app {self._app!r} has a savepoint {name!r} already",
                hint=f"use another name, or delete it: headrace savepoint delete {self._app} {name}",
            )

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """Yield a new folder that becomes the savepoint ``name`` if the block succeeds, and is deleted otherwise."""
        self.check_free(name)
        draft = self.folder / f"{_DRAFT}{uuid.uuid4().hex}"
        try:
            with writing(self.folder / name):
                make_private_folder(draft)
                yield draft
                sync_tree(draft)
                self.check_free(name)
                draft.rename(self.folder / name)
                sync_folder(self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def delete(self, name: str) -> None:
        """Delete a savepoint. A partly deleted one doesn't count as one."""
        path = self.path(name)
        with writing(path):
            gone = path.rename(self.folder / f"{_DRAFT}{uuid.uuid4().hex}")
            shutil.rmtree(gone)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for changing the app's savepoints, and delete drafts of killed commands."""
        with locked(self.folder, f"the savepoints of app {self._app!r}"):
            for draft in self.folder.glob(f"{_DRAFT}*"):
                _log.info("deleting the draft of a killed command", folder=str(draft))
                shutil.rmtree(draft, ignore_errors=True)
            yield


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises ``UnavailableError`` if another command holds it. It ends with the process."""
    with writing(folder):
        make_private_folder(folder)
        descriptor = open_private(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UnavailableError(
            f"another command is changing {what}", hint="wait until it has ended, then try again"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def check_name(name: str) -> None:
    """Raise if this can't be the name of a savepoint."""
    check_id("the name of a savepoint", name)


# -- manifests ----------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the savepoint in a folder."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(
            f"{folder} isn't a savepoint: {FILE} is missing",
            hint="export the savepoint again: an interrupted export lacks this file, which is written last",
        ) from error
    except OSError as error:
        raise InfrastructureError(f"{path} can't be read: {error.strerror}") from error
    return Manifest.decode(data, str(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, as the last file of a savepoint."""
    write_private(folder / FILE, manifest.encode())


def copies(folder: Path, tasks: list[TaskName]) -> tuple[TaskCopy, ...]:
    """Return a folder's files of these tasks, with checksums. Raises ``DataError`` if a task is missing."""
    return tuple(_copy(folder, task) for task in sorted(tasks))


def _copy(folder: Path, task: TaskName) -> TaskCopy:
    mine = folder / task_folder(task)
    files = sorted(path for path in mine.rglob("*") if path.is_file())
    return TaskCopy(
        task=str(task),
        ended=kept_commit(folder, task).record.ended,
        files={str(path.relative_to(mine)): _sum(path) for path in files},
    )


def kept_commit(folder: Path, task: TaskName) -> KeptCommit:
    """Return the commit of a task in a savepoint."""
    path = folder / task_folder(task) / COMMIT_FILE
    try:
        return KeptCommit.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} has no state of task {task}: {path.name} is missing",
            hint="files of the savepoint were deleted: use another one",
        ) from error


def verify(folder: Path, manifest: Manifest, progress: Progress = lambda what: None) -> None:
    """Raise ``DataError`` if a file of a savepoint is missing or has changed since it was written."""
    for copy in manifest.tasks:
        progress(f"checking task {copy.task}")
        for name, expected in copy.files.items():
            path = folder / task_folder(copy.name) / name
            try:
                found = _sum(path)
            except FileNotFoundError:
                found = None
            if found != expected:
                raise DataError(
                    f"{path} {'is missing' if found is None else 'has changed since the savepoint was taken'}",
                    hint="the savepoint can't be used: export or copy it again, or use another one",
                )


def _sum(path: Path) -> FileSum:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileSum(size=size, sha256=digest.hexdigest())


# -- copies -------------------------------------------------------------------------------------------------


def copy_tree(source: Path, target: Path, *, link: bool = True) -> None:
    """Copy a folder. ``link``: files that never change become hard links if possible."""
    with writing(target):
        make_private_folder(target.parent)
        shutil.copytree(source, target, copy_function=_link_or_copy if link else shutil.copy2)
        make_private(target)


def _link_or_copy(source: str, target: str) -> str:
    if Path(source).suffix in (".sst", ".blob"):
        try:
            Path(target).hardlink_to(source)
        except OSError as error:
            _log.debug("a file of a savepoint is copied, not linked", file=source, error=error.strerror)
        else:
            return target
    shutil.copy2(source, target)
    return target


def sync_tree(folder: Path) -> None:
    """Make a folder and its contents durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
