"""The reading side of the log: many partitions, one inotify instance, no waiting.

A poll drains the wake-ups first and looks at the files second, so that a write after the look brings
another wake-up. Partitions that were not written since they were last found empty cost nothing; all of
them are looked at twice a second, for writers that bring no wake-up (another machine), and for streams that somebody
took away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from headrace.core.errors import HeadraceError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Consumer, Edge, Ended, Polled, Position, Records
from headrace.systems.log.file_watcher import FileWatcher
from headrace.systems.log.layout import StreamFolder
from headrace.systems.log.partition import PartitionFile
from headrace.systems.log.segment import Scan, ScanEnd

_LOOK_AT_ALL_S = 0.5


@dataclass(slots=True)
class _Reading:
    """One registered partition."""

    ssp: SSP
    folder: StreamFolder
    file: PartitionFile
    watch: int | None
    position: Offset = 0
    look: bool = True
    """There may be something that was not read yet."""
    ended: bool = False
    waiting_size: int = -1
    """The file's size when its end was found incomplete: no use to look again before it has another."""
    oldest: Offset = 0
    trim_seen: tuple[int, int] | None = None


class LogConsumer(Consumer):
    """See ``Consumer``. ``torn_bytes`` counts what was stepped over."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._readings: dict[SSP, _Reading] = {}
        self._by_watch: dict[int, _Reading] = {}
        self._wakeup = FileWatcher.open()
        self._looked_at_all = time.monotonic()
        self._failure: HeadraceError | None = None
        self._torn_before = 0

    @property
    def torn_bytes(self) -> int:
        """Bytes of appends that a dying writer or a full disk left unfinished."""
        return self._torn_before + sum(reading.file.torn_bytes for reading in self._readings.values())

    @override
    def register(self, ssp: SSP, position: Position) -> None:
        reading = self._readings.get(ssp)
        if reading is None:
            reading = self._open(ssp)
            try:
                reading.position = self._resolve(reading, position)
            except HeadraceError:
                self.unregister(ssp)
                raise
        else:
            reading.position = self._resolve(reading, position)
        reading.look, reading.ended, reading.waiting_size = True, False, -1

    def _open(self, ssp: SSP) -> _Reading:
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        file = PartitionFile(folder.log(ssp.partition), str(ssp))
        watch = self._wakeup.watch(file.path) if self._wakeup else None
        reading = _Reading(ssp, folder, file, watch)
        self._readings[ssp] = reading
        if watch is not None:
            self._by_watch[watch] = reading
        return reading

    def _resolve(self, reading: _Reading, position: Position) -> Offset:
        oldest = self._oldest(reading)
        if position is Edge.OLDEST:
            return oldest
        end, sealed = reading.file.end()
        if isinstance(position, Edge):
            seal = reading.folder.read_seal() if not sealed else None
            return seal.ends[reading.ssp.partition] if seal and seal.ends else end
        if position < oldest:
            raise TrimmedOffsetError(f"{reading.ssp}: offset {position} was given up; the oldest is {oldest}")
        if position > reading.file.size():
            raise UsageError(
                f"{reading.ssp}: offset {position} lies behind the end, {end}",
                hint="name an offset up to the end; headrace stream describe shows where it is",
            )
        return position

    def _oldest(self, reading: _Reading) -> Offset:
        path = reading.folder.trim(reading.ssp.partition)
        try:
            stat = path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
        except FileNotFoundError:
            seen = (0, 0)
        if seen != reading.trim_seen:
            reading.oldest = reading.folder.read_trim(reading.ssp.partition)
            reading.trim_seen = seen
        return reading.oldest

    @override
    def unregister(self, ssp: SSP) -> None:
        reading = self._readings.pop(ssp, None)
        if reading is None:
            return
        if self._wakeup is not None and reading.watch is not None:
            self._wakeup.unwatch(reading.watch)
            self._by_watch.pop(reading.watch, None)
        self._torn_before += reading.file.torn_bytes
        reading.file.close()

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """See ``Consumer``. If one partition fails behind others that gave records, the next poll raises."""
        self._note_changes()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        out: list[Polled] = []
        readings = self._readings.values() if ssps is None else [self._reading(ssp) for ssp in ssps]
        for reading in readings:
            if not reading.look:
                continue
            try:
                self._read(reading, max_bytes, out)
            except HeadraceError as failure:
                if not out:
                    raise
                self._failure = failure
                break
        return out

    def _note_changes(self) -> None:
        changed = self._wakeup.drain() if self._wakeup else None
        now = time.monotonic()
        if changed is None or now - self._looked_at_all > _LOOK_AT_ALL_S:
            self._looked_at_all = now
            for reading in self._readings.values():
                reading.file.require_there()
                reading.look = True
            return
        for number in changed:
            if number in self._by_watch:
                self._by_watch[number].look = True

    def _read(self, reading: _Reading, max_bytes: int, out: list[Polled]) -> None:
        size = reading.file.size()
        if reading.ended or size in (reading.position, reading.waiting_size):
            reading.look = False
            return
        oldest = self._oldest(reading)
        if reading.position < oldest:
            raise TrimmedOffsetError(
                f"{reading.ssp}: offset {reading.position}, the next, was given up; the oldest is {oldest}"
            )
        self._take(reading, reading.file.read(reading.position, max_bytes, size), size, out)

    def _take(self, reading: _Reading, scan: Scan, size: int, out: list[Polled]) -> None:
        reading.position = scan.next
        if scan.payloads:
            out.append(Records(reading.ssp, scan.offsets, scan.payloads, scan.next))
            reading.look = scan.next < size
        else:
            reading.look = False
            reading.waiting_size = size
        if scan.stop is ScanEnd.SEALED:
            out.append(Ended(reading.ssp, scan.next))
            reading.ended, reading.look = True, False

    def _reading(self, ssp: SSP) -> _Reading:
        reading = self._readings.get(ssp)
        if reading is None:
            raise StreamNotFoundError(f"{ssp} is not registered with this consumer")
        return reading

    @override
    def position(self, ssp: SSP) -> Offset:
        return self._reading(ssp).position

    @override
    def fileno(self) -> int | None:
        return self._wakeup.fd if self._wakeup else None

    @override
    def lag(self, ssp: SSP) -> int | None:
        """Bytes to the end of the file."""
        reading = self._reading(ssp)
        return 0 if reading.ended else max(0, reading.file.size() - reading.position)

    @override
    def close(self) -> None:
        for ssp in list(self._readings):
            self.unregister(ssp)
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None
