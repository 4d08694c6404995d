"""A task's local state on disk: one RocksDB that outlives the process, as a cache of the changelog.

Everything of one commit is one batch, together with its offset in the changelog, so the folder is never between two
commits. A folder that is being written has the name of a draft until it is complete, so what a killed process leaves is
never taken for a state or a snapshot. Everything here may block on the disk. One thread uses a database.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar, cast
from weakref import WeakSet

import pyarrow as pa
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)
from typing_extensions import override

from headrace.core import errors, files
from headrace.core.files import make_private, make_private_folder, open_private, sync_folder
from headrace.core.log import logger
from headrace.stores.base import View, Writes

_STAND_INS = ".stand-ins"
"""The folder of substitutes. Among the folders of thousands of tasks, a search for them would take too long."""
_LOCKED_HINT = "a replaced container may still be running; it stops by itself"
_log = logger(__name__)


class FolderLock:
    """The right to use a folder and to delete it, for one user in one process, with which it ends."""

    _held: ClassVar[set[Path]] = set()
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path) -> None:
        """Raise ``StateLockedError`` if it is held elsewhere, ``StorageError`` if the file system refuses it."""
        self._path = folder.with_name(f".{folder.name}.lock")
        with self._guard:
            if self._path in self._held:
                what = f"state folder {folder} is open elsewhere in this process"
                raise errors.StateLockedError(what, hint="close it first")
            try:
                make_private_folder(folder.parent)
                self._file = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_APPEND), "ab")
            except OSError as error:
                raise classified(folder, error) from error
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._file.close()
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    what = f"state folder {folder} is open in another process: {error}"
                    raise errors.StateLockedError(what, hint=_LOCKED_HINT) from error
                raise classified(folder, error) from error
            self._held.add(self._path)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        with self._guard:
            if not self._file.closed:
                self._held.discard(self._path)
                self._file.close()


def restore_snapshot(snapshot: Path, folder: Path) -> None:
    """Replace the local state by a snapshot, by hard links if possible. The snapshot remains."""
    draft = draft_of(folder)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make_private_folder(draft.parent)
        shutil.copytree(snapshot, draft, copy_function=_link_table_else_copy)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        hint = "check the disk's free space, and that this user may read and write both folders"
        raise errors.StorageError(f"snapshot {snapshot} can't be restored to {folder}: {error}", hint=hint) from error


def discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _log.warning("can't delete local state, which still takes space on the disk", folder=str(folder))


def discard_drafts(snapshots: Path) -> None:
    """Delete the unfinished snapshots of killed incarnations. A zombie that is still writing one fails."""
    for draft in snapshots.glob(str(draft_of(Path("*")))):
        _log.info("deleting the unfinished snapshot of a killed process", folder=str(draft))
        discard(draft)


def draft_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.draft")


def stand_in_for(folder: Path) -> Path:
    """Return a new substitute for ``folder``, for an incarnation that can't have it because it is locked."""
    return folder.parent / _STAND_INS / f"{folder.name}.{uuid.uuid4().hex[:8]}"


def discard_abandoned(folder: Path) -> None:
    for stand_in in list((folder.parent / _STAND_INS).glob(f"{folder.name}.*")):
        try:
            with (stand_in / "LOCK").open("ab") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            discard(stand_in)
        except OSError:
            continue  # it is open
        else:
            _log.info("deleting the state folder of a dead process", folder=str(stand_in))
            discard(stand_in)


def _link_table_else_copy(source: str, target: str) -> str:
    """Link tables and blobs, which never change, so that both folders share them. Copy logs and manifests."""
    if Path(source).suffix in (".sst", ".blob"):
        try:
            Path(target).hardlink_to(source)
            return target
        except OSError as error:  # another file system, or one without hard links: a copy is as good, and slower
            _log.debug("a file of a snapshot is copied, not linked", file=source, error=error.strerror)
    return shutil.copy2(source, target)


def classified(folder: Path, error: Exception) -> errors.InfrastructureError:
    text = str(error)
    if files.FULL in text:  # RocksDB reports this about its lock, which no process holds
        return errors.StorageError(f"state folder {folder}: {text}", hint=files.hint())
    if "lock" in text.lower() and ("LOCK" in text or "hold" in text.lower()):
        return errors.StateLockedError(f"state folder {folder} is open elsewhere: {text}", hint=_LOCKED_HINT)
    # An I/O error means trouble with the disk (full, a quota, too many open files), and the state is intact. Only a
    # missing file means that the state is damaged.
    if isinstance(error, OSError) or (text.startswith("IO error") and "No such file" not in text):
        said = f"state folder {folder}: {text}"
        return errors.StorageError(said, hint="check the disk's free space and the folder's owner")
    what = f"state folder {folder} can't be read: {text}"
    return errors.StateCorruptError(what, hint="nothing is lost: the next start rebuilds it")


