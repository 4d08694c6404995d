"""A task's local state on disk: one RocksDB, a cache of what the changelog says, that outlives the process.

Everything of one commit is written as one batch, together with the pointer to the changelog that it corresponds
to, so the folder is never between two commits. It can be verified against the changelog and thrown away.
This file, its options and ``pinned`` alone know RocksDB. One thread uses it; ``write``, ``snapshot`` and
``end_rebuilding`` may block on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, cast
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import Cache, Checkpoint, Rdict, WriteBatch, WriteOptions
from typing_extensions import override

from headrace.core.errors import InfrastructureError, StorageError, UnavailableError
from headrace.core.log import logger
from headrace.stores.base import View, Writes
from headrace.stores.database_options import AFTERWARDS, WHILE_REBUILDING, options, write_options
from headrace.stores.pinned import Pin

_CACHE_BYTES = 64 << 20
_STAND_IN_DIGITS = 8
_PUT_IN_ORDER_MIN = 4096
_log = logger(__name__)

_UNREADABLE = "UNREADABLE"
"""A file of this name says that reading the folder failed: opening it may work nevertheless, and must not."""


class StateLockedError(InfrastructureError):
    """Another process has the folder open: an incarnation that was replaced, but still lives."""


class StateCorruptError(InfrastructureError):
    """The folder can't be read. What was in it can be rebuilt from snapshot and changelog."""


class Batch:
    """Writes that become visible together."""

    def __init__(self) -> None:
        self.writes = WriteBatch(raw_mode=True)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.writes.put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self.writes.delete(key)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Remove all keys with ``start <= key < stop``."""
        self.writes.delete_range(start, stop)


class KeySpace(View):
    """One store's part of a database (or of a batch): its keys stand below its id.

    Another thread than the task's may read through a part of its own, too: it sees commits, each of them wholly
    or not at all within one call.
    """

    def __init__(self, whole: Database | Pin, store: str) -> None:
        self._whole = whole
        self._store = store
        self._below = store.encode() + b"\x00"
        self._end = store.encode() + b"\x01"

    @contextmanager
    def pinned(self) -> Iterator[KeySpace]:
        """The same part as it is now, whatever is written meanwhile. For a moment: it keeps old files from going."""
        if isinstance(self._whole, Pin):
            yield self
            return
        pin = self._whole.pin()
        try:
            yield KeySpace(pin, self._store)
        finally:
            pin.close()

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._whole.get(self._below + key)

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        below = self._below
        return self._whole.get_many([below + key for key in keys])

    @override
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._whole.scan(self._below + prefix):
            yield key[len(self._below) :], value

    @override
    def range(self, start: bytes, stop: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        end = self._end if stop is None else self._below + stop
        skip = len(self._below)
        for key, value in self._whole.range(self._below + start, end, reverse=reverse):
            yield key[skip:], value


class PartOfBatch(Writes):
    """One store's writes in a batch."""

    def __init__(self, whole: Batch, store: str) -> None:
        self._whole = whole
        self._below = store.encode() + b"\x00"
        self._end = store.encode() + b"\x01"

    @override
    def put(self, key: bytes, value: bytes) -> None:
        self._whole.put(self._below + key, value)

    @override
    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        put, below = self._whole.writes.put, self._below
        entries = list(zip(keys, values, strict=True))
        for place in _in_order([key for key, _ in entries]):
            key, value = entries[place]
            put(below + key, value)

    @override
    def delete(self, key: bytes) -> None:
        self._whole.delete(self._below + key)

    @override
    def delete_many(self, keys: Iterable[bytes]) -> None:
        delete, below = self._whole.writes.delete, self._below
        for key in keys:
            delete(below + key)

    @override
    def delete_all(self) -> None:
        self._whole.delete_range(self._below, self._end)


class FolderLock:
    """The right to a folder, also to throw it away: RocksDB's own lock lies in the folder and goes with it.

    It ends with the process. Within one process a second one is refused, too.
    """

    _held: ClassVar[set[Path]] = set()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        """Raises ``StateLockedError`` when another has it, ``StorageError`` when there can be none."""
        self._path = folder.with_name(f".{folder.name}.lock")
        with self._guard:
            if self._path in self._held:
                raise StateLockedError(f"state folder {folder} is open elsewhere in this process")
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("ab")
            except OSError as error:
                raise _classified(folder, error) from error
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise StateLockedError(f"state folder {folder} is open elsewhere: {error}") from error
                raise _classified(folder, error) from error
            self._held.add(self._path)

    def release(self) -> None:
        """Give it back; a second time does nothing."""
        with self._guard:
            if not self._file.closed:
                self._held.discard(self._path)
                self._file.close()


