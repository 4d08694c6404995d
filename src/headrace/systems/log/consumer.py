"""The reading side of the log: many partitions, one inotify instance, no waiting.

A poll first drains the wake-ups and then looks at the files, so a write after the look causes another wake-up. A
partition that was read to its end costs nothing until it is written again. Twice a second the consumer looks at all
files: writers on another machine cause no wake-up, and a stream may have been removed.

One that is part of a group (``wakeups``) leaves wake-ups to the group, which also bounds the number of open files. One
without a waiting caller looks at its files at each poll, and closes those that it has read to their ends.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from headrace.core.errors import HeadraceError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Edge, Ended, Polled, Position, Records
from headrace.systems.log.file_watcher import FileWatcher
from headrace.systems.log.layout import StreamFolder
from headrace.systems.log.partition import PartitionFile, unsynced_partition
from headrace.systems.log.segment import Scan, ScanEnd, landmark
from headrace.systems.registered import Reading, RegisteringConsumer
from headrace.systems.syncing import Unsynced

if TYPE_CHECKING:
    from headrace.systems.log.wakeups import LogWakeups

_LOOK_AT_ALL_S = 0.5
_POLLS_KEPT = 4096
"""Among so many polls a landmark is found."""


@dataclass(slots=True, kw_only=True, eq=False)
class Watched(Reading):
    """A partition that is read. ``look``: there may be unread records."""

    consumer: LogConsumer
    folder: StreamFolder
    file: PartitionFile
    watch: int | None = None
    look: bool = True
    waiting_size: int = -1
    """The file's size when its last record was incomplete. There is nothing new until the size changes."""
    oldest: Offset = 0
    trim_seen: tuple[int, int] | None = None
    synced: Offset = 0
    """What lies before it is on the disk."""
    recent: deque[list[Offset]] = field(default_factory=lambda: deque(maxlen=_POLLS_KEPT))
    """The records of the last polls, from the one before the last landmark on."""