_BLOB_BYTES_MIN = 2048  # values of at least this size are stored in blob files, so that compaction need not copy them
_BLOOM_BITS = 10  # one in a hundred lookups of an absent key reads a block
_WRITE_BUFFER_BYTES = 16 << 20
"""A task may have two such buffers in memory, and a start reads as much of RocksDB's log. Smaller ones start faster."""
WHILE_REBUILDING = {
    "disable_auto_compactions": "true",
    "level0_slowdown_writes_trigger": "1000000",
    "level0_stop_writes_trigger": "1000000",
}
AFTERWARDS = {
    "level0_slowdown_writes_trigger": "20",
    "level0_stop_writes_trigger": "36",
    "disable_auto_compactions": "false",
}
"""RocksDB's defaults."""


def write_options(*, logged: bool = True) -> WriteOptions:
    written = WriteOptions()
    # RocksDict's type hints declare methods here, but these are properties.
    written.memtable_insert_hint_per_batch = True
    written.disable_wal = not logged  # type: ignore[method-assign, assignment]
    return written


def options(cache: Cache) -> Options:
    built = Options(raw_mode=True)
    built.create_if_missing(True)
    built.set_enable_blob_files(True)
    built.set_min_blob_size(_BLOB_BYTES_MIN)
    built.set_enable_blob_gc(True)
    built.set_keep_log_file_num(1)
    built.set_max_log_file_size(1 << 20)
    built.set_max_background_jobs(1)
    built.set_allow_concurrent_memtable_write(False)  # one thread writes
    built.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    # Nothing reads RocksDB's statistics, so no thread wakes up for them, and no table is read for them at the opening.
    built.set_stats_dump_period_sec(0)
    built.set_stats_persist_period_sec(0)
    built.set_skip_stats_update_on_db_open(True)
    built.set_max_file_opening_threads(1)
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_bloom_filter(_BLOOM_BITS, False)
    built.set_block_based_table_factory(tables)
    return built


_PORTION_ENTRIES = 512


