"""The embedded log: a folder of append-only files that several processes of one machine read and write.

Readers skip what an unfinished append left, and stop at damage, because what was there may have been acknowledged.
``repair`` overwrites a damaged place with headers that claim to reach beyond their place, and zeros: so every reader
skips the same bytes, whenever it gets there. A copy of the damaged bytes is kept in a file beside the partition.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.clock import WallClock
from headrace.core.errors import CorruptLogError, StorageError, UsageError
from headrace.core.files import copy_into
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Admin, Extent, StreamInfo, System, check_within
from headrace.systems.log import segment
from headrace.systems.log.consumer import FileWatcher, LogConsumer, LogWakeups
from headrace.systems.log.layout import Seal, StreamFolder, punch, stream_names
from headrace.systems.log.partition import PartitionFile, open_partition, sync_partition
from headrace.systems.log.producer import BUFFER_BYTES, LogProducer
from headrace.systems.log.segment import ScanEnd, TailState
from headrace.systems.log.time_index import first_at
from headrace.systems.registry import check_option_names


class LogAdmin(Admin):
    """The admin of the log in the folder ``root``. It holds no state, so threads may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def list(self) -> builtins.list[str]:
        return stream_names(self._root)

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return StreamFolder(self._root, stream).read_info()

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        return StreamFolder(self._root, stream).create(partitions, columns, key)

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        return StreamFolder(self._root, stream).add_columns(columns)

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        return StreamFolder(self._root, stream).add_partitions(partitions)

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Byte positions, of which the first one follows the file header."""
        folder = StreamFolder(self._root, stream)
        info = folder.require_info()
        seal = folder.read_seal()
        return [_extent(folder, partition, seal) for partition in range(info.partitions)]

    @override
    def extent(self, ssp: SSP) -> Extent:
        folder = self._holding(ssp)
        return _extent(folder, ssp.partition, folder.read_seal())

    @override
    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """By the sizes of the files: a run loop that writes to thousands of partitions asks often."""
        folder = StreamFolder(self._root, stream)
        read = folder.read_positions(group)
        try:
            with os.scandir(folder.path) as entries:
                sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".log")}
        except FileNotFoundError:
            folder.require_info()
            raise
        in_order = (sizes[name] for name in sorted(sizes))
        return [size - read[n] if n in read else size - folder.read_trim(n) for n, size in enumerate(in_order)]

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        folder = self._holding(ssp)
        return first_at(folder, ssp.partition, time_ms, _end(folder, ssp.partition, folder.read_seal())[0])

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Reads one or two headers. Raises ``CorruptLogError`` if no record begins at the offset."""
        folder = self._holding(ssp)
        end, _ = _end(folder, ssp.partition, folder.read_seal())
        with closing(open_partition(folder, ssp.partition)) as file:
            return file.first_appended(max(offset, folder.read_trim(ssp.partition)), end)

    @override
    def trimmed_ms(self, ssp: SSP) -> int | None:
        return StreamFolder(self._root, ssp.stream.name).trim_ms(ssp.partition)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        folder = self._holding(ssp)
        oldest, (end, _) = folder.read_trim(ssp.partition), _end(folder, ssp.partition, folder.read_seal())
        check_within(ssp, offset, Extent(oldest, end))
        with closing(open_partition(folder, ssp.partition)) as file:
            if offset not in (oldest, end) and not file.begins_record(offset):
                what = f"{ssp}: no record begins at offset {offset} (the end is {end})"
                raise UsageError(what, hint="headrace stream read --offsets shows the offsets of records")

    @override
    def seal(self, stream: str) -> None:
        """A writer that finds no seal file after a write knows that no seal record is before it. The first counts."""
        folder = StreamFolder(self._root, stream)
        info = folder.require_info()
        sizes = [folder.log(partition).stat().st_size for partition in range(info.partitions)]
        seal = folder.read_seal()
        if seal is not None and seal.ends is not None:
            return
        if seal is None:
            folder.write_seal(Seal(None))
        else:
            sizes = [segment.FILE_HEADER_SIZE] * info.partitions
        ends = [self._seal(folder, partition, size) for partition, size in enumerate(sizes)]
        folder.write_seal(Seal(tuple(ends)))

    def _seal(self, folder: StreamFolder, partition: int, search_from: int) -> Offset:
        with closing(open_partition(folder, partition)) as file:
            _append(file.path, segment.seal_record(file.seed, WallClock().now_ms()))
            first = file.find_seal(search_from)
        if first is None:
            what = f"{folder.name}[{partition}]: the seal just written to {folder.log(partition)} is missing"
            raise StorageError(what, hint="another program changed the file, or the file system lost the write")
        return first

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        folder = self._holding(ssp)
        if before <= folder.read_trim(ssp.partition):
            return
        self.check_offset(ssp, before)
        # The trim point is written first, so that a reader that finds zeros can learn why.
        folder.write_trim(ssp.partition, before)
        punch(folder.log(ssp.partition), segment.FILE_HEADER_SIZE, before)

    @override
    def report_position(self, ssp: SSP, group: str, position: Offset) -> None:
        StreamFolder(self._root, ssp.stream.name).write_position(ssp.partition, group, position)

    @override
    def reported_positions(self, stream: str, group: str) -> dict[int, Offset]:
        return StreamFolder(self._root, stream).read_positions(group)

    def _holding(self, ssp: SSP) -> StreamFolder:
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        return folder


