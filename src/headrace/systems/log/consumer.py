"""The reading side of the log: many partitions, one inotify instance, no waiting.

A poll first drains the wake-ups and then looks at the files, so a write after the look causes another wake-up. A
partition that was read to its end costs nothing until it is written again. Writers on another machine cause no event:
twice a second a consumer looks at all its files.

A user may have 128 inotify instances by default, so the consumers of one thread share one (``LogWakeups``), which also
bounds the number of open files. A consumer without a waiting caller looks at its files at each poll.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from typing_extensions import override

from headrace.core.errors import HeadraceError, InfrastructureError, StreamNotFoundError, TrimmedOffsetError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.log import Throttle, logger
from headrace.systems import base
from headrace.systems.log.layout import OpenFiles, StreamFolder
from headrace.systems.log.partition import PartitionFile, unsynced_partition
from headrace.systems.log.segment import Scan, ScanEnd, landmark

_MODIFY = 0x00000002
_OVERFLOW = 0x00004000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_log = logger(__name__)
_throttle = Throttle(_log)


class FileWatcher:
    """An inotify instance. ``fd`` becomes readable when a watched file was written."""

    def __init__(self, fd: int, libc: ctypes.CDLL) -> None:
        self.fd = fd
        self._libc = libc

    @classmethod
    def open(cls) -> FileWatcher | None:
        """Return a new watcher; None on other systems, or if the user's limit of inotify instances is reached."""
        if not sys.platform.startswith("linux"):
            _throttle.info("this system has no inotify: readers look for new records twice a second")
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd >= 0:
            return cls(fd, libc)
        _throttle.warning(
            "no inotify instance is left: readers look for new records twice a second; raise the sysctl "
            "fs.inotify.max_user_instances",
            error=os.strerror(ctypes.get_errno()),
        )
        return None

    def watch(self, path: Path) -> int:
        """Watch a file and return the number that identifies it in ``drain``. A file always has the same number."""
        number = int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MODIFY))
        if number < 0:
            code = ctypes.get_errno()
            hint = "raise the sysctl fs.inotify.max_user_watches" if code == errno.ENOSPC else None
            raise InfrastructureError(f"can't watch {path}: {os.strerror(code)}", hint=hint)
        return number

    def unwatch(self, number: int) -> None:
        self._libc.inotify_rm_watch(self.fd, number)

    def drain(self) -> set[int] | None:
        """Return the numbers of the files written since the last call; None if the kernel's queue has overflowed."""
        changed: set[int] = set()
        known = True
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                if not known:
                    _throttle.info("inotify's queue overflowed: checking all files")
                return changed if known else None
            start = 0
            while start < len(data):
                number, mask, _, name_length = _EVENT.unpack_from(data, start)
                start += _EVENT.size + name_length
                changed.add(number)
                known = known and not mask & _OVERFLOW

    def close(self) -> None:
        os.close(self.fd)


_POLLS_KEPT = 4096  # among so many polls a landmark is found


@dataclass(slots=True, kw_only=True, eq=False)
class Watched(base.Reading):
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
    synced: Offset = 0  # what lies before it is on the disk
    recent: deque[list[Offset]] = field(default_factory=lambda: deque(maxlen=_POLLS_KEPT))
    """The records of the last polls, from the one before the last landmark on."""