class Pin:
    """All entries as of one moment, for a reader that makes several calls and must see a single commit.

    Any thread may use it, one call at a time; ``close`` it soon, since the folder stays open. ``released`` makes the
    error that reads raise after that. (RocksDict's snapshots don't serve: their iterators see later writes.)
    """

    def __init__(self, entries: RdictIter, released: Callable[[], Exception]) -> None:
        self._entries: RdictIter | None = entries
        self._released = released
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._get(self._open(), key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            entries = self._open()
            return [self._get(entries, key) for key in keys]

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return _between(self._all(stop if reverse else start, backwards=reverse), start, stop, reverse)

    def close(self) -> None:
        """Release the iterator. A second call does nothing."""
        with self._lock:
            self._entries = None

    def _open(self) -> RdictIter:
        if self._entries is None:
            raise self._released()
        return self._entries

    @staticmethod
    def _get(entries: RdictIter, key: bytes) -> bytes | None:
        entries.seek(key)
        if entries.valid() and entries.key() == key:
            value: bytes = entries.value()
            return value
        entries.status()
        return None

    def _all(self, start: bytes, *, backwards: bool) -> Iterator[tuple[bytes, bytes]]:
        """Other reads may come between two portions."""
        portion = self._portion(start, _PORTION_ENTRIES, backwards)
        while portion:
            yield from portion
            last = portion[-1][0]
            # The last one is met again, and passed over.
            portion = list(islice(self._portion(last, _PORTION_ENTRIES + 1, backwards), 1, None))

    def _portion(self, start: bytes, count: int, backwards: bool) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            entries = self._open()
            seek, step = (entries.seek_for_prev, entries.prev) if backwards else (entries.seek, entries.next)
            seek(start)
            while len(found) < count and entries.valid():
                found.append((entries.key(), entries.value()))
                step()
            entries.status()
        return found


def _between(
    entries: Iterable[tuple[bytes, bytes]], start: bytes, stop: bytes, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    for key, value in entries:
        if (key < start) if reverse else (key >= stop):
            return
        if key < stop:
            yield key, value


_CACHE_BYTES = 64 << 20
_SORTED_MIN = 4096
_UNREADABLE = "UNREADABLE"
"""The name of a file that marks a folder as damaged: RocksDB may still open it, but it must not be used."""


class Batch:
    """Writes that become visible together."""

    def __init__(self) -> None:
        self.writes = WriteBatch(raw_mode=True)

    @property
    def empty(self) -> bool:
        return bool(self.writes.is_empty())

    def put(self, key: bytes, value: bytes) -> None:
        self.writes.put(key, value)

    def delete(self, key: bytes) -> None:
        self.writes.delete(key)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self.writes.delete_range(start, stop)


class KeySpace(View):
    """One store's keys in a database: those that begin with its id and a 0 byte. Another thread may have its own."""

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
    """The positions of keys in key order (RocksDB inserts such keys several times faster); a few keys stay unsorted."""
    if len(keys) < _SORTED_MIN:
        return range(len(keys))
    import pyarrow.compute as pc  # when first used: it takes a tenth of the start of every process

    order: list[int] = pc.sort_indices(pa.array(keys, pa.large_binary())).to_pylist()
    return order


class Database:
    """An open folder."""

    def __init__(self, folder: Path, *, read_only: bool = False, lazily: bool = False) -> None:
        """Open or create. Raises ``StateLockedError``, ``StateCorruptError`` or ``StorageError``.

        ``read_only``: it must exist, and several may have it open. ``lazily``: it is created when something is written;
        until then it is as good as empty, and costs no files, no descriptors and no wait.
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
        return self._made is not None

    @property
    def _db(self) -> Rdict:
        """Created when it is first needed, on whichever thread."""
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
            what = f"state folder {folder} couldn't be read last time"
            raise errors.StateCorruptError(what, hint="nothing is lost: Headrace rebuilds it")
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
        if self._open and self._made is None:
            return None
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._unreadable(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._open and self._made is None:
            return [None] * len(keys)
        try:
            # RocksDict also accepts a list, but that is a fifth slower on tables, and no faster in the memtable.
            return list(map(cast("Callable[[bytes], bytes | None]", self._db.get), keys))
        except Exception as error:
            raise self._unreadable(error) from error

    def range(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return _between(self._entries(stop if reverse else start, backwards=reverse), start, stop, reverse)

    def size(self) -> int:
        """How many bytes it takes, roughly: files that are in use, and what hasn't reached them."""
        if self._made is None:
            return 0
        names = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def verify(self) -> None:
        for _ in self._entries(b""):
            pass

    def _entries(self, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Everything from ``start`` on.

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
            seek, step = (end.seek_for_prev, end.prev) if backwards else (end.seek, end.next)
            seek(last)
            if end.valid():
                step()
            end.status()
        except Exception as error:
            raise self._unreadable(error) from error

    def _was_released(self) -> errors.UnavailableError:
        what = f"state folder {self.folder} was released"
        return errors.UnavailableError(what, hint="read the task's state from its present container")

    def _unreadable(self, error: Exception) -> errors.InfrastructureError:
        """Mark the folder as damaged, so that the next start rebuilds it: opening it may not show the damage again."""
        if not self._open:
            return self._was_released()
        if self._read_only:
            raise _unreadable_copy(self.folder, error) from error
        with suppress(OSError):  # if the mark can't be written, at least this incarnation knows of the damage
            (self.folder / _UNREADABLE).touch()
        what = f"state folder {self.folder} can't be read: {error}"
        return errors.StateCorruptError(what, hint="nothing is lost: the next start rebuilds it")

    def batch(self) -> Batch:
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
        """Write a batch, all of it or nothing. It survives the death of the process, unless this is a rebuilding."""
        if self._made is None and batch.empty:
            return
        try:
            self._db.write(batch.writes, self._logged if self._rebuilding is None else self._rebuilding)
        except Exception as error:
            raise self._unwritable(error) from error

    def begin_rebuilding(self) -> None:
        """Write without RocksDB's log and compactions. If the process dies, the last batches are lost."""
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

    def _unwritable(self, error: Exception) -> errors.StorageError:
        what = f"state folder {self.folder}: {error}"
        return errors.StorageError(what, hint="free up space on the disk; nothing was lost")

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
            what = f"can't write snapshot {folder}: {error}"
            raise errors.StorageError(what, hint="free up space on the disk") from error

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
            what = "closing was incomplete; the next start reads RocksDB's log"
            _log.info(what, folder=str(self.folder), error=str(error))
        self._made = None  # this releases the folder in any case
        _CACHE.release()


def _unreadable_copy(folder: Path, why: object) -> errors.CorruptLogError:
    hint = "check that the folder is complete, and that this user may read and write it, or use another copy"
    return errors.CorruptLogError(f"the copy of a task's state in {folder} can't be read: {why}", hint=hint)


class _SharedCache:
    """One block cache for all open databases of the process. The last one to close frees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: Cache | None = None
        self._users = 0

    def acquire(self) -> Cache:
        with self._lock:
            self._users += 1
            if self._cache is None:
                self._cache = Cache(_CACHE_BYTES)
            return self._cache

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._cache = None


_CACHE = _SharedCache()