def _append(path: Path, record: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.write(fd, record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
    except OSError as error:
        what = f"can't append to {path}: {error}"
        raise StorageError(what, hint="free up space on the disk, then seal again") from error


def _end(folder: StreamFolder, partition: int, seal: Seal | None) -> tuple[Offset, bool]:
    if seal is not None and seal.ends is not None:
        return seal.ends[partition], True
    with closing(open_partition(folder, partition)) as file:
        return file.end()


def _extent(folder: StreamFolder, partition: int, seal: Seal | None) -> Extent:
    end, sealed = _end(folder, partition, seal)
    oldest = folder.read_trim(partition)
    return Extent(oldest, end, sealed, trimmed=oldest > segment.FILE_HEADER_SIZE)


@dataclass(frozen=True)
class LogSystem(System):
    """The embedded log in the folder ``root``, on a local file system. The first stream creates the folder."""

    root: Path
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))

    @override
    def admin(self) -> LogAdmin:
        return LogAdmin(self.root)

    @override
    def consumer(self) -> LogConsumer:
        return LogConsumer(self.root)

    @override
    def reader(self) -> LogConsumer:
        return LogConsumer(self.root, waits=False)

    @override
    def wakeups(self) -> LogWakeups | None:
        watcher = FileWatcher.open()
        return None if watcher is None else LogWakeups(self.root, watcher)

    @override
    def producer(self) -> LogProducer:
        return LogProducer(self.root, self.buffer_bytes)


def open_log(name: str, options: Mapping[str, Any]) -> LogSystem:
    check_option_names(name, "log", options, ("root", "buffer_bytes"), "root")
    return LogSystem(**options)


_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
"""A reader that skips an unfinished append reads all that it claims: a repair leaves pieces of this size."""


class GapKind(Enum):
    """Why bytes of a partition aren't records."""

    TORN = "torn"  # an unfinished append: its writer died or found the disk full, and the record was never acknowledged
    UNFINISHED = "unfinished"
    """The last record is incomplete. Its writer may still be at work; otherwise the next append makes it torn."""
    DAMAGED = "damaged"
    """Something has changed or lost bytes, maybe of records that were acknowledged. Readers stop here with an error."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes ``start <= offset < stop`` aren't records. ``zeros``: all of them are 0."""

    start: Offset
    stop: Offset
    kind: GapKind
    reason: str = ""
    zeros: bool = False


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found in a partition. ``end`` is where the next record will begin, or the seal is."""

    partition: int
    oldest: Offset
    end: Offset
    records: int
    sealed: bool
    gaps: tuple[Gap, ...]

    @property
    def damage(self) -> tuple[Gap, ...]:
        return tuple(gap for gap in self.gaps if gap.kind is GapKind.DAMAGED)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a stream. ``seal_fault`` says what is wrong with its seal file; empty if nothing is."""

    stream: str
    partitions: tuple[Inspection, ...]
    seal_fault: str = ""

    @property
    def damaged(self) -> bool:
        return bool(self.seal_fault) or any(one.damage for one in self.partitions)

    @property
    def damaged_bytes(self) -> int:
        return sum(gap.stop - gap.start for one in self.partitions for gap in one.damage)

    @property
    def unfinished_bytes(self) -> int:
        return sum(gap.stop - gap.start for one in self.partitions for gap in one.gaps) - self.damaged_bytes

    @property
    def sealed(self) -> bool:
        return all(one.sealed for one in self.partitions)


