"""The files of an input: a durable list of them, and what has changed since it was written.

A position means a place in the list, so it is only appended to (``docs/design/log-and-files.md``). It is a file of JSON
lines in the app's home: a header, entries, and a mark once the input has ended. Several processes use it, under a lock.

A file that has the size and the time that the list says is the same. A file that has neither is the same if its first
and last bytes are; it has grown if it is longer and keeps its old bytes. An input that follows its folder has it looked
at on a thread: listing a folder may take its time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, HeadraceError, StorageError, UnavailableError, UsageError
from headrace.core.files import UNREADABLE, make_private_folder, open_private
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.core.worker import RepeatedStep
from headrace.systems.files.storage import Found, find_files, nothing_found

FORMAT = 1
ROWS_MAX = 10**11  # an offset is ``place * ROWS_MAX + row``: the place of an entry in its partition, and a row of it
_LOCK_S_MAX = 30.0
_LOCK_PAUSE_S = 0.01


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes ``start`` to ``end`` of a file that had ``size`` bytes when listed. ``modified`` is in nanoseconds."""

    path: str
    partition: int
    start: int
    end: int
    size: int
    modified: int
    sample: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One line: the header has ``format`` and ``partitions``, others an entry or the mark of the end."""

    format: int = 0
    partitions: int = 0
    entry: Entry | None = None
    ended: bool = False


_DECODER = msgspec.json.Decoder(_Line)


def offset_of(place: int, row: int = 0) -> Offset:
    return place * ROWS_MAX + row


def place_of(offset: Offset) -> tuple[int, int]:
    return divmod(offset, ROWS_MAX)


@dataclass(slots=True)
class FileList:
    """The contents of a list. ``ended``: it takes no more entries. ``nothing``: there isn't even an empty file."""

    partitions: int = 0
    ended: bool = False
    nothing: bool = False
    places: list[list[Entry]] = field(default_factory=list)  # the entries of each partition
    latest: dict[str, Entry] = field(default_factory=dict)  # the last entry of each file

    def add(self, entry: Entry) -> None:
        self.places[entry.partition].append(entry)
        self.latest[entry.path] = entry

    def start(self, partitions: int) -> None:
        self.partitions = partitions
        self.places = [[] for _ in range(partitions)]

    def partition_of(self, path: str, new: int = 0) -> int:
        """The partition of a file, always the same; ``new`` is how many new files were listed before it."""
        there = self.latest.get(path)
        return (len(self.latest) + new) % self.partitions if there is None else there.partition


