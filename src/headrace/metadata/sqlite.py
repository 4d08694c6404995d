"""The metadata store in an SQLite file: the default, for any number of processes on one machine.

A write transaction takes the write lock at its start, so a compare-and-set never fails halfway. The file is in
write-ahead mode, so readers don't wait for writers. Commits are synced: a generation that was issued must not be issued
again after a power cut. A call blocks for the busy timeout at most.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from typing_extensions import override

from headrace.core.errors import (
    DataError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    StorageError,
    UnavailableError,
)
from headrace.core.log import logger
from headrace.core.private_folder import make_private_folder
from headrace.metadata.store import Change, Delete, Entry, MetadataStore, Version, check_changes

FORMAT = 1
"""Version of the tables, kept in the file's ``user_version``."""

FILE = "metadata.db"
"""Its name in the home of an app."""

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

_log = logger(__name__)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


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
            raise StorageError(
                f"can't create the metadata store {path}: {error}",
                hint="check that the home is a folder and writable, and that its disk isn't full",
            ) from error
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

    # -- the file ----------------------------------------------------------------------------------

    def _check_format(self) -> None:
        with self._reading() as connection:
            owner = connection.execute("PRAGMA application_id").fetchone()[0]
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute("PRAGMA synchronous = FULL")
        if owner != _APPLICATION_ID:
            raise DataError(
                f"{self._path} is an SQLite file, but not a Headrace metadata store",
                hint="check the path of the home folder",
            )
        if found != FORMAT:
            raise InfrastructureError(
                f"the metadata store {self._path} is of format {found}; this version of Headrace reads {FORMAT}",
                hint="use the version of Headrace that wrote it, or a newer one",
            )

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
        """Raise errors of SQLite as ours, which say what went wrong, where, and whether a retry helps."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._explained(action, error) from error

    def _explained(self, action: str, error: sqlite3.Error) -> HeadraceError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended part
        what = f"can't {action} the metadata store {self._path}"
        if code in _BUSY:
            return UnavailableError(
                f"{what}: another process has held its lock for {self._busy_timeout_ms} ms",
                hint="find the process that holds the lock (a stuck command, a backup); then try again",
            )
        if code in _DAMAGED:
            return DataError(
                f"{what}: the file is damaged or isn't an SQLite file ({error})",
                hint="restore it from a backup, because a new file would issue generations a second time",
            )
        if code == sqlite3.SQLITE_CANTOPEN:
            return StorageError(f"{what}: {error}", hint="check that you own the file: others may not read it")
        if action == "commit" and code == sqlite3.SQLITE_IOERR:
            return IndeterminateWriteError(f"{what}: {error}; the change may or may not have happened")
        return StorageError(f"{what}: {error}", hint="check that the disk isn't full and the folder is writable")


def _create(path: Path) -> None:
    """Create the file if it doesn't exist: under another name, then linked into place.

    Two processes can't switch one file to write-ahead mode at the same time. So no other process sees the file before
    the switch.
    """
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
