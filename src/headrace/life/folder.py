"""The savepoints of an app on the disk: drafts, finished ones, copies, exports, and initial states.

A savepoint appears atomically: it is made in a draft folder, which is renamed when all of it is durable. A killed
command leaves a draft, which the next command deletes. Everything here may block on the disk. In an exported archive
the manifest with the checksums comes last, so one that was cut short shows.

It isn't enough that all tasks have committed the version of a cut. A starting task takes its first label from the
clock. If it doesn't know the cut yet and the label is above it, its readers take the label as a promise that
nothing more up to the cut follows, and commit the cut. If the task then starts again before its first commit, and
now knows the cut, it commits the cut, too. The frames that it sends before that reach its readers only after the
states that they have kept. So ``misfit`` checks in the commit records that each task has processed what the tasks
before it committed.

Each timeline that began with a savepoint has a folder with a copy of each donor, which shares the savepoint's files,
and a description of how each task begins. So the savepoint may be deleted after the restore.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.core.errors import DataError, InfrastructureError, UnavailableError, UsageError
from headrace.core.files import (
    UNREADABLE,
    format_of,
    make_private,
    make_private_folder,
    open_private,
    sync_file,
    sync_folder,
    write_private,
    writing,
)
from headrace.core.ids import Offset, TaskName, check_id
from headrace.core.log import logger
from headrace.life.founding import FILE, FileSum, Manifest, TaskCopy
from headrace.protocol.record import COMMIT_FILE, CommitRecord, Donor, Founding, KeptCommit, OutputSeq
from headrace.task.naming import founding_folder, savepoints_folder, task_folder

_DRAFT = ".draft-"
_LOCK = ".lock"
_log = logger(__name__)

Progress = Callable[[str], None]


class Shelf:
    """The savepoints of an app."""

    def __init__(self, home: Path, app: str) -> None:
        self.folder = savepoints_folder(home, app)
        self._app = app

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob(f"[!.]*/{FILE}"))

    def path(self, name: str) -> Path:
        check_id("the name of a savepoint", name)
        path = self.folder / name
        if not (path / FILE).exists():
            hint = (
                f"take one of the running app: headrace savepoint create {self._app} {name}; or name the home folder "
                "that it uses with --home"
            )
            if there := ", ".join(self.names()):
                hint = f"it has {there}"
            raise UsageError(f"app {self._app!r} has no savepoint {name!r}", hint=hint)
        return path

    def manifest(self, name: str) -> Manifest:
        return read_manifest(self.path(name))

    def check_free(self, name: str) -> None:
        check_id("the name of a savepoint", name)
        if (self.folder / name).exists():
            hint = f"use another name, or delete it: headrace savepoint delete {self._app} {name}"
            raise UsageError(f"app {self._app!r} has a savepoint {name!r} already", hint=hint)

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """Yield a new folder that becomes the savepoint ``name`` if the block succeeds, and is deleted otherwise."""
        self.check_free(name)
        with _becoming(self.folder / f"{_DRAFT}{uuid.uuid4().hex}", self.folder / name) as draft:
            yield draft
            self.check_free(name)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with writing(path):
            gone = path.rename(self.folder / f"{_DRAFT}{uuid.uuid4().hex}")
            shutil.rmtree(gone)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with locked(self.folder, f"the savepoints of app {self._app!r}"):
            for draft in self.folder.glob(f"{_DRAFT}*"):
                _log.info("deleting the draft of a killed command", folder=str(draft))
                shutil.rmtree(draft, ignore_errors=True)
            yield


@contextmanager
def _becoming(draft: Path, folder: Path) -> Iterator[Path]:
    try:
        with writing(folder):
            make_private_folder(draft)
            yield draft
            _sync_tree(draft)
            draft.rename(folder)
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


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
        hint = "wait until it has ended, then try again"
        raise UnavailableError(f"another command is changing {what}", hint=hint) from error
    try:
        yield
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> Manifest:
    path = folder / FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        hint = "export the savepoint again: an interrupted export lacks this file, which is written last"
        raise UsageError(f"{folder} isn't a savepoint: {FILE} is missing", hint=hint) from error
    except OSError as error:
        raise InfrastructureError(f"{path} can't be read: {error.strerror}") from error
    return Manifest.decode(data, str(path))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_private(folder / FILE, manifest.encode())


def copies(folder: Path, tasks: list[TaskName]) -> tuple[TaskCopy, ...]:
    found = []
    for task in sorted(tasks):
        mine, ended = folder / task_folder(task), kept_commit(folder, task).record.ended
        paths = sorted(path for path in mine.rglob("*") if path.is_file())
        files = {str(path.relative_to(mine)): _sum(path) for path in paths}
        found.append(TaskCopy(task=str(task), ended=ended, files=files))
    return tuple(found)


def kept_commit(folder: Path, task: TaskName) -> KeptCommit:
    path = folder / task_folder(task) / COMMIT_FILE
    try:
        return KeptCommit.decode(path.read_bytes())
    except FileNotFoundError as error:
        hint = "files of the savepoint were deleted: use another one"
        raise DataError(f"{folder} has no state of task {task}: {path.name} is missing", hint=hint) from error


def verify(folder: Path, manifest: Manifest, progress: Progress = lambda what: None) -> None:
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
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileSum(size=file.tell(), sha256=digest.hexdigest())


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


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync_file(path)


class Misfit(NamedTuple):
    """Frames that ``writer`` sent before the cut but ``reader`` processed only after it."""

    writer: TaskName
    reader: TaskName
    partition: str


def misfit(kept: Mapping[TaskName, CommitRecord], producers: Mapping[int, TaskName]) -> Misfit | None:
    """Return the first mismatch in the commits that tasks have kept; ``producers`` are the writers by their numbers."""
    sent: dict[tuple[int, str, int], OutputSeq] = {}
    for producer, task in producers.items():
        if task in kept:
            sent |= {(producer, one.stream, one.partition): one for one in kept[task].outputs}
    for reader, record in kept.items():
        for entry in record.inputs:
            for parent in entry.parents:
                last = sent.get((parent.producer, entry.stream, entry.partition))
                if last is not None and (parent.generation, parent.seq) < (last.generation, last.seq):
                    return Misfit(producers[parent.producer], reader, f"{entry.stream}[{entry.partition}]")
    return None


ARCHIVE = ".tar"


def export(shelf: Shelf, name: str, target: Path, progress: Progress) -> Manifest:
    folder, manifest = shelf.path(name), shelf.manifest(name)
    if target.exists():
        raise UsageError(f"{target} exists already", hint="give the name of a new folder, or of a new .tar file")
    verify(folder, manifest, progress)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    progress(f"writing {target}")
    try:
        with writing(target):
            make_private_folder(target.parent)
            if target.suffix == ARCHIVE:
                _pack(folder, draft)
            else:
                copy_tree(folder, draft, link=False)
                _sync_tree(draft)
            draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)
    return manifest


def import_(shelf: Shelf, app: str, name: str, source: Path, from_app: str | None, progress: Progress) -> Manifest:
    if not source.exists():
        raise UsageError(f"{source} doesn't exist", hint="give the exported folder or .tar file")
    shelf.check_free(name)
    with shelf.locked(), shelf.draft(name) as draft:
        progress(f"reading {source}")
        if source.is_dir():
            read_manifest(source)  # it is written last
            shutil.rmtree(draft)
            copy_tree(source, draft, link=False)
        else:
            _unpack(source, draft)
        manifest = read_manifest(draft)
        if manifest.app not in (app, from_app):
            hint = f"to import it for {app!r} nevertheless, add --from {manifest.app}"
            raise UsageError(f"{source} is a savepoint of app {manifest.app!r}, not of {app!r}", hint=hint)
        verify(draft, manifest, progress)
        renamed = msgspec.structs.replace(manifest, name=name)
        write_manifest(draft, renamed)
    return renamed


def _pack(folder: Path, draft: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    files.sort(key=lambda path: path.name == FILE and path.parent == folder)
    with open(draft, "wb", opener=open_private) as made, tarfile.open(fileobj=made, mode="w") as archive:
        for path in files:
            archive.add(path, str(path.relative_to(folder)))
    sync_file(draft)


def _unpack(source: Path, draft: Path) -> None:
    again = "export the savepoint again"
    try:
        with tarfile.open(source, "r:") as archive:
            archive.extractall(draft, filter="data")
        make_private(draft)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{source} isn't an export of a savepoint, or was cut short: {error}", hint=again) from error
    if not (draft / FILE).exists():
        raise DataError(f"{source} was cut short, or isn't an export of a savepoint: it has no {FILE}", hint=again)


FORMAT = 1
DONORS = "donors"
_TASKS = "tasks"


class _Silence(msgspec.Struct, frozen=True, kw_only=True):
    stream: str
    partition: int
    until: Offset | None


class _Founding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``donors`` are tasks, each with a folder in ``donors``."""

    format: int = FORMAT
    record: CommitRecord
    donors: tuple[str, ...] = ()
    shares: Mapping[str, tuple[str, ...]] | None = None
    copied: tuple[str, ...] = ()
    tasks: int = 1
    silent_until: tuple[_Silence, ...] = ()


