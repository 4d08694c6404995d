"""Where times are in a log partition: a sparse index in a file beside it, which writers extend and look-ups use.

An entry is a claim that stays true whatever clocks do: *all records below this offset were appended at this time or
earlier*. A writer adds one for the beginning of its own write call when the last entry is ``STRIDE`` bytes back or
more. It knows its own times, and looks at the headers of what others have appended since that entry. If the last entry
is far back or damaged, writers leave the index alone: the next look-up completes or replaces it.

An entry has a checksum with the partition's own seed, and the check of the record that it points to. So what belongs to
another file, or to records that a crash of the machine took away, is noticed.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from headrace.core.errors import CorruptLogError, HeadraceError, StorageError
from headrace.core.files import open_private, replace_file
from headrace.core.ids import Offset
from headrace.core.log import Throttle, logger
from headrace.systems.log import segment
from headrace.systems.log.layout import StreamFolder
from headrace.systems.log.partition import PartitionFile, open_partition
from headrace.systems.log.segment import TIME_ENTRY_SIZE, TimeEntry, decode_time_entry, encode_time_entry

STRIDE = 1 << 20
BEHIND_MAX = 16 * STRIDE
"""How far the last entry may be back: a writer looks at no more than this, and a look-up catches up first."""
_RECENT = 8
"""Of so many entries the one that is furthest on counts as the last: more writers are rarely held up at once."""
WALK_MAX = 4 * BEHIND_MAX
"""After walking past so many bytes, a look-up replaces the index: its times were of records that were trimmed."""
_throttle = Throttle(logger(__name__))


class _Damaged(Exception):
    """The index isn't what its writers have written, or isn't of these records. It can be replaced."""


class TimeIndex:
    """The index of an open partition file."""

    def __init__(self, path: Path, file: PartitionFile) -> None:
        self.path = path
        self._file = file

    def last(self) -> TimeEntry | None:
        """Return the furthest of the last entries, which delayed writers may add late; None if there are none."""
        with closing(_Entries(self.path, self._file.seed)) as entries:
            recent = range(max(0, entries.count - _RECENT), entries.count)
            return max((entries[number] for number in recent), key=lambda entry: entry.offset, default=None)

    def start(self, time_ms: int, oldest: Offset) -> Offset:
        """Return an offset below which no record was appended at ``time_ms`` or later. Raises ``_Damaged``."""
        with closing(_Entries(self.path, self._file.seed)) as entries:
            found = bisect_left(range(entries.count), time_ms, key=lambda number: entries[number].latest_ms)
            if not found or entries[found - 1].offset <= oldest:
                return oldest
            self.require_true(entries[found - 1])
            return entries[found - 1].offset

    def require_true(self, entry: TimeEntry) -> None:
        if self._file.check_at(entry.offset) != entry.check:
            raise _Damaged(f"the entry belongs to another record than the one at offset {entry.offset}")

    def append(self, entries: Sequence[TimeEntry]) -> None:
        fd = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, self._encoded(entries))
        finally:
            os.close(fd)

    def catch_up(self, oldest: Offset, end: Offset) -> None:
        """If the last entry is far back, read the records after it, and append what is lacking."""
        last = self.last()
        start = oldest
        if last is not None and last.offset > oldest:
            self.require_true(last)
            start = last.offset
        if end - start > BEHIND_MAX:
            self.append(self._entries(start, end, 0 if last is None else last.latest_ms))

    def renew(self, oldest: Offset, end: Offset) -> None:
        try:
            replace_file(self.path, self._encoded(self._entries(oldest, end, 0)))
        except StorageError as error:
            _throttle.warning("can't replace a time index", index=str(self.path), reason=str(error))

    def _entries(self, start: Offset, end: Offset, latest_ms: int) -> list[TimeEntry]:
        entries = []
        noted = start
        for record in self._file.appended(start, end):
            if record.offset - noted >= STRIDE:
                noted = record.offset
                entries.append(TimeEntry(noted, latest_ms, record.check))
            latest_ms = max(latest_ms, record.time_ms)
        return entries

    def _encoded(self, entries: Sequence[TimeEntry]) -> bytes:
        return b"".join(encode_time_entry(entry, self._file.seed) for entry in entries)


class _Entries:
    """The entries in a file, read one by one; empty if the file doesn't exist."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        self._fd: int | None = None
        self.count = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        size = os.fstat(self._fd).st_size
        self.count, rest = divmod(size, TIME_ENTRY_SIZE)
        if rest:
            self.close()
            raise _Damaged(f"its {size} bytes aren't a whole number of entries")

    def __getitem__(self, number: int) -> TimeEntry:
        assert self._fd is not None
        data = os.pread(self._fd, TIME_ENTRY_SIZE, number * TIME_ENTRY_SIZE)
        entry = decode_time_entry(data, self._seed)
        if entry is None:
            raise _Damaged(f"entry {number} is unreadable: {data!r}")
        return entry

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class TimeNotes:
    """What one writer of a partition knows about times, and when it adds to the index."""

    def __init__(self, folder: StreamFolder, partition: int) -> None:
        self._folder = folder
        self._partition = partition
        self._latest_ms = 0
        self._own_begin: Offset = 0
        self._own_end: Offset = 0
        self._noted: Offset = 0

    def appended(self, begin: Offset, end: Offset, time_ms: int, header: bytes) -> None:
        """Note an append of this writer. An index that can't be extended never makes an append fail."""
        self._latest_ms = max(self._latest_ms, time_ms)
        if begin != self._own_end:
            self._own_begin = begin
        self._own_end = end
        if begin - self._noted < STRIDE:
            return
        self._noted = begin
        try:
            with closing(open_partition(self._folder, self._partition)) as file:
                self._add(file, begin, segment.check_of(header, 0))
        except (OSError, HeadraceError, _Damaged) as error:
            partition = str(self._folder.log(self._partition))
            _throttle.warning("couldn't extend a time index", partition=partition, reason=str(error))

    def _add(self, file: PartitionFile, begin: Offset, check: int) -> None:
        index = TimeIndex(self._folder.times(self._partition), file)
        last = index.last()
        latest, start = self._latest_ms, self._folder.read_trim(self._partition)
        if last is not None:
            if begin - last.offset < STRIDE:
                self._noted = last.offset  # another writer's entry
                return
            latest = max(latest, last.latest_ms)
            if last.offset > start:
                index.require_true(last)
                start = last.offset
        if self._own_begin - start > BEHIND_MAX:
            return  # the next look-up catches up
        if self._own_begin > start:
            latest = max(latest, file.latest_time(start, self._own_begin))
        index.append([TimeEntry(begin, latest, check)])


