"""One partition file, open for reading: records from a position, boundaries, and the seal.

Reads with pread, so that a file may be shared by any number of readers and never blocks a writer. What
``segment`` can't decide from a chunk is decided here by reading what it asks for.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.core.errors import CorruptLogError, StreamNotFoundError
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.systems.log import segment
from headrace.systems.log.layout import require_there
from headrace.systems.log.segment import ScanEnd, TailState

_SEARCH_BYTES = 1 << 16

_log = logger(__name__)


class PartitionFile:
    """A partition, open for reading. ``what`` names it in errors."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.torn_bytes = 0
        """How many bytes of torn appends were stepped over."""
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise StreamNotFoundError(f"{what}: its file {path} is missing") from error
        try:
            self.seed = segment.decode_file_header(os.pread(self.fd, segment.FILE_HEADER_SIZE, 0))
        except CorruptLogError as error:
            self.close()
            raise CorruptLogError(f"{what}: {path}: {error.message}", hint=error.hint) from error

    def close(self) -> None:
        """Release the file."""
        os.close(self.fd)

    def require_there(self) -> None:
        """Raise ``StreamNotFoundError`` when another file, or none, stands where this one was opened."""
        require_there(self.path, os.fstat(self.fd), self.what)

    def size(self) -> int:
        """The bytes in the file now."""
        return os.fstat(self.fd).st_size

    def read(self, position: Offset, max_bytes: int, size: int) -> segment.Scan:
        """The records from ``position`` on, of a file of ``size`` bytes.

        At most ``max_bytes`` of them, but one whole record if there is one. ``next`` is behind torn appends.
        Stops with ``END`` or ``SEALED``, or with ``INCOMPLETE`` when what follows is still growing. Raises
        ``CorruptLogError``, but only once everything before the damage was handed out.
        """
        want = max(max_bytes, segment.HEADER_SIZE)
        while True:
            result = segment.scan(self._bytes(position, min(want, size - position)), position, self.seed)
            if result.payloads or result.stop in (ScanEnd.END, ScanEnd.SEALED):
                return result
            if result.stop is ScanEnd.INCOMPLETE and position + result.need <= size:
                want = max(want, result.need)
                continue
            skip = self._diagnose(position, size)
            if skip == 0:
                return result
            self.torn_bytes += skip
            _log.info("skipped what an unfinished append left", partition=self.what, offset=position, bytes=skip)
            position += skip

    def _diagnose(self, position: Offset, size: int) -> int:
        """How many torn bytes to step over; 0: wait for more."""
        head = self._bytes(position, min(segment.HEADER_SIZE, size - position))
        claimed = min(segment.claimed_size(head, self.seed), size - position)
        diagnosis = segment.diagnose(self._bytes(position, claimed), self.seed)
        if diagnosis.verdict is TailState.CORRUPT:
            raise CorruptLogError(
                f"{self.what}, offset {position}: {diagnosis.reason} ({self.path})",
                hint="the file was damaged, or the stream was replaced by another of its name, "
                "or this isn't the offset of a record: put the file back as it was",
            )
        return diagnosis.skip if diagnosis.verdict is TailState.TORN else 0

    def begins_record(self, position: Offset) -> bool:
        """Whether a record begins at ``position``, or what a torn append left of one: a reader may stand there, too."""
        head = self._bytes(position, segment.HEADER_SIZE)
        if segment.header_at(head, 0, self.seed) is not None:
            return True
        claimed = self._bytes(position, segment.claimed_size(head, self.seed))
        return segment.diagnose(claimed, self.seed).verdict is TailState.TORN

    def end(self) -> tuple[Offset, bool]:
        """Where the next record will begin, and whether the partition ended there with a seal.

        Looks back from the end of the file for the last header: a file that is being written, or was torn,
        doesn't end at a boundary.
        """
        size = self.size()
        stop, width = size, _SEARCH_BYTES
        while stop > segment.FILE_HEADER_SIZE:
            start = max(segment.FILE_HEADER_SIZE, stop - width)
            # One header may straddle the edge between two of these reads.
            data = self._bytes(start, min(size, stop + segment.HEADER_SIZE - 1) - start)
            found = segment.find_last_header(data, self.seed)
            if found is not None:
                if found.kind == segment.SEAL:
                    return start + found.at, True
                end = start + found.end
                return (end if end <= size else start + found.at), False
            stop, width = start, width * 4
        return segment.FILE_HEADER_SIZE, False

    def find_seal(self, start: Offset) -> Offset | None:
        """The first seal at or behind ``start``, which need not be a boundary."""
        size = self.size()
        while start < size:
            data = self._bytes(start, min(_SEARCH_BYTES * 16, size - start))
            found = segment.find_header(data, 0, len(data), self.seed, kind=segment.SEAL)
            if found is not None:
                return start + found.at
            if start + len(data) >= size:
                return None
            start += len(data) - segment.HEADER_SIZE + 1
        return None

    def _bytes(self, position: Offset, length: int) -> bytes:
        if length <= 0:
            return b""
        data = os.pread(self.fd, length, position)
        while len(data) < length:
            # A single pread ends early at 2 GiB, or by a signal; the size was seen, so the bytes are there.
            more = os.pread(self.fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data
