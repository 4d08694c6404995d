"""A task's local state on disk: one RocksDB that outlives the process, as a cache of the changelog.

Everything of one commit is written as one batch, together with its offset in the changelog, so the folder is never
between two commits. It can be verified against the changelog, and thrown away at any time. Only this file, its options
and ``pinned`` know RocksDB. One thread uses a database; ``write``, ``snapshot`` and ``end_rebuilding`` may block on the
disk.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast
from weakref import WeakSet

import pyarrow as pa
from rocksdict import AccessType, Cache, Checkpoint, Rdict, WriteBatch, WriteOptions
from typing_extensions import override

from headrace.core.durable import sync_folder
from headrace.core.errors import CorruptLogError, InfrastructureError, StateCorruptError, StorageError, UnavailableError
from headrace.core.log import logger
from headrace.core.private_folder import make_private, make_private_folder
from headrace.stores.base import View, Writes
from headrace.stores.database_options import AFTERWARDS, WHILE_REBUILDING, options, write_options
from headrace.stores.pinned import Pin
from headrace.stores.state_folder import classified, draft_of

_CACHE_BYTES = 64 << 20
_SORTED_MIN = 4096
_log = logger(__name__)

_UNREADABLE = "UNREADABLE"
"""The name of a file that marks a folder as damaged: RocksDB may still open it, but it must not be used."""


class Batch:
    """Writes that become visible together."""

    def __init__(self) -> None:
        self.writes = WriteBatch(raw_mode=True)

    @property
    def empty(self) -> bool:
        """Nothing is to be written."""
        return bool(self.writes.is_empty())

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.writes.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key, if it exists."""
        self.writes.delete(key)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete all keys with ``start <= key < stop``."""
        self.writes.delete_range(start, stop)


class KeySpace(View):
    """One store's keys in a database: those that begin with its id and a 0 byte.

    Another thread than the task's may read through a key space of its own. Within one call it sees complete commits.
    """

    def __init__(self, whole: Database | Pin, store: str) -> None:
        self._whole = whole
        self._store = store
        self._below = store.encode() + b"\x00"
        self._end = store.encode() + b"\x01"

    @contextmanager
    def pinned(self) -> Iterator[KeySpace]:
        """Return the same key space, unaffected by later writes. Use it briefly: it keeps old files on the disk."""
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
    """One store's writes in a batch, in its key space."""

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
        for position in _sorted_positions([key for key, _ in entries]):
            key, value = entries[position]
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


def _sorted_positions(keys: list[bytes]) -> Iterable[int]:
    """Return the positions of keys in key order, equal keys in their present order; a few keys stay unsorted.

    RocksDB starts its search for a key's place at the previous key, so sorted keys are inserted several times faster.
    """
    if len(keys) < _SORTED_MIN:
        return range(len(keys))
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    order: list[int] = pc.sort_indices(pa.array(keys, pa.large_binary())).to_pylist()
    return order


