"""The metadata store: its contract, in memory and in SQLite; generations of tasks and their places.

What several processes must agree on is written with ``write``: the writer that read the latest values wins, all others
read again. Values are few and small. ``MemoryMetadata`` is the reference.

The SQLite file in the home is for any number of processes on one machine. A write transaction takes the write lock at
its start, so a compare-and-set never fails halfway. In write-ahead mode, readers don't wait for writers. Commits are
synced: a generation must not be issued again after a power cut. A call blocks for the busy timeout at most. Other
stores are opened by an entry point of the group ``headrace.metadata``: its name is the URL's scheme, and its function
takes the URL and ``create``.

Generations fence off older copies of a task. Kept in the driver's memory, they would be issued again by a second
driver, or one that was restarted, and nothing could distinguish two incarnations of one generation.

The place of a task is the host that had it last: there its state still lies. Only a hint.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import msgspec
from typing_extensions import override

from headrace.core.deployment import METADATA_GROUP
from headrace.core.errors import (
    DataError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    ProtocolError,
    StorageError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import decode_record, make_private_folder
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.core.plug_ins import loaded, plug_in
from headrace.core.secrets import SecretUrl

Version = int
"""The version of a value. Above 0, never used twice in a store, even after a delete, and rising from write to write."""
_MOST_ATTEMPTS = 1000

_log = logger(__name__)


class Entry(NamedTuple):
    """A value, and the version to give when replacing it."""

    value: bytes
    version: Version


class Put(NamedTuple):
    """Set ``key`` to ``value`` if its version is ``expected``; None: if the key doesn't exist."""

    key: str
    value: bytes
    expected: Version | None


class Delete(NamedTuple):
    """Delete ``key`` if its version is ``expected``."""

    key: str
    expected: Version


Change = Put | Delete


class MetadataStore(Protocol):
    """Keys and values in namespaces, with compare-and-set. Threads may share a handle.

    What a call has written when it returns is durable, and every later call of any process sees it. All methods may
    raise ``UnavailableError`` (nothing happened) and ``StorageError``; writes also ``IndeterminateWriteError``.
    """

    @property
    def place(self) -> str:
        """Where it is, for messages: a home folder, or the URL of a server without its secrets."""

    def get(self, namespace: str, key: str) -> Entry | None:
        """Return the value and its version; None if the key doesn't exist."""

    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        """Make all changes, each of another key; return the new versions in order, with 0 for a delete.

        Return None, and change nothing, if one of the keys hasn't the version that its change expects.
        """

    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        """Return all keys of the namespace that begin with ``prefix``, sorted, as of one moment."""

    def close(self) -> None:
        """Release the handle's resources. Idempotent."""

    def put_if(self, namespace: str, key: str, value: bytes, expected: Version | None) -> Version | None:
        """Set the value if its version is ``expected`` (None: if absent). Return the new version, or None."""
        versions = self.write(namespace, [Put(key, value, expected)])
        return None if versions is None else versions[0]

    def delete_if(self, namespace: str, key: str, expected: Version) -> bool:
        return self.write(namespace, [Delete(key, expected)]) is not None


def check_changes(changes: Sequence[Change]) -> None:
    """Raise ``ProtocolError`` if a key is changed twice. For implementations of ``write``."""
    keys = [change.key for change in changes]
    twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else ()
    if twice:
        raise ProtocolError(f"one write to the metadata store changes {', '.join(map(repr, sorted(twice)))} twice")


def update(
    store: MetadataStore, namespace: str, key: str, change: Callable[[bytes | None], bytes | None]
) -> bytes | None:
    """Replace a value by ``change(value)`` (None: absent), which may be called several times; return the new value."""
    for _ in range(_MOST_ATTEMPTS):
        entry = store.get(namespace, key)
        new = change(entry.value if entry else None)
        if new is not None:
            done = store.put_if(namespace, key, new, entry.version if entry else None) is not None
        else:
            done = entry is None or store.delete_if(namespace, key, entry.version)
        if done:
            return new
        _log.debug("another writer changed the value; trying again", namespace=namespace, key=key)
    what = f"{key!r} of {namespace!r} in the metadata store changed {_MOST_ATTEMPTS} times while it was being replaced"
    raise UnavailableError(what, hint="find the process that keeps changing it")


