"""Staged files: the frames of one Spark task, complete and on the disk before the driver publishes them.

::

    "HRST" | format uint8 | partitions uint32                           partitions: how many the stream has
    partition int32 | rows uint32 | bytes uint64 | crc32 uint32 | body  for each frame
    -1 int32 | frames uint32 | rows uint64 | 0 uint32                   the end

All numbers are big-endian. A task writes a file under a random name into the folder of the stream in the home, and
tells the driver the name. It begins with that of the job, whose files are all removed at its end: those of tasks that
Spark has killed, too. The next write removes forgotten files when they are a day old.
"""

from __future__ import annotations

import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from headrace.core.durable import sync_folder, writing
from headrace.core.errors import CorruptLogError, DataError, InfrastructureError, StorageError
from headrace.core.log import logger
from headrace.core.private_folder import make_private_folder, open_private

STAGED_FORMAT = 1
ABANDONED_AFTER_S = 24 * 3600.0
_MARK = b"HRST"
_HEAD = struct.Struct(">4sBI")
_FRAME = struct.Struct(">iIQI")
_END = -1
_SUFFIX = ".staged"

_log = logger(__name__)


def staging_folder(home: Path, stream: str) -> Path:
    """The folder of a stream's staged files."""
    return home / "staged" / stream


class StagedFile:
    """A staged file that is being written. As a context manager it removes the file if the block raises.

    ``job`` is a random name of the job, without a hyphen.
    """

    def __init__(self, folder: Path, partitions: int, job: str) -> None:
        self._path = folder / f"{job}-{uuid.uuid4().hex}{_SUFFIX}"
        self._frames = self.rows = 0
        with writing(self._path):
            make_private_folder(folder)
            self._file: BinaryIO = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        self._write(_HEAD.pack(_MARK, STAGED_FORMAT, partitions))

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self._path.name

    def add(self, partition: int, rows: int, body: bytes) -> None:
        """Append a frame's body."""
        self._write(_FRAME.pack(partition, rows, len(body), zlib.crc32(body)), body)
        self._frames += 1
        self.rows += rows

    def finish(self) -> None:
        """Complete the file: it is on the disk when this returns."""
        self._write(_FRAME.pack(_END, self._frames, self.rows, 0))
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._path.parent)

    def _write(self, *parts: bytes) -> None:
        with writing(self._path):
            self._file.writelines(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):  # closing flushes, and the disk may be full
                self._file.close()
            self._path.unlink(missing_ok=True)


def read_staged(folder: Path, name: str, rows: int, partitions: int) -> Iterator[tuple[int, bytes]]:
    """Yield each frame's partition and body.

    Raises ``InfrastructureError`` if the file isn't there, ``CorruptLogError`` if it isn't as it was written, and
    ``DataError`` if it was written for a stream of another partition count. ``rows`` is what its task has written.
    """
    path = folder / name
    try:
        with path.open("rb") as file:
            yield from _frames(file, path, rows, partitions)
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"{path} is missing, though a Spark task has written it",
            hint="let driver and executors share the folder under this path, and publish within a day of writing; "
            "then run the job again",
        ) from error
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}") from error


def _frames(file: BinaryIO, path: Path, rows: int, partitions: int) -> Iterator[tuple[int, bytes]]:
    mark, number, of = _HEAD.unpack(_exactly(file, _HEAD.size, path))
    if mark != _MARK or number != STAGED_FORMAT:
        raise DataError(
            f"{path} is not a staged file of format {STAGED_FORMAT} ({mark!r}, {number})",
            hint="install the same version of Headrace for driver and executors",
        )
    if of != partitions:
        raise DataError(
            f"{path} was written for {of} partitions, but the stream now has {partitions}",
            hint="run the job again: partitions were added while it ran",
        )
    frames = seen = 0
    while True:
        partition, count, size, check = _FRAME.unpack(_exactly(file, _FRAME.size, path))
        if partition == _END:
            break
        body = _exactly(file, size, path)
        if zlib.crc32(body) != check:
            raise _damaged(path, f"frame {frames} fails its checksum")
        frames, seen = frames + 1, seen + count
        yield partition, body
    if not (frames, seen) == (count, size) == (count, rows):
        raise _damaged(path, f"it has {frames} frames and {seen} rows, and should have {count} and {rows}")


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise _damaged(path, "it ends too early")
    return data


def remove_staged(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of jobs, and files too old to be published. Files that can't be removed stay.

    ``names`` are those of the jobs, or of one file of each.
    """
    for job in {name.partition("-")[0] for name in names}:
        for path in folder.glob(f"{job}-*{_SUFFIX}"):
            _remove(path)
    oldest = time.time() - ABANDONED_AFTER_S
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("can't remove a staged file", path=str(path), reason=str(error))


def _damaged(path: Path, what: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path}: {what}", hint="run the job again: the file was damaged after a Spark task wrote it"
    )
