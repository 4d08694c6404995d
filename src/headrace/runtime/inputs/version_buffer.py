"""The version buffer: frames that arrived before their version's turn, by label, in order of arrival.

Its memory is bounded: beyond a limit, frames go to an unnamed temporary file on the local disk. The buffer doesn't
survive the process: the resume offset is before these frames, so they are read again from the stream.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from headrace.core.errors import StorageError
from headrace.core.frame import decode_header
from headrace.core.ids import SSP, Offset

MEMORY_BYTES_MAX = 32 << 20
_RECORD = struct.Struct(">IqqI")


@dataclass(frozen=True, slots=True)
class BufferedFrame:
    """A whole frame with its offset and that of the next one."""

    ssp: SSP
    offset: Offset
    after: Offset
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Void:
    """The producer's frames of a partition above ``seq`` are void, among the first ``spilled`` ones of the file."""

    ssp: SSP
    producer: int
    seq: int
    spilled: int

    def covers(self, frame: BufferedFrame) -> bool:
        header = decode_header(frame.payload)
        return frame.ssp == self.ssp and header.producer == self.producer and header.seq > self.seq


@dataclass(slots=True)
class _Label:
    frames: list[BufferedFrame] = field(default_factory=list)
    file: IO[bytes] | None = None
    spilled: int = 0
    voids: list[_Void] = field(default_factory=list)


class VersionBuffer:
    """The early frames of one attempt."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._limit = memory_bytes_max
        self._labels: dict[int, _Label] = {}
        self._ssps: list[SSP] = []
        self.memory_bytes = 0
        self.disk_bytes = 0

    def put(self, label: int, frame: BufferedFrame) -> None:
        """Append a frame to the buffer of its label."""
        entry = self._labels.setdefault(label, _Label())
        if entry.file is None and self.memory_bytes + len(frame.payload) <= self._limit:
            entry.frames.append(frame)
            self.memory_bytes += len(frame.payload)
        else:
            self._spill(entry, frame)

    def take(self, label: int) -> Iterator[BufferedFrame]:
        """Yield the frames of a label, in order of arrival, and drop them."""
        entry = self._labels.pop(label, None)
        if entry is None:
            return
        self.memory_bytes -= sum(len(frame.payload) for frame in entry.frames)
        yield from entry.frames
        if entry.file is not None:
            with entry.file as file:
                with _told():
                    file.seek(0)
                for number, frame in enumerate(self._read(file)):
                    if not any(number < void.spilled and void.covers(frame) for void in entry.voids):
                        yield frame

    def forget(self, ssp: SSP, producer: int, seq: int) -> None:
        """Drop the producer's frames of this partition above ``seq``. Frames put later belong to a new generation."""
        for entry in self._labels.values():
            void = _Void(ssp, producer, seq, entry.spilled)
            kept = [frame for frame in entry.frames if not void.covers(frame)]
            self.memory_bytes -= sum(len(f.payload) for f in entry.frames) - sum(len(f.payload) for f in kept)
            entry.frames = kept
            if entry.spilled:
                entry.voids.append(void)

    def clear(self) -> None:
        """Drop everything."""
        for entry in self._labels.values():
            if entry.file is not None:
                with suppress(OSError):  # closing flushes data that nothing will read
                    entry.file.close()
        self._labels.clear()
        self.memory_bytes = self.disk_bytes = 0

    def _spill(self, entry: _Label, frame: BufferedFrame) -> None:
        if entry.file is None:
            with _told():
                entry.file = tempfile.TemporaryFile(prefix="headrace-early-")  # noqa: SIM115 - lives until taken
        if frame.ssp not in self._ssps:
            self._ssps.append(frame.ssp)
        number = self._ssps.index(frame.ssp)
        with _told():
            entry.file.write(_RECORD.pack(number, frame.offset, frame.after, len(frame.payload)))
            entry.file.write(frame.payload)
        entry.spilled += 1
        self.disk_bytes += len(frame.payload)

    def _read(self, file: IO[bytes]) -> Iterator[BufferedFrame]:
        while head := file.read(_RECORD.size):
            number, offset, after, size = _RECORD.unpack(head)
            self.disk_bytes -= size
            yield BufferedFrame(self._ssps[number], offset, after, file.read(size))


@contextmanager
def _told() -> Iterator[None]:
    """Turn disk errors into errors of ours. The task ends with one, and reads its early frames again."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"early arrivals can't be kept in {tempfile.gettempdir()}: {error}",
            hint="free up space on that disk, or set TMPDIR to a folder on another disk; nothing is lost",
        ) from error