class ListFile:
    """The list on disk. ``contents`` is what was read so far; ``refresh`` reads on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents = FileList()
        self._read = 0

    @property
    def exists(self) -> bool:
        """A run has made it already. Call ``refresh`` first."""
        return self._read > 0

    def refresh(self) -> bool:
        try:
            if not self.path.exists() or self.path.stat().st_size <= self._read:
                return False
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError as error:
            raise StorageError(f"can't read the list of files {self.path}: {error}") from error
        whole = data[: data.rfind(b"\n") + 1]  # the rest is the unfinished end of an append
        for line in whole.splitlines():
            self._take(line)
        self._read += len(whole)
        return bool(whole)

    def append(self, entries: Sequence[Entry], *, partitions: int = 0, ended: bool = False) -> bool:
        """Append durably what follows ``contents``, or make the list. False: another process was first; look again."""
        lines = [_Line(format=FORMAT, partitions=partitions)] if partitions else []
        lines += [_Line(entry=entry) for entry in entries]
        lines += [_Line(ended=True)] if ended else []
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            make_private_folder(self.path.parent)
            with self._locked() as fd:
                size = os.fstat(fd).st_size
                written = os.pread(fd, size - self._read, self._read)
                if b"\n" in written:
                    return False
                os.ftruncate(fd, self._read)  # the rest is what a process left that died while it appended
                _write(fd, data, self._read)
        except OSError as error:
            what = f"can't write the list of files {self.path}: {error}"
            raise StorageError(what, hint="free up disk space, or check who owns the folder") from error
        self.refresh()
        return True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        fd = open_private(self.path, os.O_RDWR)
        try:
            deadline = time.monotonic() + _LOCK_S_MAX
            while not _lock(fd):
                if time.monotonic() > deadline:
                    what = f"another process has locked the list of files {self.path} for {_LOCK_S_MAX:.0f} s"
                    raise UnavailableError(what, hint="find out which process it is, for example with lsof")
                time.sleep(_LOCK_PAUSE_S)
            yield fd
        finally:
            os.close(fd)

    def _take(self, data: bytes) -> None:
        where = f"the list of files {self.path}"
        try:
            line = _DECODER.decode(data)
        except UNREADABLE as error:
            raise DataError(f"{where} is unreadable: {error}: {data[:100]!r}") from error
        if not self.contents.partitions and line.format != FORMAT:
            what = f"{where} is of format {line.format}; this version of Headrace reads {FORMAT}"
            raise DataError(what, hint="use the version of Headrace that wrote it, or a newer one")
        if line.partitions:
            self.contents.start(line.partitions)
        if line.entry is not None:
            self.contents.add(line.entry)
        self.contents.ended |= line.ended


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _write(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
    os.fsync(fd)


NewFiles = Literal["refuse", "next_run", "follow"]
ChangedFiles = Literal["refuse", "read_again"]
_NAMED = 3


class Look(Protocol):
    """How to look into a file."""

    def sample(self, path: str, size: int) -> str:
        """A checksum of the first and the last bytes of the first ``size`` bytes."""

    def appendable(self, path: str, end: int) -> bool:
        """Whether the file may go on after ``end``: it is text that isn't compressed, and a row ends there."""

    def end(self, file: Found, start: int) -> int:
        """Where to stop reading for now: after the last whole row if something may still be writing the file."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the input says about new and changed files; ``path`` names it in errors."""

    path: str
    new_files: NewFiles = "refuse"
    changed_files: ChangedFiles = "refuse"


def additions(listed: FileList, found: Iterable[Found], look: Look, policy: Policy) -> list[Entry]:
    """The entries to append; a file without content isn't one. Raises ``DataError`` for a change that is refused."""
    added: list[Entry] = []
    new = 0
    for file in found:
        last = listed.latest.get(file.path)
        start = 0 if last is None else _start(file, last, look, policy)
        if start is None or start == file.size:
            continue
        end = look.end(file, start)
        if end > start:
            partition = listed.partition_of(file.path, new)
            new += last is None
            sample = look.sample(file.path, file.size)
            entry = Entry(
                path=file.path, partition=partition, start=start, end=end, size=file.size, modified=file.modified,
                sample=sample,
            )  # fmt: skip
            added.append(entry)
    return added


def _start(file: Found, last: Entry, look: Look, policy: Policy) -> int | None:
    if (file.size, file.modified) == (last.size, last.modified):
        return last.end
    kept = last.sample and file.size >= last.size and look.sample(file.path, last.size) == last.sample
    if kept and (file.size == last.size or look.appendable(file.path, last.end)):
        return last.end
    if policy.changed_files == "read_again":
        return 0
    raise changed(file.path, last, file)


def changed(path: str, listed: Entry, file: Found) -> DataError:
    how = f"it had {listed.size} bytes, now {file.size}" if file.size != listed.size else "its contents are different"
    return DataError(
        f"{path} has changed since the app listed it: {how}",
        hint='put new data into new files; or set changed_files="read_again" (with new_files="next_run" or "follow"), '
        "which reads changed files again from their start",
    )


def _refused(added: list[Entry], policy: Policy) -> UsageError:
    names = sorted({entry.path for entry in added})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return UsageError(
        f"{policy.path} has new files, which the app doesn't read: {', '.join(names[:_NAMED])}{more}; "
        "the input ends with the files of its first run",
        hint='to read later files too, declare hr.io.files(..., new_files="next_run") or "follow", and give the app '
        "another name, because the input may have ended for this one; or move the new files away",
    )