def first_at(folder: StreamFolder, partition: int, time_ms: int, end: Offset) -> Offset:
    with closing(open_partition(folder, partition)) as file:
        index = TimeIndex(folder.times(partition), file)
        while True:
            oldest = folder.read_trim(partition)
            try:
                return _first_at(index, file, time_ms, oldest, end)
            except CorruptLogError:
                if folder.read_trim(partition) == oldest:
                    raise
                # Trimmed meanwhile: the records that were to be read are zeros now.


def _first_at(index: TimeIndex, file: PartitionFile, time_ms: int, oldest: Offset, end: Offset) -> Offset:
    start = _start(index, time_ms, oldest, end)  # beyond the end if a seal overtook the append of an entry
    walk = (record.offset for record in file.appended(start, end) if record.time_ms >= time_ms)
    found = next(walk, end)
    if found - start > WALK_MAX:
        index.renew(oldest, end)
    return found


def _start(index: TimeIndex, time_ms: int, oldest: Offset, end: Offset) -> Offset:
    try:
        index.catch_up(oldest, end)
        return index.start(time_ms, oldest)
    except _Damaged as damage:
        _throttle.warning("replacing a damaged time index", index=str(index.path), reason=str(damage))
    except (OSError, StorageError) as error:
        what = "can't use a time index; reading the records instead"
        _throttle.warning(what, index=str(index.path), reason=str(error))
        return oldest
    index.renew(oldest, end)
    try:
        return index.start(time_ms, oldest)
    except (_Damaged, OSError):
        return oldest
