"""What a log partition holds, byte for byte, and how to make readers pass over damage.

Readers skip what an unfinished append left, and stop at damage, because what was there may have been acknowledged.
``repair`` makes a damaged place look like unfinished appends: it overwrites it with headers that claim to reach beyond
their place, and zeros. So every reader skips the same bytes, whenever it gets there. A copy of the damaged bytes is
kept in a file beside the partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headrace.core.durable import copy_into
from headrace.core.errors import CorruptLogError, StorageError
from headrace.core.ids import Offset
from headrace.systems.log import segment
from headrace.systems.log.admin import LogAdmin
from headrace.systems.log.layout import Seal, StreamFolder
from headrace.systems.log.partition import PartitionFile, sync_partition
from headrace.systems.log.segment import ScanEnd, TailState

_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
"""A reader that skips an unfinished append reads all that it claims: a repair leaves pieces of this size."""


class GapKind(Enum):
    """Why bytes of a partition aren't records."""

    TORN = "torn"
    """An unfinished append: its writer died or found the disk full, and the record was never acknowledged."""
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
        """The gaps that readers don't pass."""
        return tuple(gap for gap in self.gaps if gap.kind is GapKind.DAMAGED)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a stream. ``seal_fault`` says what is wrong with its seal file; empty if nothing is."""

    stream: str
    partitions: tuple[Inspection, ...]
    seal_fault: str = ""

    @property
    def damaged(self) -> bool:
        """Whether readers stop with an error somewhere."""
        return bool(self.seal_fault) or any(one.damage for one in self.partitions)

    @property
    def damaged_bytes(self) -> int:
        """How much readers don't pass."""
        return sum(gap.stop - gap.start for one in self.partitions for gap in one.damage)

    @property
    def unfinished_bytes(self) -> int:
        """How much unfinished appends have left."""
        return sum(gap.stop - gap.start for one in self.partitions for gap in one.gaps) - self.damaged_bytes

    @property
    def sealed(self) -> bool:
        """Whether every partition has a seal."""
        return all(one.sealed for one in self.partitions)


def inspect_stream(root: Path, stream: str) -> Findings:
    """Read a stream of the log in ``root`` as a whole, and check every record."""
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
    """Read a partition from its trim point to its end, and check every record."""
    with closing(PartitionFile(folder.log(partition), f"{folder.name}[{partition}]")) as file:
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
            raise StorageError(
                f"{what}: can't repair {path}: {error}", hint="check the disk that holds the log"
            ) from error
    return copy


def _seal_fault(folder: StreamFolder) -> str:
    try:
        folder.read_seal()
    except CorruptLogError as error:
        return error.message
    return ""
