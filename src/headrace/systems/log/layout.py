"""The files of a stream in the log, and how many of them one thread keeps open.

::

    <root>/<stream>/stream.json          partition count, columns and key; written once
    <root>/<stream>/added-0001.json      columns that were added later; each addition is one more file, written once
    <root>/<stream>/p00000.log           the records of a partition (``segment`` describes them)
    <root>/<stream>/p00000.trim          the trim point: records below it are dropped
    <root>/<stream>/p00000.times         where times are in the partition (``time_index``); can be rebuilt
    <root>/<stream>/seal.json            the stream is sealed; holds the end offsets once every partition has one
    <root>/<stream>/positions/<group>    8 bytes a partition: the position of a reader group

A stream is created in a hidden folder and renamed into place. So it exists completely or not at all, and one of several
concurrent creators wins. A file of added columns appears complete, under a number that only one writer gets; another
one looks again at what is there. Nothing here waits for another process.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import struct
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from headrace.core import errors, files
from headrace.core.ids import Offset, check_id
from headrace.core.log import Throttle, logger
from headrace.rows.dtypes import columns_from_json, columns_to_json
from headrace.systems.base import StreamInfo
from headrace.systems.log import segment
from headrace.systems.shape import new_columns, require_same_shape, wanted_shape, with_columns

if TYPE_CHECKING:
    from headrace.systems.log.partition import PartitionFile

FORMAT_VERSION = 1
MAX_ADDITIONS = 9999
_POSITION = struct.Struct(">Q")
_RESEAL = (
    "the file was damaged, but the partitions have its contents: run headrace stream repair, which writes it again"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seal:
    """The stream has ended. ``ends`` has the end offset of each partition; None while sealing is in progress."""

    ends: tuple[Offset, ...] | None


class StreamFolder:
    """The paths and small files of one stream."""

    def __init__(self, root: Path, stream: str) -> None:
        self.name = check_id("stream", stream)
        self.path = root / stream

    def log(self, partition: int) -> Path:
        return self.path / f"p{partition:05d}.log"

    def trim(self, partition: int) -> Path:
        return self.path / f"p{partition:05d}.trim"

    def times(self, partition: int) -> Path:
        return self.path / f"p{partition:05d}.times"

    def _added(self, number: int) -> Path:
        return self.path / f"added-{number:04d}.json"

    @property
    def seal(self) -> Path:
        return self.path / "seal.json"

    # -- stream.json -----------------------------------------------------------------------------------
    def read_info(self) -> StreamInfo | None:
        return self._read_additions()[0]

    def _read_additions(self) -> tuple[StreamInfo | None, int]:
        info = _read_shape(self.path / "stream.json", self._created)
        if info is None or info.columns is None:
            return info, 0
        for number in range(1, MAX_ADDITIONS + 1):
            more = _read_shape(self._added(number), lambda data: columns_from_json(data["columns"]))
            if more is None:
                return info, number - 1
            info = with_columns(info, more)
        return info, MAX_ADDITIONS

    def _created(self, data: dict[str, Any]) -> StreamInfo:
        columns, partitions = data["columns"], int(data["partitions"])
        while self.log(partitions).exists():  # added since
            partitions += 1
        typed = None if columns is None else columns_from_json(columns)
        return StreamInfo(self.name, partitions, typed, key=tuple(map(str, data["key"])))

    def require_info(self) -> StreamInfo:
        info = self.read_info()
        if info is None:
            hint = f"create it (headrace stream create {self.name}), or check its name and the folder"
            raise errors.StreamNotFoundError(f"no stream {self.name!r} in {self.path.parent}", hint=hint)
        return info

    def require_partition(self, partition: int) -> None:
        info = self.require_info()
        if not 0 <= partition < info.partitions:
            what = f"stream {self.name!r} has partitions 0 to {info.partitions - 1}, not {partition}"
            raise errors.StreamNotFoundError(what)

    def create(self, partitions: int, columns: dict[str, pl.DataType] | None, key: Sequence[str] = ()) -> StreamInfo:
        wanted = wanted_shape(self.name, partitions, columns, key)
        found = self.read_info()
        if found is not None:
            return require_same_shape(found, wanted)
        root = self.path.parent
        staging = root / f".{self.name}-{uuid.uuid4().hex}"
        try:
            files.make_private_folder(root)
            files.make_private_folder(staging)
            self._fill(staging, wanted)
            staging.rename(self.path)
            files.sync_folder(root)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise errors.StorageError(f"can't create stream {self.name!r} in {root}: {error}") from error
        # The first rename wins, so the stream that exists now may be another caller's.
        return require_same_shape(self.require_info(), wanted)

    def add_columns(self, columns: dict[str, pl.DataType]) -> StreamInfo:
        for _ in range(MAX_ADDITIONS):
            found, times = self._read_additions()
            found = self.require_info() if found is None else found
            more = new_columns(found, columns)
            if not more:
                return found
            if times == MAX_ADDITIONS:
                break
            data = {"version": FORMAT_VERSION, "columns": columns_to_json(more)}
            if files.create_file(self._added(times + 1), f"{json.dumps(data, indent=1)}\n".encode()):
                return with_columns(found, more)
        what = f"stream {self.name!r}: columns were added {MAX_ADDITIONS} times already"
        raise errors.UsageError(what, hint="use another stream")

    def add_partitions(self, partitions: int) -> StreamInfo:
        found = self.require_info()
        wanted_shape(self.name, max(partitions, 1), None)
        if partitions > found.partitions and self.seal.exists():
            what = f"stream {self.name!r} is sealed, so it can't get more partitions"
            raise errors.StreamSealedError(what, hint="a seal is permanent: use another stream")
        for partition in range(found.partitions, partitions):
            files.create_file(self.log(partition), _file_header())
        return self.require_info()

    def _fill(self, folder: Path, info: StreamInfo) -> None:
        files.make_private_folder(folder / "positions")
        files.write_files({folder / self.log(partition).name: _file_header() for partition in range(info.partitions)})
        columns = None if info.columns is None else columns_to_json(info.columns)
        data = {"version": FORMAT_VERSION, "partitions": info.partitions, "columns": columns, "key": info.key}
        files.write_file(folder / "stream.json", (json.dumps(data, indent=1) + "\n").encode())
        files.sync_folder(folder)

    # -- the trim point, the seal, reported positions ------------------------------------------------------
    def read_trim(self, partition: int) -> Offset:
        path = self.trim(partition)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return segment.FILE_HEADER_SIZE
        if not text.strip().isdigit():
            what = f"{path}: {text[:40]!r} is not an offset"
            raise errors.CorruptLogError(what, hint="the file was damaged: restore it from a backup")
        return int(text)

    def write_trim(self, partition: int, before: Offset) -> None:
        files.replace_file(self.trim(partition), f"{before}\n".encode())

    def trim_ms(self, partition: int) -> int | None:
        try:
            return -(-self.trim(partition).stat().st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            return None

    def read_seal(self) -> Seal | None:
        try:
            found = _read_shape(self.seal, lambda data: Seal(data["ends"] and tuple(map(int, data["ends"]))))
        except errors.DataError as error:
            raise errors.CorruptLogError(error.message, hint=_RESEAL) from error
        if found is not None and found.ends is not None:
            partitions = self.require_info().partitions
            if len(found.ends) != partitions:  # a reader of one without an end would wait forever
                what = f"{self.seal}: {len(found.ends)} ends for {partitions} partitions"
                raise errors.CorruptLogError(what, hint=_RESEAL)
        return found

    def write_seal(self, seal: Seal) -> None:
        ends = None if seal.ends is None else list(seal.ends)
        files.replace_file(self.seal, json.dumps({"version": FORMAT_VERSION, "ends": ends}).encode() + b"\n")

    def write_position(self, partition: int, group: str, position: Offset) -> None:
        """Store the position of a reader group, in one write of 8 bytes. 0 means none, so offsets are stored plus 1."""
        path = self.path / "positions" / check_id("group", group)
        try:
            fd = files.open_private(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, _POSITION.pack(position + 1), partition * _POSITION.size)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise gone(self.path, self.name) from None
        except OSError as error:
            raise errors.StorageError(f"can't report the position of {group!r} in {path}: {error}") from error

    def read_positions(self, group: str) -> dict[int, Offset]:
        try:
            data = (self.path / "positions" / check_id("group", group)).read_bytes()
        except FileNotFoundError:
            return {}
        whole = data[: len(data) - len(data) % _POSITION.size]
        return {n: value - 1 for n, (value,) in enumerate(_POSITION.iter_unpack(whole)) if value}


def replaced(path: Path, what: str) -> errors.StreamNotFoundError:
    return errors.StreamNotFoundError(
        f"{what} was replaced by another stream of that name while it was in use ({path})",
        hint="put the old stream's folder back and start again; "
        "to use the new stream, start the app under another name",
    )


def gone(path: Path, what: str) -> errors.StreamNotFoundError:
    return errors.StreamNotFoundError(
        f"{what} was deleted or moved while it was in use: {path} doesn't exist any more",
        hint="put the stream's folder back and start again; "
        "to continue without its messages, start the app under another name",
    )


def stream_names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("[!.]*/stream.json")) if root.is_dir() else []


def _file_header() -> bytes:
    return segment.encode_file_header(int.from_bytes(os.urandom(8), "big"))


def _read_shape(path: Path, read: Callable[[dict[str, Any]], T]) -> T | None:
    try:
        data = _read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return read(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{path}: a field is missing or wrong: {error!r}"
        raise errors.DataError(what, hint="restore the file as Headrace wrote it") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise errors.DataError(f"{path}: not JSON: {error}", hint="restore the file as Headrace wrote it") from error
    version = data.get("version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        what = f"{path}: format version {version!r}; this version of Headrace reads {FORMAT_VERSION}"
        raise errors.DataError(what, hint="a newer version wrote it; upgrade readers before writers")
    return dict(data)


class OpenFiles:
    """The partitions that one thread keeps open: of thousands that it reads and writes, those that it used last.

    A file with unsynced records stays open. If writing it back to the disk fails, the kernel reports that on each
    descriptor that is open at that time, but on only one of those that are opened later.
    """

    def __init__(self, kept: int | None = None) -> None:
        self._kept = files.share() if kept is None else kept
        self._files: dict[PartitionFile, Callable[[], bool]] = {}
        self._trim_above = self._kept

    def used(self, file: PartitionFile, unsynced: Callable[[], bool]) -> None:
        """Note that a file is used, and open. It isn't closed here while it is ``unsynced``."""
        self._files.pop(file, None)
        self._files[file] = unsynced
        if len(self._files) > self._trim_above:
            self.trim()

    def forget(self, file: PartitionFile) -> None:
        file.close()
        self._files.pop(file, None)

    def trim(self) -> None:
        """Close the files that were used the longest ago, as far as they may be; never the one used last."""
        surplus = len(self._files) - self._kept
        if surplus <= 0:
            return
        closable = (file for file, unsynced in self._files.items() if not unsynced())
        for file in list(islice(closable, surplus)):
            if file is not next(reversed(self._files)):
                self.forget(file)
        # Files that have to stay open aren't looked at each time that another one is used.
        self._trim_above = max(self._kept, 2 * (len(self._files) - self._kept))


_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_BLOCK = 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_throttle = Throttle(logger(__name__))


def punch(path: Path, start: int, stop: int) -> bool:
    """Free the blocks within ``start <= byte < stop``, which then read as zeros. False if this system can't."""
    start = (start + _BLOCK - 1) // _BLOCK * _BLOCK
    stop = stop // _BLOCK * _BLOCK
    if start >= stop:
        return True
    if not sys.platform.startswith("linux"):
        _throttle.info("this system can't free the blocks of trimmed records: they stay on the disk", path=str(path))
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start) == 0:
            return True
        code = ctypes.get_errno()
    finally:
        os.close(fd)
    if code in _UNSUPPORTED:
        what = "the file system can't free the blocks of trimmed records: they stay on the disk"
        _throttle.warning(what, path=str(path))
        return False
    raise errors.StorageError(f"can't free bytes {start} to {stop} of {path}: {os.strerror(code)}")
