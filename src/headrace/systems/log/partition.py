"""One partition file, open for reading: records from a position, record boundaries, and the seal.

It reads with ``pread``, so any number of readers may share a file, and none blocks a writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace.core import errors
from headrace.core import files as descriptors
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.systems.base import Unsynced
from headrace.systems.log import segment
from headrace.systems.log.layout import OpenFiles, StreamFolder, gone, replaced
from headrace.systems.log.segment import ScanEnd, TailState

_SEARCH_BYTES = 1 << 16
_READ_BYTES = 1 << 20
_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    """When a record was appended. ``check`` is that of its header."""

    offset: Offset
    time_ms: int
    check: int


def sync_partition(descriptor: int, what: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        said = f"{what}: fsync failed, so a power cut may lose records: {error}"
        raise errors.IndeterminateWriteError(said, hint="check the disk that holds the log") from error


def unsynced_partition(descriptor: int, what: str, done: Callable[[], None]) -> Unsynced:
    """Return the writes to this open file, by any process. Other openers of the file wait for the same object."""
    stat = os.fstat(descriptor)
    return Unsynced((stat.st_dev, stat.st_ino), partial(sync_partition, descriptor, what), done)


class PartitionFile:
    """A partition; ``what`` is its name in errors. Use after ``close`` opens the same file again, or raises."""

    def __init__(self, path: Path, what: str, *, appends: bool = False) -> None:
        self.path = path
        self.what = what
        self.torn_bytes = 0  # the number of bytes of torn appends that were skipped
        self.used: Callable[[], None] = lambda: None  # to call when the file will probably be used again soon
        self._flags = (os.O_RDWR | os.O_APPEND if appends else os.O_RDONLY) | os.O_CLOEXEC
        self._fd: int | None = None
        try:
            fd = self._open()
        except (FileNotFoundError, NotADirectoryError) as error:
            said = f"{what}: its file {path} is missing"
            raise errors.StreamNotFoundError(said, hint="restore the stream's folder from a backup") from error
        try:
            self.seed = self._seed_in(fd)
            self._opened = os.fstat(fd)
        except errors.HeadraceError:
            os.close(fd)
            raise
        self._fd = fd

    def shared(self, files: OpenFiles, unsynced: Callable[[], bool]) -> None:
        self.used = partial(files.used, self, unsynced)
        self.used()

    @property
    def fd(self) -> int:
        if self._fd is None:
            try:
                fd = self._open()
            except (FileNotFoundError, NotADirectoryError):
                raise gone(self.path, self.what) from None
            try:
                # Another file may have got the number of a deleted one, but not its salt.
                if not os.path.samestat(os.fstat(fd), self._opened) or self._seed_in(fd) != self.seed:
                    raise replaced(self.path, self.what)
            except errors.HeadraceError:
                os.close(fd)
                raise
            self._fd = fd
            self.used()
        return self._fd

    def _open(self) -> int:
        try:
            return os.open(self.path, self._flags)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            full = descriptors.FULL in str(error)
            what = f"{self.what}: can't open {self.path}: {error}"
            raise errors.StorageError(what, hint=descriptors.hint() if full else None) from error

    def _seed_in(self, fd: int) -> int:
        try:
            return segment.decode_file_header(os.pread(fd, segment.FILE_HEADER_SIZE, 0))
        except errors.CorruptLogError as error:
            raise errors.CorruptLogError(f"{self.what}: {self.path}: {error.message}", hint=error.hint) from error

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size_there(self) -> int:
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise gone(self.path, self.what) from None
        if not os.path.samestat(found, self._opened):
            raise replaced(self.path, self.what)
        return found.st_size

    def size(self) -> int:
        return self.size_there() if self._fd is None else os.fstat(self._fd).st_size

    def read(self, position: Offset, max_bytes: int, size: int) -> segment.Scan:
        """Return the records from ``position`` on, in a file of ``size`` bytes.

        At most ``max_bytes`` of records, but always one complete record if there is one. Skips torn appends. The scan
        stops with ``INCOMPLETE`` if the next record is still being written. Raises ``CorruptLogError``, but only after
        all records before the damage were returned.
        """
        want = max(max_bytes, segment.HEADER_SIZE)
        while True:
            result = segment.scan(self.bytes_at(position, min(want, size - position)), position, self.seed)
            if result.payloads or result.stop in (ScanEnd.END, ScanEnd.SEALED):
                return result
            if result.stop is ScanEnd.INCOMPLETE and position + result.need <= size:
                want = max(want, result.need)
                continue
            skip = self._skippable(position, size)
            if skip == 0:
                return result
            self.torn_bytes += skip
            _log.info("skipped the rest of an unfinished append", partition=self.what, offset=position, bytes=skip)
            position += skip

    def diagnose(self, position: Offset, size: int) -> segment.Diagnosis:
        head = self.bytes_at(position, min(segment.HEADER_SIZE, size - position))
        claimed = min(segment.claimed_size(head, self.seed), size - position)
        return segment.diagnose(self.bytes_at(position, claimed), self.seed)

    def next_record(self, start: Offset, size: int) -> Offset:
        """Return where the first complete, valid record, or a seal, begins at or after ``start``; ``size`` if none."""
        while (found := self._find(start, size)) is not None:
            if found.kind == segment.SEAL or (
                found.end <= size
                and segment.scan(self.bytes_at(found.at, found.end - found.at), found.at, self.seed).payloads
            ):
                return found.at
            start = found.at + 1
        return size

    def _skippable(self, position: Offset, size: int) -> int:
        """0: wait for more bytes."""
        diagnosis = self.diagnose(position, size)
        if diagnosis.state is TailState.CORRUPT:
            raise errors.CorruptLogError(
                f"{self.what}, offset {position}: {diagnosis.reason} ({self.path})",
                hint="the file was damaged or replaced, lost unsynced data in a power cut, or no record begins at "
                "this offset: restore the file from a backup, or check what can still be read with "
                f"headrace stream verify {self.what.partition('[')[0]}",
            )
        return diagnosis.skip if diagnosis.state is TailState.TORN else 0

    def appended(self, start: Offset, stop: Offset) -> Iterator[Appended]:
        """Records complete at ``stop``; ``start`` is a place of a record or of a torn append. Checks every body."""
        while start < stop:
            result = self.read(start, _READ_BYTES, stop)
            if not result.payloads:
                return
            first = result.offsets[0]
            headers = self.bytes_at(first, result.offsets[-1] + segment.HEADER_SIZE - first)
            for offset in result.offsets:
                at = offset - first
                yield Appended(offset, segment.time_of(headers, at), segment.check_of(headers, at))
            start = result.next

    def latest_time(self, start: Offset, stop: Offset) -> int:
        """Return the latest time of the records between two record boundaries; 0 if there are none.

        Looks at headers only, unless something between isn't a record. So a torn append that claims to end exactly
        where a later record begins may hide those between: add a time that they can't exceed, such as the present.
        """
        latest, at, last = 0, start, start
        while at < stop:
            chunk = self.bytes_at(at, min(_SEARCH_BYTES, stop - at))
            time_ms, last_at, after = segment.latest_time(chunk, self.seed)
            if not after or at + after > stop:
                # Something here is torn: perhaps the last record that looked whole, and claims to end here.
                return max(latest, time_ms, *(record.time_ms for record in self.appended(last, stop)))
            latest, last, at = max(latest, time_ms), at + last_at, at + after
        return latest

    def first_appended(self, start: Offset, stop: Offset) -> int | None:
        """Return the time of the first record at or after ``start`` (from its header, if it can); None if none is."""
        head = self.bytes_at(start, segment.HEADER_SIZE)
        found = segment.header_at(head, 0, self.seed)
        if found is not None and found.kind == segment.RECORD:
            end = start + found.end
            if end == stop or (end < stop and self.check_at(end) is not None):
                return segment.time_of(head, 0)
        return next((record.time_ms for record in self.appended(start, stop)), None)

    def check_at(self, offset: Offset) -> int | None:
        head = self.bytes_at(offset, segment.HEADER_SIZE)
        return None if segment.header_at(head, 0, self.seed) is None else segment.check_of(head, 0)

    def begins_record(self, position: Offset) -> bool:
        """Whether a record, or the remains of a torn append, begins at ``position``: a reader may be at either."""
        head = self.bytes_at(position, segment.HEADER_SIZE)
        if segment.header_at(head, 0, self.seed) is not None:
            return True
        claimed = self.bytes_at(position, segment.claimed_size(head, self.seed))
        return segment.diagnose(claimed, self.seed).state is TailState.TORN

    def end(self) -> tuple[Offset, bool]:
        """Where the next record begins, and whether there is a seal: the last header tells; a file may end anywhere."""
        size = self.size()
        stop, width = size, _SEARCH_BYTES
        while stop > segment.FILE_HEADER_SIZE:
            start = max(segment.FILE_HEADER_SIZE, stop - width)
            # A header may straddle two of these reads.
            data = self.bytes_at(start, min(size, stop + segment.HEADER_SIZE - 1) - start)
            found = segment.find_last_header(data, self.seed)
            if found is not None:
                if found.kind == segment.SEAL:
                    return start + found.at, True
                end = start + found.end
                return (end if end <= size else start + found.at), False
            stop, width = start, width * 4
        return segment.FILE_HEADER_SIZE, False

    def find_seal(self, start: Offset) -> Offset | None:
        """``start`` need not be a record boundary."""
        found = self._find(start, self.size(), segment.SEAL)
        return None if found is None else found.at

    def _find(self, start: Offset, size: int, kind: int | None = None) -> segment.FoundHeader | None:
        while start < size:
            data = self.bytes_at(start, min(_SEARCH_BYTES * 16, size - start))
            found = segment.find_header(data, 0, len(data), self.seed, kind)
            if found is not None:
                return segment.FoundHeader(start + found.at, found.kind, start + found.end)
            if start + len(data) >= size:
                return None
            start += len(data) - segment.HEADER_SIZE + 1
        return None

    def bytes_at(self, position: Offset, length: int) -> bytes:
        if length <= 0:
            return b""
        data = os.pread(self.fd, length, position)
        while len(data) < length:
            # pread returns fewer bytes than asked for at 2 GiB or after a signal, although the file has them.
            more = os.pread(self.fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data


def open_partition(folder: StreamFolder, partition: int) -> PartitionFile:
    return PartitionFile(folder.log(partition), f"{folder.name}[{partition}]")