class MemoryMetadata(MetadataStore):
    """The reference implementation, in the memory of one process. ``close`` keeps the contents."""

    def __init__(self, place: str = "memory") -> None:
        self._place = place
        self._entries: dict[tuple[str, str], Entry] = {}
        self._last_version = 0
        self._lock = threading.Lock()

    @property
    @override
    def place(self) -> str:
        return self._place

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        with self._lock:
            return self._entries.get((namespace, key))

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        check_changes(changes)
        with self._lock:
            if not all(self._is_as_expected(namespace, change) for change in changes):
                return None
            return [self._make(namespace, change) for change in changes]

    @override
    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        with self._lock:
            return {
                key: entry
                for (space, key), entry in sorted(self._entries.items())
                if space == namespace and key.startswith(prefix)
            }

    @override
    def close(self) -> None:
        return

    def _is_as_expected(self, namespace: str, change: Change) -> bool:
        entry = self._entries.get((namespace, change.key))
        return (entry.version if entry else None) == change.expected

    def _make(self, namespace: str, change: Change) -> Version:
        if isinstance(change, Delete):
            del self._entries[namespace, change.key]
            return 0
        self._last_version += 1
        self._entries[namespace, change.key] = Entry(bytes(change.value), self._last_version)
        return self._last_version


FORMAT = 1
FILE = "metadata.db"
_APPLICATION_ID = 0x48524D44  # "HRMD" in the file's header: distinguishes our files from other SQLite files

_TABLES = (
    "CREATE TABLE entries (namespace TEXT, key TEXT, value BLOB NOT NULL, version INTEGER NOT NULL,"
    " PRIMARY KEY (namespace, key)) WITHOUT ROWID",
    # One counter for the whole file: no version is used twice, so a key that was deleted and set again can't be
    # mistaken for the one that was read before.
    "CREATE TABLE last_version (version INTEGER NOT NULL)",
    "INSERT INTO last_version VALUES (0)",
)
_SLOW_S = 0.5
"""Waiting longer than this for the write lock is worth a log line."""


class SqliteMetadata(MetadataStore):
    """A handle on the file. Threads may share it; a forked process has to open its own."""

    def __init__(self, path: Path, busy_timeout_ms: int = 5000) -> None:
        self._path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        try:
            _create(path)
        except (OSError, sqlite3.Error) as error:
            hint = "check that the home is a folder and writable, and that its disk isn't full"
            raise StorageError(f"can't create the metadata store {path}: {error}", hint=hint) from error
        with self._translated("open"):
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        try:
            self._check_format()
        except BaseException:
            self.close()
            raise

    @property
    @override
    def place(self) -> str:
        return str(self._path.parent)

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        query = "SELECT value, version FROM entries WHERE namespace = ? AND key = ?"
        with self._reading() as connection:
            row = connection.execute(query, (namespace, key)).fetchone()
        return Entry(bytes(row[0]), row[1]) if row else None

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        check_changes(changes)
        with self._writing() as connection:
            if not all(_is_as_expected(connection, namespace, change) for change in changes):
                return None
            return [_make(connection, namespace, change) for change in changes]

    @override
    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        query = (
            "SELECT key, value, version FROM entries WHERE namespace = ? AND substr(key, 1, length(?)) = ? ORDER BY key"
        )
        with self._reading() as connection:
            rows = connection.execute(query, (namespace, prefix, prefix)).fetchall()
        return {key: Entry(bytes(value), version) for key, value, version in rows}

    @override
    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _check_format(self) -> None:
        with self._reading() as connection:
            owner = connection.execute("PRAGMA application_id").fetchone()[0]
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute("PRAGMA synchronous = FULL")
        if owner != _APPLICATION_ID:
            hint = "check the path of the home folder"
            raise DataError(f"{self._path} is an SQLite file, but not a Headrace metadata store", hint=hint)
        if found != FORMAT:
            what = f"the metadata store {self._path} is of format {found}; this version of Headrace reads {FORMAT}"
            raise InfrastructureError(what, hint="use the version of Headrace that wrote it, or a newer one")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated("read"):
            yield self._open_connection()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._open_connection()
            with self._translated("write"):
                began = time.monotonic()
                connection.execute("BEGIN IMMEDIATE")
                if (waited := time.monotonic() - began) > _SLOW_S:
                    _log.warning(
                        "waited long for the metadata store's lock", path=str(self._path), seconds=round(waited, 1)
                    )
            try:
                with self._translated("write"):
                    yield connection
                with self._translated("commit"):
                    connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise UnavailableError(f"the metadata store {self._path} was closed")
        if os.getpid() != self._pid:
            # SQLite's locks don't survive a fork: continuing could damage the file.
            raise UnavailableError(
                f"the metadata store {self._path} was opened by process {self._pid}, but this is process {os.getpid()}",
                hint="open it again in each process",
            )
        return self._connection

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explained(action, error) from error

    def _explained(self, action: str, error: sqlite3.Error) -> HeadraceError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended part
        what = f"can't {action} the metadata store {self._path}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return UnavailableError(
                f"{what}: another process has held its lock for {self._busy_timeout_ms} ms",
                hint="find the process that holds the lock (a stuck command, a backup); then try again",
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            hint = "restore it from a backup, because a new file would issue generations a second time"
            return DataError(f"{what}: the file is damaged or isn't an SQLite file ({error})", hint=hint)
        if code == sqlite3.SQLITE_CANTOPEN:
            return StorageError(f"{what}: {error}", hint="check that you own the file: others may not read it")
        if action == "commit" and code == sqlite3.SQLITE_IOERR:
            return IndeterminateWriteError(f"{what}: {error}; the change may or may not have happened")
        return StorageError(f"{what}: {error}", hint="check that the disk isn't full and the folder is writable")