def _in_order(keys: list[bytes]) -> Iterable[int]:
    """The places of keys in their order, equal ones as they stand; of few keys in any order.

    RocksDB finds a key's place beside that of the one before: a million in order cost a fraction of a million in none.
    """
    if len(keys) < _PUT_IN_ORDER_MIN:
        return range(len(keys))
    order: list[int] = pc.sort_indices(pa.array(keys, pa.large_binary())).to_pylist()
    return order


class Database:
    """An open folder."""

    def __init__(self, folder: Path) -> None:
        """Open or create. Raises ``StateLockedError``, ``StateCorruptError`` or ``StorageError``."""
        self.folder = folder
        if (folder / _UNREADABLE).exists():
            raise StateCorruptError(f"state folder {folder} could not be read the last time")
        cache = _CACHE.borrow()
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Unless told for the column family, too, RocksDict takes the options of the last time, with a tiny cache.
            self._db = Rdict(str(folder), options(cache), column_families={"default": options(cache)})
            self._open = True
            self._pins: WeakSet[Pin] = WeakSet()
            self._logged = write_options()
            self._rebuilding: WriteOptions | None = None
        except Exception as error:
            _CACHE.give_back()
            raise _classified(folder, error) from error

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, or None."""
        try:
            # RocksDict takes a list, too: that is a fifth slower on tables, and no faster in the memtable.
            return list(map(cast("Callable[[bytes], bytes | None]", self._db.get), keys))
        except Exception as error:
            raise self._unreadable(error) from error

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < stop`` in the order of keys, or against it."""
        if reverse:
            for key, value in self._entries(stop, backwards=True):
                if key < start:
                    return
                if key < stop:
                    yield key, value
            return
        for key, value in self._entries(start):
            if key >= stop:
                return
            yield key, value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys beginning with ``prefix`` and their values, in order."""
        for key, value in self._entries(prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def verify(self) -> None:
        """Read everything once; raises ``StateCorruptError``."""
        for _ in self._entries(b""):
            pass

    def _entries(self, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Everything from ``start`` on. RocksDB's iterator just ends where it can't read on; look at its end."""
        last = start
        try:
            items = cast("Iterator[tuple[bytes, bytes]]", self._db.items(backwards=backwards, from_key=start))
            for last, value in items:
                yield last, value
            end = self._db.iter()
            if backwards:
                end.seek_for_prev(last)
                if end.valid():
                    end.prev()
            else:
                end.seek(last)
                if end.valid():
                    end.next()
            end.status()
        except Exception as error:
            raise self._unreadable(error) from error

    def _was_released(self) -> UnavailableError:
        return UnavailableError(f"state folder {self.folder} was released", hint="ask the task's present container")

    def _unreadable(self, error: Exception) -> InfrastructureError:
        """Have the next start rebuild the folder: most damage shows when something is read, not at the opening.

        A reader on another thread may come when the folder has just been released; nothing is damaged by that.
        """
        if not self._open:
            return self._was_released()
        with suppress(OSError):  # the folder is gone, or the disk full: what it says is known to this life at least
            (self.folder / _UNREADABLE).touch()
        return StateCorruptError(
            f"state folder {self.folder} can't be read: {error}", hint="nothing is lost: the next start rebuilds it"
        )

    def batch(self) -> Batch:
        """An empty batch."""
        return Batch()

    def pin(self) -> Pin:
        """Everything as it is now, for a reader on any thread to look at several times; to be closed."""
        try:
            pin = Pin(self._db.iter(), self._was_released)
        except Exception as error:
            raise self._unreadable(error) from error
        self._pins.add(pin)
        if not self._open:  # it was closed meanwhile, and didn't know of this one
            pin.close()
            raise self._was_released()
        return pin

    def write(self, batch: Batch) -> None:
        """Make a batch durable against the death of the process; all of it or nothing.

        After ``begin_rebuilding`` that waits for ``end_rebuilding``: until then a death loses what was written last.
        """
        try:
            self._db.write(batch.writes, self._logged if self._rebuilding is None else self._rebuilding)
        except Exception as error:
            raise self._unwritable(error) from error

    def begin_rebuilding(self) -> None:
        """Very much will be written in a row: not to RocksDB's log, and the tables are put in order afterwards.

        Batches are lost from the last one backwards, so what is left is always what it was after one of them.
        """
        if self._rebuilding is None:
            self._rebuilding = write_options(logged=False)
            self._set(WHILE_REBUILDING)

    def end_rebuilding(self) -> None:
        """What was written is durable. May block for as long as the last tables take."""
        if self._rebuilding is None:
            return
        try:
            self._db.flush()  # before the log goes on: it would be read without what came before
        except Exception as error:
            raise self._unwritable(error) from error
        self._rebuilding = None
        self._set(AFTERWARDS)

    def _set(self, changed: dict[str, str]) -> None:
        try:
            self._db.set_options(changed)
        except Exception as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: Exception) -> StorageError:
        return StorageError(f"state folder {self.folder}: {error}", hint="make room on the disk; nothing has been lost")

    def snapshot(self, folder: Path) -> None:
        """A copy of the present state in ``folder`` (hard links where it can), there wholly or not at all."""
        draft = _draft_of(folder)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(draft))
            draft.rename(folder)
        except Exception as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StorageError(f"snapshot {folder}: {error}", hint="make room on the disk") from error

    def size_bytes(self) -> int:
        """What the folder takes on disk, roughly."""
        return sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())

    def close(self) -> None:
        """Release the folder; a second time does nothing. Never raises: what was written is safe without it."""
        if not self._open:
            return
        self._open = False
        for pin in list(self._pins):
            pin.close()
        # Closing brings what is in RocksDB's log into tables. On a full disk that fails, and the log keeps it.
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - RocksDict raises this class itself
            _log.info(
                "closing was incomplete; the next start reads RocksDB's log", folder=str(self.folder), error=str(error)
            )
        del self._db  # which releases the folder in any case
        _CACHE.give_back()