class LogConsumer(base.RegisteringConsumer[Watched]):
    """Reads partitions of a log, alone or in a group. ``torn_bytes`` counts the bytes that it skipped."""

    def __init__(self, root: Path, wakeups: LogWakeups | None = None, *, waits: bool = True) -> None:
        super().__init__()
        self._root = root
        self._alone = wakeups is None
        self._waits = waits
        self._wakeups = LogWakeups(root, FileWatcher.open() if waits else None) if wakeups is None else wakeups
        self._wakeups.join(self)
        self.look_at_all = False  # whether the next poll checks all files
        self._failure: HeadraceError | None = None
        self._torn_before = 0

    @property
    def torn_bytes(self) -> int:
        return self._torn_before + sum(reading.file.torn_bytes for reading in self._readings.values())

    @override
    def register(self, ssp: SSP, position: base.Position) -> None:
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
        file.shared(self._wakeups.files, lambda: reading.position > reading.synced)
        self._readings[ssp] = reading
        reading.watch = self._wakeups.watch(reading.file.path, reading)
        return reading

    def _resolve(self, reading: Watched, position: base.Position) -> Offset:
        oldest = self._oldest(reading)
        if position is base.Edge.OLDEST:
            return oldest
        end, sealed = reading.file.end()
        if isinstance(position, base.Edge):
            seal = reading.folder.read_seal() if not sealed else None
            return seal.ends[reading.ssp.partition] if seal and seal.ends else end
        if position < oldest:
            raise TrimmedOffsetError(f"{reading.ssp}: offset {position} was trimmed; the oldest is {oldest}")
        if position > reading.file.size():
            what = f"{reading.ssp}: offset {position} is after the end, {end}"
            raise UsageError(what, hint="name an offset up to the end; headrace stream describe shows where it is")
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
        if reading.watch is not None:
            self._wakeups.unwatch(reading.watch, reading)
        self._torn_before += reading.file.torn_bytes
        self._wakeups.files.forget(reading.file)

    @override
    def poll(self, ssps: Iterable[SSP] | None = None, max_bytes: int = 1 << 20) -> list[base.Polled]:
        """If a partition fails after others returned records, this returns the records, and the next poll raises."""
        if self._alone:
            self._wakeups.stirred()
        if self.look_at_all:
            self.look_at_all = False
            for reading in self._readings.values():
                reading.file.size_there()
                reading.look = True
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        out: list[base.Polled] = []
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
        if self._alone:  # only a poll finds out what has changed
            return True
        return self._failure is not None or any(reading.look for reading in self._readings.values())

    def has_news(self) -> bool:
        for reading in self._readings.values():
            try:
                size = reading.file.size_there()
            except StreamNotFoundError:
                self.look_at_all = True  # the next poll raises it
                return True
            reading.look |= not reading.ended and size not in (reading.position, reading.waiting_size)
        return any(reading.look for reading in self._readings.values())

    def _read(self, reading: Watched, max_bytes: int, out: list[base.Polled]) -> None:
        size = reading.file.size()
        if reading.ended or size in (reading.position, reading.waiting_size):
            reading.look = False
            return
        oldest = self._oldest(reading)
        if reading.position < oldest:
            what = f"{reading.ssp}: offset {reading.position}, the next, was trimmed; the oldest is {oldest}"
            raise TrimmedOffsetError(what)
        self._take(reading, reading.file.read(reading.position, max_bytes, size), size, out)

    def _take(self, reading: Watched, scan: Scan, size: int, out: list[base.Polled]) -> None:
        reading.position = scan.next
        if self._waits:
            reading.file.used()
        elif scan.next == size:
            reading.file.close()
        if scan.payloads:
            out.append(base.Records(reading.ssp, scan.offsets, scan.payloads, scan.next))
            reading.recent.append(scan.offsets)
            reading.look = scan.next < size
        else:
            reading.look = False
            reading.waiting_size = size
        if scan.stop is ScanEnd.SEALED:
            out.append(base.Ended(reading.ssp, scan.next))
            reading.ended, reading.look = True, False

    @override
    def fileno(self) -> int | None:
        watcher = self._wakeups.watcher
        return None if watcher is None else watcher.fd

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
    def unsynced(self) -> Iterable[base.Unsynced]:
        ahead = [reading for reading in self._readings.values() if reading.position > reading.synced]
        return [unsynced_partition(r.file.fd, r.file.what, partial(setattr, r, "synced", r.position)) for r in ahead]

    @override
    def lag(self, ssp: SSP, since: Offset | None = None) -> int | None:
        reading = self._reading(ssp)
        end = reading.position if reading.ended else max(reading.position, reading.file.size())
        return end - (reading.position if since is None else since)

    @override
    def close(self) -> None:
        super().close()
        self._wakeups.forget(self)
        if self._alone:
            self._wakeups.close()


LOOK_S = 0.5
LOOKS = 100  # How many consumers look at their files at a time. A thousand have looked after five seconds.


class LogWakeups(base.Wakeups):
    """The consumers of the log in the folder ``root`` that one thread uses. Without ``watcher`` each look is at all."""

    def __init__(self, root: Path, watcher: FileWatcher | None) -> None:
        self._root = root
        self.watcher = watcher
        self.files = OpenFiles()
        self._watched: dict[int, list[Watched]] = {}
        self._consumers: dict[LogConsumer, None] = {}
        self._looked = time.monotonic()

    def join(self, consumer: LogConsumer) -> None:
        self._consumers[consumer] = None

    @override
    def consumer(self) -> LogConsumer:
        return LogConsumer(self._root, self)

    @override
    def fileno(self) -> int:
        assert self.watcher is not None
        return self.watcher.fd

    @override
    def stirred(self) -> Collection[LogConsumer]:
        self.files.trim()
        changed = None if self.watcher is None else self.watcher.drain()
        now = time.monotonic()
        if changed is None:
            self._looked = now
            for consumer in self._consumers:
                consumer.look_at_all = True
            return list(self._consumers)
        stirred: dict[LogConsumer, None] = {}
        for number in changed:
            for watched in self._watched.get(number, ()):
                watched.look = True
                stirred[watched.consumer] = None
        if now - self._looked > LOOK_S:
            self._looked = now
            for consumer in list(islice(self._consumers, LOOKS)):
                del self._consumers[consumer]
                self._consumers[consumer] = None  # behind all others
                if consumer.has_news():
                    stirred[consumer] = None
        return stirred.keys()

    def watch(self, path: Path, watched: Watched) -> int | None:
        if self.watcher is None:
            return None
        number = self.watcher.watch(path)
        self._watched.setdefault(number, []).append(watched)
        return number

    def unwatch(self, number: int, watched: Watched) -> None:
        readings = self._watched[number]
        readings.remove(watched)
        if not readings and self.watcher is not None:
            del self._watched[number]
            self.watcher.unwatch(number)

    def forget(self, consumer: LogConsumer) -> None:
        self._consumers.pop(consumer, None)

    @override
    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()