_DECODER = msgspec.json.Decoder(_Founding)


def encode_founding(founding: Founding, stage: str) -> bytes:
    return msgspec.json.encode(
        _Founding(
            record=founding.record,
            donors=tuple(str(TaskName(stage, donor.number)) for donor in founding.donors),
            shares=None if founding.shares is None else {name: tuple(by) for name, by in founding.shares.items()},
            copied=tuple(sorted(founding.copied)),
            tasks=founding.tasks,
            silent_until=tuple(
                _Silence(stream=stream, partition=partition, until=offset)
                for (stream, partition), offset in sorted(founding.silent_until.items())
            ),
        )
    )


def decode_founding(data: bytes, folder: Path) -> Founding:
    try:
        found = format_of(data)
        if found != FORMAT:
            raise DataError(
                f"the initial state of tasks in {folder} has format {found}; this version of Headrace reads {FORMAT}",
                hint="start the app with the version of Headrace that restored the savepoint, or restore it again",
            )
        known = _DECODER.decode(data)
    except UNREADABLE as error:
        what = f"the initial state of tasks in {folder} is unreadable: {error}: {data[:100]!r}"
        raise DataError(what, hint="restore the savepoint again") from error
    donors = [TaskName.parse(name) for name in known.donors]
    return Founding(
        record=known.record,
        donors=tuple(Donor(donor.number, folder / DONORS / task_folder(donor)) for donor in donors),
        shares=known.shares,
        copied=frozenset(known.copied),
        tasks=known.tasks,
        silent_until={(one.stream, one.partition): one.until for one in known.silent_until},
    )


@contextmanager
def new_founding_folder(home: Path, app: str, timeline: int) -> Iterator[Path]:
    """Yield a draft of a timeline's folder, which it becomes if the block succeeds. The caller holds the lock."""
    folder = founding_folder(home, app, timeline)
    draft = folder.with_name(f".draft-{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    with _becoming(draft, folder):
        make_private_folder(draft / DONORS)
        yield draft


def write_foundings(draft: Path, foundings: Mapping[TaskName, Founding]) -> None:
    make_private_folder(draft / _TASKS)
    for task, founding in foundings.items():
        write_private(draft / _TASKS / f"{task_folder(task)}.json", encode_founding(founding, task.stage))


def read_foundings(home: Path, app: str, timeline: int, tasks: Iterable[TaskName]) -> dict[TaskName, Founding]:
    folder = founding_folder(home, app, timeline)
    paths = {task: folder / _TASKS / f"{task_folder(task)}.json" for task in tasks}
    return {task: decode_founding(path.read_bytes(), folder) for task, path in paths.items() if path.exists()}