def restore_snapshot(snapshot: Path, folder: Path) -> None:
    """Put a snapshot in the place of the local state; hard links where it can. The snapshot stays."""
    draft = _draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(snapshot, draft, copy_function=_link_table_else_copy)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise StorageError(
            f"snapshot {snapshot} can't be restored to {folder}: {error}",
            hint="check the disk's room, and that both folders may be read and written",
        ) from error


def discard(folder: Path) -> None:
    """Throw local state away."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _log.warning("local state can't be deleted, and keeps its room on the disk", folder=str(folder))


def discard_drafts(snapshots: Path) -> None:
    """Throw away what lives that were killed left half made; a fenced one that still makes it fails at that."""
    for draft in snapshots.glob(str(_draft_of(Path("*")))):
        _log.info("deleting a snapshot that a killed process left unfinished", folder=str(draft))
        discard(draft)


def _draft_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.draft")


def stand_in_for(folder: Path) -> Path:
    """A folder beside ``folder``, for a life that can't have that one."""
    return folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:_STAND_IN_DIGITS]}")


def discard_abandoned(folder: Path) -> None:
    """Throw away what stands in for ``folder`` and isn't open in any process."""
    for stand_in in folder.parent.glob(f"{folder.name}.{'[0-9a-f]' * _STAND_IN_DIGITS}"):
        try:
            with (stand_in / "LOCK").open("ab") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            discard(stand_in)
        except OSError:
            continue  # it is open
        else:
            _log.info("deleting the state folder of a process that is gone", folder=str(stand_in))
            discard(stand_in)


def _link_table_else_copy(source: str, target: str) -> str:
    """Tables and blobs never change once written, so both sides may share them; logs and manifests do."""
    if Path(source).suffix in (".sst", ".blob"):
        try:
            Path(target).hardlink_to(source)
        except OSError as error:  # another file system, or one without hard links: a copy is as good, and slower
            _log.debug("a file of a snapshot is copied, not linked", file=source, error=error.strerror)
            shutil.copy2(source, target)
    else:
        shutil.copy2(source, target)
    return target


class _SharedCache:
    """A cache of blocks for all open databases of the process, so that its size doesn't grow with their number.

    The last one to close frees it: a folder that is opened again is read from the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._users = 0

    def borrow(self) -> Cache:
        """To be given back when the database is closed."""
        with self._lock:
            self._users += 1
            if self._cache is None:
                self._cache = Cache(_CACHE_BYTES)
            return self._cache

    def give_back(self) -> None:
        """The database is closed."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._cache = None


_CACHE = _SharedCache()


def _classified(folder: Path, error: Exception) -> InfrastructureError:
    text = str(error)
    if "lock" in text.lower() and ("LOCK" in text or "hold" in text.lower()):
        return StateLockedError(f"state folder {folder} is open elsewhere: {text}")
    # What RocksDB can't do to a file is trouble with the disk (full, a quota, too many open files), and the state is
    # as good as it was. Files that are missing are another matter.
    if isinstance(error, OSError) or (text.startswith("IO error") and "No such file" not in text):
        return StorageError(
            f"state folder {folder}: {text}", hint="check the disk's room, the folder's owner, and ulimit -n"
        )
    return StateCorruptError(f"state folder {folder} can't be read: {text}")
