"""Files: durable and private ones, small records, and file descriptors.

A new folder or file gets the rights that its folder gives the group, as far as the umask allows them, and others get
none. A folder that any user may read doesn't count as opened: new files in it are for its owner alone. Files that
RocksDB or Spark make have the modes that the umask says; they are in folders that are made here.
"""

from __future__ import annotations

import os
import resource
import select
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from headrace.core.errors import DataError, InfrastructureError, StorageError
from headrace.core.log import logger

_OTHERS, _GROUP = 0o007, 0o070
_OWNER, _FILE = 0o700, 0o666


def make_private_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=_mode_in(one.parent), exist_ok=True)


def make_private(folder: Path) -> None:
    """Take from others the rights to a folder, and to those in it, that another program has just made."""
    folder.chmod(folder.stat().st_mode & _mode_in(folder.parent))
    for one in folder.iterdir():
        if one.is_dir():
            make_private(one)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, and make it if it isn't there; returns its descriptor. It also serves as an ``opener``."""
    if not flags & os.O_EXCL:
        with suppress(FileNotFoundError):
            return os.open(path, flags & ~os.O_CREAT)
    return os.open(path, flags | os.O_CREAT, _mode_in(Path(path).parent) & _FILE)


def write_private(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=open_private) as file:
        file.write(data)


def _mode_in(folder: Path) -> int:
    mode = folder.stat().st_mode
    return _OWNER if mode & _OTHERS else _OWNER | mode & _GROUP


SYNCS_AT_A_TIME = 32


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file so that readers see either the old or the new contents, even after a crash of the machine."""
    with _staged(path, data) as staging:
        staging.replace(path)
        sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Create a file durably and atomically. Return False if one exists already, which stays."""
    with _staged(path, data) as staging:
        try:
            path.hardlink_to(staging)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    return True


def write_file(path: Path, data: bytes) -> None:
    """Write a file that no process reads yet. Its contents are durable; its name is once its folder is synced."""
    _write(path, (data,))


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    with open(path, "wb", opener=open_private) as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def write_files(contents: Mapping[Path, bytes]) -> None:
    """``write_file`` for many: a file system that is asked to sync several files at a time syncs them together."""
    if len(contents) == 1:
        for path, data in contents.items():
            write_file(path, data)
        return
    with ThreadPoolExecutor(SYNCS_AT_A_TIME, thread_name_prefix="sync") as pool:
        for _ in pool.map(write_file, contents.keys(), contents.values()):
            pass


def copy_into(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file from parts, complete and durable when this returns."""
    _write(path, chunks)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    sync_file(folder)


def sync_file(file: Path) -> None:
    """Make the contents of a file that others have written durable."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Raise an ``OSError`` of the block as the ``StorageError`` that ``what`` can't be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"can't write {what}: {error}", hint="check the free space of the disk, and who owns the folder"
        ) from error


@contextmanager
def _staged(path: Path, data: bytes) -> Iterator[Path]:
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with writing(path):
            write_file(staging, data)
            yield staging
    finally:
        staging.unlink(missing_ok=True)


_log = logger(__name__)

SHARE_MAX = 512
FULL = "Too many open files"
"""The error of the operating system and of RocksDB when descriptors run out."""


def hint() -> str:
    return (
        f"the process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open: raise ulimit -n "
        "(LimitNOFILE= of systemd, or the container's ulimits), or share the tasks among more containers"
    )


def share() -> int:
    """Return how many files that are used rarely one part of the process may keep open: an eighth, at most 512."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return SHARE_MAX if soft == resource.RLIM_INFINITY else min(SHARE_MAX, soft // 8)


def make_room(least: int, why: str) -> None:
    """Raise the limit as far as the process may. Raise ``InfrastructureError`` if even ``least`` files are too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems have a lower limit than the one that they state
            _log.info("can't raise the limit of open files", limit=soft, error=str(error))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < least:
        raise InfrastructureError(
            f"{why} need at least {least} open files, but this process may open only {soft}", hint=hint()
        )


def readable(descriptor: int | None, ms: float | None) -> bool:
    """Wait until there is something to read, at most ``ms``; False when there isn't. No descriptor: just wait."""
    return bool(which_readable(() if descriptor is None else (descriptor,), ms))


class Bell:
    """A descriptor that is readable from ``ring`` until ``clear``. Callers hold a lock, but not for ``fileno``."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._rung = self._closed = False

    def fileno(self) -> int:
        return self._reader

    def ring(self) -> None:
        if not self._rung and not self._closed:
            self._rung = True
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        if self._rung:
            os.read(self._reader, 1)
            self._rung = False

    def close(self) -> None:
        self._closed = True
        os.close(self._reader)
        os.close(self._writer)


def which_readable(descriptors: Iterable[int], ms: float | None) -> frozenset[int]:
    """Wait until one of them has something to read or has ended. Returns those; none after ``ms``; None: no limit."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return frozenset(number for number, _ in poll.poll(ms))


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that aren't what was expected: its own errors, and two of Python's, for text that isn't
UTF-8 and for JSON that is nested too deeply."""


class _Format(msgspec.Struct, frozen=True):
    format: int


_FORMAT = msgspec.json.Decoder(_Format)


def format_of(data: bytes) -> int:
    """The ``format`` of a record whose other fields may be unknown. Raises one of ``UNREADABLE``."""
    return _FORMAT.decode(data).format


class _Record(Protocol):
    @property
    def format(self) -> int: ...


T = TypeVar("T", bound=_Record)


def decode_record(
    decoder: msgspec.json.Decoder[T], data: bytes, what: str, known: int, named: Callable[[T], str] | None = None
) -> T:
    """Read a record of the format ``known``, else raise ``DataError``. ``named`` names it better than ``what``."""
    try:
        record = decoder.decode(data)
    except UNREADABLE as error:
        raise DataError(f"{what} is unreadable: {error}: {data[:200]!r}") from error
    if record.format != known:
        raise DataError(
            f"{what if named is None else named(record)} is of format {record.format}; this version of Headrace reads "
            f"{known}",
            hint="use the Headrace that wrote it, or a newer one",
        )
    return record
