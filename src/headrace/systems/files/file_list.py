"""The durable list of the files of an input: which there are, in which partition, in which order. Append-only.

A position means a place in this list, so nothing in it ever changes. An entry is a stretch of a file: all of it, or
what was appended to it since. A file that was replaced is listed again. The list is a file of JSON lines in the app's
home, written under a lock: a header, entries, and a mark once the input has ended. Several processes use it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.core.errors import DataError, StorageError, UnavailableError
from headrace.core.ids import Offset
from headrace.core.private_folder import make_private_folder, open_private
from headrace.core.records import UNREADABLE

FORMAT = 1
ROWS_MAX = 10**11
"""An offset is ``place * ROWS_MAX + row``: the place of an entry in its partition, and a row of it."""

_LOCK_S_MAX = 30.0
_LOCK_PAUSE_S = 0.01


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes ``start`` to ``end`` of a file that had ``size`` bytes when it was listed.

    ``modified`` (nanoseconds) and ``sample``, a checksum of its first and last bytes, show whether it is the same.
    """

    path: str
    partition: int
    start: int
    end: int
    size: int
    modified: int
    sample: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One line: the header has ``format`` and ``partitions``, others an entry or the mark of the end."""

    format: int = 0
    partitions: int = 0
    entry: Entry | None = None
    ended: bool = False


_DECODER = msgspec.json.Decoder(_Line)


def offset_of(place: int, row: int = 0) -> Offset:
    """The offset of a row of the entry at this place of its partition."""
    return place * ROWS_MAX + row


def place_of(offset: Offset) -> tuple[int, int]:
    """The place and the row of an offset."""
    return divmod(offset, ROWS_MAX)


@dataclass(slots=True)
class FileList:
    """The contents of a list. ``ended``: it takes no more entries. ``nothing``: there isn't even an empty file."""

    partitions: int = 0
    ended: bool = False
    nothing: bool = False
    places: list[list[Entry]] = field(default_factory=list)
    """The entries of each partition."""
    latest: dict[str, Entry] = field(default_factory=dict)
    """The last entry of each file."""

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self.places[entry.partition].append(entry)
        self.latest[entry.path] = entry

    def start(self, partitions: int) -> None:
        """Begin with this number of partitions, without files."""
        self.partitions = partitions
        self.places = [[] for _ in range(partitions)]

    def partition_of(self, path: str, new: int = 0) -> int:
        """The partition of a file, always the same; ``new`` is how many new files were listed before it."""
        there = self.latest.get(path)
        return (len(self.latest) + new) % self.partitions if there is None else there.partition


class ListFile:
    """The list on disk. ``contents`` is what was read so far; ``refresh`` reads on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents = FileList()
        self._read = 0

    @property
    def exists(self) -> bool:
        """A run has made it already. Call ``refresh`` first."""
        return self._read > 0

    def refresh(self) -> bool:
        """Read what was appended; True if there was something."""
        try:
            if not self.path.exists() or self.path.stat().st_size <= self._read:
                return False
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError as error:
            raise StorageError(f"can't read the list of files {self.path}: {error}") from error
        whole = data[: data.rfind(b"\n") + 1]  # the rest is the unfinished end of an append
        for line in whole.splitlines():
            self._take(line)
        self._read += len(whole)
        return bool(whole)

    def append(self, entries: Sequence[Entry], *, partitions: int = 0, ended: bool = False) -> bool:
        """Append durably what follows ``contents``. False if another process has appended meanwhile: look again.

        ``partitions`` makes the list.
        """
        lines = [_Line(format=FORMAT, partitions=partitions)] if partitions else []
        lines += [_Line(entry=entry) for entry in entries]
        lines += [_Line(ended=True)] if ended else []
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            make_private_folder(self.path.parent)
            with self._locked() as fd:
                size = os.fstat(fd).st_size
                written = os.pread(fd, size - self._read, self._read)
                if b"\n" in written:
                    return False
                os.ftruncate(fd, self._read)  # the rest is what a process left that died while it appended
                _write(fd, data, self._read)
        except OSError as error:
            raise StorageError(
                f"can't write the list of files {self.path}: {error}",
                hint="free up disk space, or check who owns the folder",
            ) from error
        self.refresh()
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        fd = open_private(self.path, os.O_RDWR)
        try:
            deadline = time.monotonic() + _LOCK_S_MAX
            while not _lock(fd):
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another process has locked the list of files {self.path} for {_LOCK_S_MAX:.0f} s",
                        hint="find out which process it is, for example with lsof",
                    )
                time.sleep(_LOCK_PAUSE_S)
            yield fd
        finally:
            os.close(fd)

    def _take(self, data: bytes) -> None:
        where = f"the list of files {self.path}"
        try:
            line = _DECODER.decode(data)
        except UNREADABLE as error:
            raise DataError(f"{where} is unreadable: {error}: {data[:100]!r}") from error
        if not self.contents.partitions and line.format != FORMAT:
            raise DataError(
                f"{where} is of format {line.format}; this version of Headrace reads {FORMAT}",
                hint="use the version of Headrace that wrote it, or a newer one",
            )
        if line.partitions:
            self.contents.start(line.partitions)
        if line.entry is not None:
            self.contents.add(line.entry)
        self.contents.ended |= line.ended


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    os.fsync(fd)