def _over(policy: Policy) -> UsageError:
    return UsageError(
        f"the input {policy.path} ended with the files of an earlier run, so it can't continue with "
        f"new_files={policy.new_files!r}",
        hint="give the app another name: it then reads all files from the start",
    )


PARTITIONS_MAX = 64  # how many partitions an input of many files has at most, unless it says
_ATTEMPTS_MAX = 100
_log = logger(__name__)


class Stock:
    """The list of an input's files. ``where`` is None outside an app: then the list is that of this moment."""

    def __init__(
        self, policy: Policy, partitions: int | None, where: Path | None, look: Callable[[list[Found]], Look]
    ) -> None:
        self._policy = policy
        self._partitions = partitions
        self._file = None if where is None else ListFile(where)
        self._look = look

    def present(self) -> FileList:
        """Return the list, or the one that a run starting now would have, without changes. Always the same object."""
        if self._file is not None:
            self._file.refresh()
            if self._file.exists:
                return self._checked(self._file.contents)
        found = find_files(self._policy.path)
        listed = FileList()
        listed.start(self._count(found))
        for entry in additions(listed, found, self._look(found), self._policy):
            listed.add(entry)
        listed.ended, listed.nothing = self._ends, not found
        return listed

    def take(self) -> FileList:
        """Raises if the input doesn't accept new or changed files."""
        if self._file is None:
            return self.present()
        for _ in range(_ATTEMPTS_MAX):
            self._file.refresh()
            listed = self._file.contents
            found = find_files(self._policy.path)
            if listed.ended and not self._ends:
                raise _over(self._policy)
            if not found and not listed.latest:
                error = nothing_found(self._policy.path)
                if self._ends:
                    raise error
                _log.warning("an input has no files yet", path=self._policy.path, reason=error.message)
            partitions = 0 if self._file.exists else self._count(found)
            if partitions:
                draft = FileList()
                draft.start(partitions)
            else:
                draft = self._checked(listed)
            added = additions(draft, found, self._look(found), self._policy) if found else []
            if listed.ended and added:
                raise _refused(added, self._policy)
            ends = self._ends and not listed.ended
            if not (added or partitions or ends) or self._file.append(added, partitions=partitions, ended=ends):
                said = "listed the files of an input"
                _log.debug(said, path=self._policy.path, new=len(added), files=len(listed.latest))
                return self._file.contents
        what = f"other processes changed the list of files {self._file.path} {_ATTEMPTS_MAX} times in a row"
        raise UnavailableError(what, hint="look for other runs that read this input")

    def refresh(self) -> None:
        if self._file is not None:
            self._file.refresh()

    @property
    def _ends(self) -> bool:
        return self._policy.new_files == "refuse"

    def _count(self, found: list[Found]) -> int:
        # An input that goes on may get one file a day: in several partitions, the others would hold event time back.
        return self._partitions or (min(max(1, len(found)), PARTITIONS_MAX) if self._ends else 1)

    def _checked(self, listed: FileList) -> FileList:
        if self._partitions not in (None, listed.partitions):
            raise DeclarationError(
                f"files {self._policy.path}: declared with partitions={self._partitions}, but the first run dealt the "
                f"files to {listed.partitions}",
                hint=f"write partitions={listed.partitions}, or give the app another name",
            )
        return listed


class Follower(RepeatedStep):
    """Takes stock again and again on a thread of its own, until it is closed. ``check`` raises what went wrong."""

    def __init__(self, take: Callable[[], object], every_s: float) -> None:
        super().__init__("files-follower", every_s, limit_s=0)  # a look that is under way ends later, and does no harm
        self._take = take
        self._error: Exception | None = None
        self.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    @override
    def step(self) -> bool:
        try:
            self._take()
        except HeadraceError as error:
            if not error.retry:
                raise
            _log.warning("can't look for new files; trying again", error=str(error), every_s=self._every_s)
        return True

    @override
    def failed(self, error: Exception) -> None:
        self._error = error
