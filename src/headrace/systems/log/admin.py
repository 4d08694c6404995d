"""Management of the log's streams. The admin holds no state, so threads may share one."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
from typing_extensions import override

from headrace.core.clock import WallClock
from headrace.core.errors import StorageError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Admin, Extent, StreamInfo, check_within
from headrace.systems.log import segment
from headrace.systems.log.holes import punch
from headrace.systems.log.layout import Seal, StreamFolder, stream_names
from headrace.systems.log.partition import PartitionFile
from headrace.systems.log.time_index import first_at


class LogAdmin(Admin):
    """The admin of the log in the folder ``root``."""

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
        """Return the offsets of each partition: byte positions, of which the first one follows the file header."""
        folder = StreamFolder(self._root, stream)
        info = folder.require_info()
        seal = folder.read_seal()
        if seal is not None and seal.ends is not None:
            return [_extent(folder, n, end, sealed=True) for n, end in enumerate(seal.ends)]
        return [self._extent_of(folder, partition) for partition in range(info.partitions)]

    @override
    def extent(self, ssp: SSP) -> Extent:
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        seal = folder.read_seal()
        if seal is not None and seal.ends is not None:
            return _extent(folder, ssp.partition, seal.ends[ssp.partition], sealed=True)
        return self._extent_of(folder, ssp.partition)

    def _extent_of(self, folder: StreamFolder, partition: int) -> Extent:
        with closing(self._open(folder, partition)) as file:
            end, sealed = file.end()
        return _extent(folder, partition, end, sealed=sealed)

    @override
    def unread(self, stream: str, group: str) -> builtins.list[int]:
        """What isn't read, by the sizes of the files: a run loop that writes to thousands of partitions asks often."""
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
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        return first_at(folder, ssp.partition, time_ms, self._upcoming(folder, ssp.partition))

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """Reads one or two headers. Raises ``CorruptLogError`` if no record begins at the offset."""
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        end = self._upcoming(folder, ssp.partition)
        with closing(self._open(folder, ssp.partition)) as file:
            return file.first_appended(max(offset, folder.read_trim(ssp.partition)), end)

    @override
    def trimmed_ms(self, ssp: SSP) -> int | None:
        """Return when the partition was trimmed last."""
        return StreamFolder(self._root, ssp.stream.name).trim_ms(ssp.partition)

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        oldest, end = folder.read_trim(ssp.partition), self._upcoming(folder, ssp.partition)
        check_within(ssp, offset, Extent(oldest, end))
        with closing(self._open(folder, ssp.partition)) as file:
            if offset not in (oldest, end) and not file.begins_record(offset):
                raise UsageError(
                    f"{ssp}: no record begins at offset {offset} (the end is {end})",
                    hint="headrace stream read --offsets shows the offsets of records",
                )

    def _upcoming(self, folder: StreamFolder, partition: int) -> Offset:
        seal = folder.read_seal()
        if seal is not None and seal.ends is not None:
            return seal.ends[partition]
        with closing(self._open(folder, partition)) as file:
            return file.end()[0]

    @override
    def seal(self, stream: str) -> None:
        """End the stream. The seal file is written before the seal records.

        So a writer that finds no seal file after a write knows that its records precede every seal record. Another seal
        record, from a concurrent or repeated call, changes nothing: the first one in the partition counts.
        """
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
        file = self._open(folder, partition)
        try:
            _append(file.path, segment.seal_record(file.seed, WallClock().now_ms()))
            first = file.find_seal(search_from)
        finally:
            file.close()
        if first is None:
            raise StorageError(
                f"{folder.name}[{partition}]: the seal just written to {file.path} is missing",
                hint="another program changed the file, or the file system lost the write",
            )
        return first

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        """Drop the records below ``before``, which is the offset of a record or the end, and free their disk blocks."""
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
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

    def _open(self, folder: StreamFolder, partition: int) -> PartitionFile:
        return PartitionFile(folder.log(partition), f"{folder.name}[{partition}]")


def _append(path: Path, record: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if os.write(fd, record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(
            f"can't append to {path}: {error}", hint="free up space on the disk, then seal again"
        ) from error


def _extent(folder: StreamFolder, partition: int, end: Offset, *, sealed: bool) -> Extent:
    oldest = folder.read_trim(partition)
    return Extent(oldest, end, sealed, trimmed=oldest > segment.FILE_HEADER_SIZE)