def _create(path: Path) -> None:
    """Create the file under another name, then link it: no process sees it before its mode has been switched."""
    if path.exists():
        return
    make_private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        # The addresses of running apps have tokens in them. SQLite gives its other files the same mode.
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # no other process sees the file before the fsync below
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first; its file is just as good
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _is_as_expected(connection: sqlite3.Connection, namespace: str, change: Change) -> bool:
    query = "SELECT version FROM entries WHERE namespace = ? AND key = ?"
    row = connection.execute(query, (namespace, change.key)).fetchone()
    return (row[0] if row else None) == change.expected


def _make(connection: sqlite3.Connection, namespace: str, change: Change) -> Version:
    if isinstance(change, Delete):
        connection.execute("DELETE FROM entries WHERE namespace = ? AND key = ?", (namespace, change.key))
        return 0
    connection.execute("UPDATE last_version SET version = version + 1")
    version: int = connection.execute("SELECT version FROM last_version").fetchone()[0]
    row = (namespace, change.key, bytes(change.value), version)
    connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
    return version


def open_metadata(home: Path, url: SecretUrl | None = None) -> MetadataStore:
    return SqliteMetadata(home / FILE) if url is None else _at(url, create=True)


@contextmanager
def existing_metadata(home: Path, url: SecretUrl | None = None) -> Iterator[MetadataStore]:
    """Open the store for reading. Creates nothing: where nothing has run, it is an empty one in memory."""
    if url is not None:
        metadata = _at(url, create=False)
    elif (path := home / FILE).exists():
        metadata = SqliteMetadata(path)
    else:
        metadata = MemoryMetadata(place=str(home))
    try:
        yield metadata
    finally:
        metadata.close()


def _at(url: SecretUrl, *, create: bool) -> MetadataStore:
    opener = plug_in(METADATA_GROUP, url.scheme)
    if opener is None:
        hint = "install the package that brings it, where drivers and commands run"
        raise UsageError(f"no metadata store for {url.scheme}:// is installed here", hint=hint)
    return cast("MetadataStore", loaded(opener)(url, create=create))


HIGHEST = 2**31 - 1
"""A generation travels as an int32."""
GENERATION_FORMAT = 1
PLACES_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int = msgspec.field(default=GENERATION_FORMAT, name="version")
    generation: int


_DECODER = msgspec.json.Decoder(_Record)