def inspect_stream(root: Path, stream: str) -> Findings:
    folder = StreamFolder(root, stream)
    partitions = range(folder.require_info().partitions)
    return Findings(stream, tuple(inspect(folder, partition) for partition in partitions), _seal_fault(folder))


def repair_stream(root: Path, found: Findings) -> list[Path]:
    """Make readers skip the damage that was found, and write a damaged seal file again. Returns the copies made."""
    folder = StreamFolder(root, found.stream)
    copies = [repair(folder, one.partition, gap) for one in found.partitions for gap in one.damage]
    if found.seal_fault:
        folder.write_seal(Seal(None))
        LogAdmin(root).seal(found.stream)
    return [copy for copy in copies if copy is not None]


def inspect(folder: StreamFolder, partition: int) -> Inspection:
    with closing(open_partition(folder, partition)) as file:
        start, size = folder.read_trim(partition), file.size()
        at, records, sealed, gaps = start, 0, False, list[Gap]()
        while at < size and not sealed:
            found = segment.scan(file.bytes_at(at, min(_READ_BYTES, size - at)), at, file.seed)
            records += len(found.payloads)
            at, sealed = found.next, found.stop is ScanEnd.SEALED
            if found.stop is ScanEnd.INCOMPLETE and at + found.need <= size and not found.payloads:
                found = segment.scan(file.bytes_at(at, found.need), at, file.seed)
                records += len(found.payloads)
                at = found.next
            if at < size and not found.payloads and not sealed:
                gaps.append(_gap(file, at, size))
                at = gaps[-1].stop
        end = gaps[-1].start if gaps and gaps[-1].stop == size else at
        return Inspection(partition, start, end, records, sealed, tuple(gaps))


def _gap(file: PartitionFile, start: Offset, size: int) -> Gap:
    diagnosis = file.diagnose(start, size)
    if diagnosis.state is TailState.TORN:
        return Gap(start, start + diagnosis.skip, GapKind.TORN)
    if diagnosis.state is TailState.WAIT:
        return Gap(start, size, GapKind.UNFINISHED)
    stop = file.next_record(start + 1, size)
    return Gap(start, stop, GapKind.DAMAGED, diagnosis.reason, not any(map(any, _chunks(file, start, stop))))


def _chunks(file: PartitionFile, start: Offset, stop: Offset) -> Iterator[bytes]:
    for at in range(start, stop, _READ_BYTES):
        yield file.bytes_at(at, min(_READ_BYTES, stop - at))


def repair(folder: StreamFolder, partition: int, gap: Gap) -> Path | None:
    """Make readers skip a damaged place. Returns the file with a copy of it; None if it was nothing but zeros."""
    what, path = f"{folder.name}[{partition}]", folder.log(partition)
    with closing(PartitionFile(path, what)) as file:
        copy = None if gap.zeros else path.with_name(f"{path.stem}.damaged-{gap.start}")
        try:
            if copy is not None:
                copy_into(copy, _chunks(file, gap.start, gap.stop))
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                for start in range(gap.start, gap.stop, _PIECE_BYTES):
                    size = min(_PIECE_BYTES, gap.stop - start)
                    # Write zeros after it, because headers of damaged records there would be mistaken for records.
                    os.pwrite(descriptor, segment.header_beyond(size, file.seed).ljust(size, b"\0"), start)
                sync_partition(descriptor, what)
            finally:
                os.close(descriptor)
        except OSError as error:
            said = f"{what}: can't repair {path}: {error}"
            raise StorageError(said, hint="check the disk that holds the log") from error
    return copy


def _seal_fault(folder: StreamFolder) -> str:
    try:
        folder.read_seal()
    except CorruptLogError as error:
        return error.message
    return ""
