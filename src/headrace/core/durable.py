"""Making files durable. Small ones are complete or not there: neither a reader nor a crash finds half of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import StorageError
from headrace.core.private_folder import open_private

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
    with open(path, "wb", opener=open_private) as file:
        file.write(data)
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
    with open(path, "wb", opener=open_private) as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
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
    """A durable file beside ``path`` with this data, for the block; an ``OSError`` becomes a ``StorageError``."""
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with writing(path):
            write_file(staging, data)
            yield staging
    finally:
        staging.unlink(missing_ok=True)