class Generations:
    """The generations of an app's tasks. All deployments of the app share them."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"generations/{app}"

    def issue(self, tasks: Sequence[TaskName]) -> dict[TaskName, int]:
        """Return a new generation of each task, higher than any before. After an error it may be called again."""
        wanted = list(dict.fromkeys(tasks))
        for _ in range(_MOST_ATTEMPTS):
            known = self._store.scan(self._namespace)
            issued = {task: self._next(task, known.get(str(task))) for task in wanted}
            puts = []
            for task, generation in issued.items():
                entry = known.get(str(task))
                record = msgspec.json.encode(_Record(generation=generation))
                puts.append(Put(str(task), record, entry.version if entry else None))
            if self._write(puts):
                return issued
            what = "another driver took the same generations; trying the next ones"
            _log.info(what, app=self._app, tasks=len(wanted))
        raise UnavailableError(
            f"other drivers took a generation of {', '.join(map(str, wanted))} of app {self._app!r}"
            f" first, {_MOST_ATTEMPTS} times in a row",
            hint="stop the other drivers that run this app",
        )

    def latest(self) -> dict[TaskName, int]:
        entries = self._store.scan(self._namespace)
        return {TaskName.parse(key): self._read(key, entry) for key, entry in entries.items()}

    def _write(self, puts: Sequence[Put]) -> bool:
        try:
            return self._store.write(self._namespace, puts) is not None
        except IndeterminateWriteError as error:
            # If it was written, these numbers are skipped, which does no harm: the next call returns higher ones.
            raise StorageError(
                f"can't issue generations for app {self._app!r}: {error.message}",
                hint=error.hint or "free up space on the disk of the metadata store",
            ) from error

    def _next(self, task: TaskName, entry: Entry | None) -> int:
        generation = self._read(str(task), entry) + 1 if entry else 1
        if generation > HIGHEST:
            hint = "start the app under another name"
            raise ProtocolError(f"task {task} of app {self._app!r} has used up all {HIGHEST} generations", hint=hint)
        return generation

    def _read(self, task: str, entry: Entry) -> int:
        where = f"the generation of task {task} of app {self._app!r} in the metadata store"
        return decode_record(_DECODER, entry.value, where, GENERATION_FORMAT).generation


_T = TypeVar("_T")


class _PlaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a stage's tasks by their numbers, and of their standbys; empty where none is known."""

    format: int = msgspec.field(default=PLACES_FORMAT, name="version")
    hosts: list[str]
    standbys: list[list[str]] | msgspec.UnsetType = msgspec.UNSET
    """An addition that versions of Headrace without standbys ignore."""


_PLACES_DECODER = msgspec.json.Decoder(_PlaceRecord)


class Places:
    """The book of an app: an entry for each stage, which only the deployment that runs the stage writes."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"places/{app}"

    def read(self) -> dict[TaskName, str]:
        """Return the host of each task that one is known of. What can't be read isn't known."""
        return {
            TaskName(stage, number): host
            for stage, record in self._records()
            for number, host in enumerate(record.hosts)
            if host
        }

    def read_standbys(self) -> dict[TaskName, list[str]]:
        return {
            TaskName(stage, number): hosts
            for stage, record in self._records()
            for number, hosts in enumerate(record.standbys or [])
            if hosts
        }

    def note(self, hosts: Mapping[TaskName, str], standbys: Mapping[TaskName, Sequence[str]] | None = None) -> None:
        copies = standbys or {}
        for stage in sorted({task.stage for task in (*hosts, *copies)}):
            on = {task.number: host for task, host in hosts.items() if task.stage == stage}
            also = {task.number: list(those) for task, those in copies.items() if task.stage == stage}
            update(self._store, self._namespace, stage, partial(self._noted, stage, on, also))

    def _noted(self, stage: str, on: Mapping[int, str], also: Mapping[int, list[str]], value: bytes | None) -> bytes:
        known = _PlaceRecord(hosts=[]) if value is None else self._record(stage, value)
        both = _merged(known.standbys or [], also, [])
        return msgspec.json.encode(_PlaceRecord(hosts=_merged(known.hosts, on, ""), standbys=both or msgspec.UNSET))

    def _records(self) -> Iterator[tuple[str, _PlaceRecord]]:
        for stage, entry in self._store.scan(self._namespace).items():
            yield stage, self._record(stage, entry.value)

    def _record(self, stage: str, value: bytes) -> _PlaceRecord:
        try:
            what = f"the place of stage {stage} of app {self._app!r} in the metadata store"
            return decode_record(_PLACES_DECODER, value, what, PLACES_FORMAT)
        except DataError as error:
            _log.info("can't read where tasks ran last", app=self._app, stage=stage, error=error.message)
            return _PlaceRecord(hosts=[])


def _merged(known: Sequence[_T], found: Mapping[int, _T], nothing: _T) -> list[_T]:
    length = max(len(known), max(found, default=-1) + 1)
    return [found.get(n, known[n] if n < len(known) else nothing) for n in range(length)]