class LogConsumer(RegisteringConsumer[Watched]):
    """Reads partitions of a log. ``torn_bytes`` counts the bytes that it skipped."""

    def __init__(self, root: Path, wakeups: LogWakeups | None = None, *, waits: bool = True) -> None:
        super().__init__()
        self._root = root
        self._by_watch: dict[int, Watched] = {}
        self._wakeups = wakeups
        self._waits = waits
        self._wakeup = FileWatcher.open() if waits and wakeups is None else None
        self._look_at_all = False
        self._looked_at_all = time.monotonic()
        self._failure: HeadraceError | None = None
        self._torn_before = 0

    @property
    def torn_bytes(self) -> int:
        """Bytes of appends that a killed writer or a full disk left unfinished."""
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
        reading.recent.clear()

    def _open(self, ssp: SSP) -> Watched:
        folder = StreamFolder(self._root, ssp.stream.name)
        folder.require_partition(ssp.partition)
        file = PartitionFile(folder.log(ssp.partition), str(ssp))
        reading = Watched(ssp, consumer=self, folder=folder, file=file)
        if self._wakeups is not None:
            file.shared(self._wakeups.files, lambda: reading.position > reading.synced)
        self._readings[ssp] = reading
        self._watch(reading)
        return reading

    def _watch(self, reading: Watched) -> None:
        if self._wakeups is not None:
            reading.watch = self._wakeups.watch(reading.file.path, reading)
        elif self._wakeup is not None:
            reading.watch = self._wakeup.watch(reading.file.path)
            self._by_watch[reading.watch] = reading

    def _resolve(self, reading: Watched, position: Position) -> Offset:
        oldest = self._oldest(reading)
        if position is Edge.OLDEST:
            return oldest
        end, sealed = reading.file.end()
        if isinstance(position, Edge):
            seal = reading.folder.read_seal() if not sealed else None
            return seal.ends[reading.ssp.partition] if seal and seal.ends else end
        if position < oldest:
            raise TrimmedOffsetError(f"{reading.ssp}: offset {position} was trimmed; the oldest is {oldest}")
        if position > reading.file.size():
            raise UsageError(
                f"{reading.ssp}: offset {position} is after the end, {end}",
                hint="name an offset up to the end; headrace stream describe shows where it is",
            )
        return position

    def _oldest(self, reading: Watched) -> Offset:
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
    def _release(self, reading: Watched) -> None:
        if self._wakeups is not None and reading.watch is not None:
            self._wakeups.unwatch(reading.watch, reading)
        elif self._wakeup is not None and reading.watch is not None:
            self._wakeup.unwatch(reading.watch)
            self._by_watch.pop(reading.watch, None)
        self._torn_before += reading.file.torn_bytes
        if self._wakeups is not None:
            self._wakeups.files.forget(reading.file)
        reading.file.close()

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[Polled]:
        """If a partition fails after others returned records, this returns the records, and the next poll raises."""
        self._note_changes()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        out: list[Polled] = []
        for reading in self._asked(ssps):
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

    @override
    def more(self) -> bool:
        if self._wakeups is None:  # only a poll finds out what has changed
            return True
        return self._failure is not None or any(reading.look for reading in self._readings.values())

    def look_at_all(self) -> None:
        """Make the next poll check all files, including whether they exist."""
        self._look_at_all = True

    def has_news(self) -> bool:
        """Check all files now. Return whether the next poll will find something, or fail."""
        for reading in self._readings.values():
            try:
                size = reading.file.size_there()
            except StreamNotFoundError:
                self._look_at_all = True  # the next poll raises it
                return True
            reading.look |= not reading.ended and size not in (reading.position, reading.waiting_size)
        return any(reading.look for reading in self._readings.values())

    def _note_changes(self) -> None:
        if self._wakeups is not None:
            if self._look_at_all:
                self._look_at_all = False
                for reading in self._readings.values():
                    reading.file.size_there()
                    reading.look = True
            return
        changed = self._wakeup.drain() if self._wakeup else None
        now = time.monotonic()
        if changed is None or now - self._looked_at_all > _LOOK_AT_ALL_S:
            self._looked_at_all = now
            for reading in self._readings.values():
                reading.file.size_there()
                reading.look = True
            return
        for number in changed:
            if number in self._by_watch:
                self._by_watch[number].look = True

    def _read(self, reading: Watched, max_bytes: int, out: list[Polled]) -> None:
        size = reading.file.size()
        if reading.ended or size in (reading.position, reading.waiting_size):
            reading.look = False
            return
        oldest = self._oldest(reading)
        if reading.position < oldest:
            raise TrimmedOffsetError(
                f"{reading.ssp}: offset {reading.position}, the next, was trimmed; the oldest is {oldest}"
            )
        self._take(reading, reading.file.read(reading.position, max_bytes, size), size, out)

    def _take(self, reading: Watched, scan: Scan, size: int, out: list[Polled]) -> None:
        reading.position = scan.next
        if self._waits:
            reading.file.used()
        elif scan.next == size:
            reading.file.close()
        if scan.payloads:
            out.append(Records(reading.ssp, scan.offsets, scan.payloads, scan.next))
            reading.recent.append(scan.offsets)
            reading.look = scan.next < size
        else:
            reading.look = False
            reading.waiting_size = size
        if scan.stop is ScanEnd.SEALED:
            out.append(Ended(reading.ssp, scan.next))
            reading.ended, reading.look = True, False

    @override
    def fileno(self) -> int | None:
        if self._wakeups is not None:
            return self._wakeups.fileno()
        return self._wakeup.fd if self._wakeup else None

    @override
    def landmark(self, ssp: SSP, offset: Offset) -> str:
        reading = self._reading(ssp)
        recent = reading.recent
        while len(recent) > 1 and recent[1][0] < offset:
            recent.popleft()
        number = bisect_left(recent[0], offset) if recent else 0
        if number == 0:
            return ""
        at = recent[0][number - 1]
        check = reading.file.check_at(at)
        return "" if check is None else landmark(at, check)

    @override
    def has_landmark(self, ssp: SSP, landmark: str) -> bool:
        reading = self._reading(ssp)
        place, _, check = landmark.partition(":")
        at = int(place)
        if at < self._oldest(reading):
            return True
        reading.recent.append([at])
        return reading.file.check_at(at) == int(check, 16)

    @override
    def unsynced(self) -> Iterable[Unsynced]:
        return [
            unsynced_partition(
                reading.file.fd, reading.file.what, partial(setattr, reading, "synced", reading.position)
            )
            for reading in self._readings.values()
            if reading.position > reading.synced
        ]

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        """Bytes to the end of the file."""
        reading = self._reading(ssp)
        end = reading.position if reading.ended else max(reading.position, reading.file.size())
        return end - (reading.position if since is None else since)

    @override
    def close(self) -> None:
        super().close()
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None
        if self._wakeups is not None:
            self._wakeups.forget(self)