class Database:
    """An open folder."""

    def __init__(self, folder: Path, *, read_only: bool = False, lazily: bool = False) -> None:
        """Open or create. Raises ``StateLockedError``, ``StateCorruptError`` or ``StorageError``.

        ``read_only``: it must exist, several may have it open, and none may change it. ``lazily``: it is created
        when something is written. Until then it is as good as empty, and costs no files, no descriptors and no wait.
        """
        self.folder = folder
        self._read_only = read_only
        self._open = True
        self._pins: WeakSet[Pin] = WeakSet()
        self._logged = write_options()
        self._rebuilding: WriteOptions | None = None
        self._making = threading.Lock()
        self._made: Rdict | None = None
        if not lazily or folder.exists():
            self._made = self._make(folder, read_only=read_only)

    @property
    def made(self) -> bool:
        """It has been created: something was written, or a reader needed it."""
        return self._made is not None

    @property
    def _db(self) -> Rdict:
        """The database itself; created when it is first needed, on whichever thread."""
        if self._made is None:
            with self._making:
                if not self._open:
                    raise self._was_released()
                if self._made is None:
                    self._made = self._make(self.folder, read_only=False)
        return self._made

    def _make(self, folder: Path, *, read_only: bool) -> Rdict:
        if read_only and not (folder / "CURRENT").exists():  # RocksDict would create the folder
            raise _unreadable_copy(folder, "it has no database")
        if (folder / _UNREADABLE).exists():
            raise StateCorruptError(
                f"state folder {folder} couldn't be read last time", hint="nothing is lost: Headrace rebuilds it"
            )
        cache = _CACHE.acquire()
        try:
            if not read_only:
                make_private_folder(folder)
            access = AccessType.read_only() if read_only else AccessType.read_write()
            # Without options for the column family, too, RocksDict uses those of the last time, with a tiny cache.
            families = {"default": options(cache)}
            return Rdict(str(folder), options(cache), column_families=families, access_type=access)
        except Exception as error:
            _CACHE.release()
            raise (_unreadable_copy(folder, error) if read_only else classified(folder, error)) from error

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        if self._open and self._made is None:
            return None
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        if self._open and self._made is None:
            return [None] * len(keys)
        try:
            # RocksDict also accepts a list, but that is a fifth slower on tables, and no faster in the memtable.
            return list(map(cast("Callable[[bytes], bytes | None]", self._db.get), keys))
        except Exception as error:
            raise self._unreadable(error) from error

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with ``start <= key < stop``, in key order or reversed."""
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
        """Yield the entries whose keys start with ``prefix``, in key order."""
        for key, value in self._entries(prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def size(self) -> int:
        """How many bytes it takes, roughly: files that are in use, and what hasn't reached them."""
        if self._made is None:
            return 0
        names = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def verify(self) -> None:
        """Read everything once. Raises ``StateCorruptError``."""
        for _ in self._entries(b""):
            pass

    def _entries(self, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield everything from ``start`` on.

        RocksDB's iterator ends early, without an error, when it can't read on. So another one then continues from the
        last key, and its status says whether there was an error.
        """
        if self._open and self._made is None:
            return
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
        return UnavailableError(
            f"state folder {self.folder} was released", hint="read the task's state from its present container"
        )

    def _unreadable(self, error: Exception) -> InfrastructureError:
        """Mark the folder as damaged, so that the next start rebuilds it: opening it may not show the damage again.

        A reader on another thread may be late, after the folder was released. That damages nothing.
        """
        if not self._open:
            return self._was_released()
        if self._read_only:
            raise _unreadable_copy(self.folder, error) from error
        with suppress(OSError):  # if the mark can't be written, at least this incarnation knows of the damage
            (self.folder / _UNREADABLE).touch()
        return StateCorruptError(
            f"state folder {self.folder} can't be read: {error}", hint="nothing is lost: the next start rebuilds it"
        )

    def batch(self) -> Batch:
        """Return an empty batch."""
        return Batch()

    def pin(self) -> Pin:
        """Return a pin of the present contents, for several reads on any thread. The caller must close it."""
        try:
            pin = Pin(self._db.iter(), self._was_released)
        except Exception as error:
            raise self._unreadable(error) from error
        self._pins.add(pin)
        if not self._open:  # the database was closed meanwhile, without closing this pin
            pin.close()
            raise self._was_released()
        return pin

    def write(self, batch: Batch) -> None:
        """Write a batch, all of it or nothing. It survives the death of the process.

        After ``begin_rebuilding`` that is so only once ``end_rebuilding`` has returned: until then, a death of the
        process loses the batches written last.
        """
        if self._made is None and batch.empty:
            return
        try:
            self._db.write(batch.writes, self._logged if self._rebuilding is None else self._rebuilding)
        except Exception as error:
            raise self._unwritable(error) from error

    def begin_rebuilding(self) -> None:
        """Prepare for a long series of batches: write without RocksDB's log, and don't compact tables until the end.

        If the process dies, the last batches are lost. What remains is always the state after one of the batches.
        """
        if self._rebuilding is None:
            self._rebuilding = write_options(logged=False)
            self._set(WHILE_REBUILDING)

    def end_rebuilding(self) -> None:
        """Make everything written durable, and return to normal. May block until the last tables are written."""
        if self._rebuilding is None:
            return
        try:
            self._db.flush()  # before the log resumes, since a start would replay it without the unlogged batches
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
        return StorageError(f"state folder {self.folder}: {error}", hint="free up space on the disk; nothing was lost")

    def snapshot(self, folder: Path) -> None:
        """Copy the present state to ``folder``, by hard links if possible. The copy appears atomically."""
        draft = draft_of(folder)
        shutil.rmtree(draft, ignore_errors=True)
        try:
            make_private_folder(draft.parent)
            Checkpoint(self._db).create_checkpoint(str(draft))
            make_private(draft)
            draft.rename(folder)
            sync_folder(folder.parent)  # the changelog is trimmed up to it
        except Exception as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise StorageError(f"can't write snapshot {folder}: {error}", hint="free up space on the disk") from error

    def close(self) -> None:
        """Release the folder. A second call does nothing. Never raises, since everything written is already safe."""
        if not self._open:
            return
        with self._making:
            self._open = False
        if self._made is None:
            return
        for pin in list(self._pins):
            pin.close()
        # Closing writes the contents of RocksDB's log into tables. On a full disk that fails, and the log keeps them.
        try:
            self._made.close()
        except Exception as error:  # noqa: BLE001 - RocksDict raises this class itself
            _log.info(
                "closing was incomplete; the next start reads RocksDB's log", folder=str(self.folder), error=str(error)
            )
        self._made = None  # this releases the folder in any case
        _CACHE.release()


def _unreadable_copy(folder: Path, why: object) -> CorruptLogError:
    return CorruptLogError(
        f"the copy of a task's state in {folder} can't be read: {why}",
        hint="check that the folder is complete, and that this user may read and write it, or use another copy",
    )


class _SharedCache:
    """One block cache for all open databases of the process, so that its size doesn't grow with their number.

    The last database to close frees it. A folder that is opened after that is read from the disk.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._users = 0

    def acquire(self) -> Cache:
        """Return the cache. Call ``release`` when the database is closed."""
        with self._lock:
            self._users += 1
            if self._cache is None:
                self._cache = Cache(_CACHE_BYTES)
            return self._cache

    def release(self) -> None:
        """Note that a database was closed."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._cache = None


_CACHE = _SharedCache()
