"""The metadata store in a PostgreSQL database, through psycopg: for drivers and commands on several machines.

All writes change the row of ``headrace_metadata`` first, so they happen one after another, and versions rise in the
order of the commits. A commit whose answer was lost is looked up: each write leaves a random token, and the holder of
the row's lock knows that the write is over. Every wait is limited: for a connection, a lock, a statement and an answer.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from typing_extensions import override

from headrace.connectors.sql.postgres_client import RETRIED, connect
from headrace.core.errors import (
    DataError,
    HeadraceError,
    IndeterminateWriteError,
    InfrastructureError,
    StorageError,
    UnavailableError,
    UsageError,
)
from headrace.core.log import logger
from headrace.core.secrets import SecretUrl
from headrace.life.metadata import Change, Delete, Entry, MetadataStore, Put, Version, check_changes

FORMAT = 1  # version of the tables, kept in ``headrace_metadata``
_TABLES = (
    # The one row that every write changes. A version is used once, also by a key that was deleted and made again.
    "CREATE TABLE headrace_metadata"
    " (one boolean PRIMARY KEY DEFAULT true CHECK (one), format integer NOT NULL, last_version bigint NOT NULL)",
    'CREATE TABLE headrace_metadata_entries (namespace text COLLATE "C", key text COLLATE "C", value bytea NOT NULL,'
    " version bigint NOT NULL, PRIMARY KEY (namespace, key))",
    "CREATE TABLE headrace_metadata_writes (version bigint PRIMARY KEY, token text NOT NULL)",
    "INSERT INTO headrace_metadata (format, last_version) VALUES (1, 0)",
)
_LOCK_WAIT, _STATEMENT_WAIT = "3s", "5s"
_IDLE_WAIT = "5s"  # then the server ends the transaction of a client that has died with the lock
_CALL_S = 15.0  # how long to wait for a server that doesn't answer. It is longer than the server's own limits.
_RESOLVE_S = 20.0
_RESOLVE_PAUSE_S = 0.5
_WRITES_KEPT = 10_000  # tokens of that many versions are kept, for looking up a write. A look-up comes within seconds.
_SLOW_S = 0.5  # a write that takes longer is worth a log line
_log = logger(__name__)
_T = TypeVar("_T")


class _Lost(Exception):
    """The answer to a commit was lost."""


class PostgresMetadata(MetadataStore):
    """A handle on the database. Threads may share it; a forked process has to open its own."""

    def __init__(self, url: SecretUrl, *, create: bool = True) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pid = os.getpid()
        self._connection: psycopg.Connection | None = None
        self._socket: socket.socket | None = None
        try:
            self._exists = self._call("open", self._check_format)
            if not self._exists and create:
                self._call("create the tables of", _create)
                self._exists = self._call("open", self._check_format)
        except BaseException:
            self.close()
            raise

    @property
    @override
    def place(self) -> str:
        return str(self._url)

    @override
    def get(self, namespace: str, key: str) -> Entry | None:
        query = "SELECT value, version FROM headrace_metadata_entries WHERE namespace = %s AND key = %s"
        rows = self._read(query, namespace, key)
        return Entry(bytes(rows[0][0]), rows[0][1]) if rows else None

    @override
    def write(self, namespace: str, changes: Sequence[Change]) -> list[Version] | None:
        check_changes(changes)
        if not changes:
            return []
        if not self._exists:
            raise UsageError(f"the metadata store {self._url} was opened for reading only, but has no tables yet")
        write = _Write(namespace, changes)
        began = time.monotonic()
        with self._lock:
            try:
                versions = self._called("write", write.attempt)
            except _Lost as lost:
                if not self._has_happened(write, str(lost)):
                    hint = "nothing was changed; try again"
                    raise UnavailableError(f"can't write the metadata store {self._url}: {lost}", hint=hint) from None
                versions = write.versions
        if (took := time.monotonic() - began) > _SLOW_S:
            _log.warning("a write to the metadata store took a long time", store=str(self._url), seconds=round(took, 1))
        return versions

    @override
    def scan(self, namespace: str, prefix: str = "") -> dict[str, Entry]:
        query = (
            "SELECT key, value, version FROM headrace_metadata_entries"
            " WHERE namespace = %s AND starts_with(key, %s) ORDER BY key"
        )
        return {key: Entry(bytes(value), version) for key, value, version in self._read(query, namespace, prefix)}

    @override
    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._disconnect()

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if not self._exists:
            return []
        return self._call("read", lambda connection: connection.execute(query.encode(), values).fetchall())

    def _call(self, action: str, work: Callable[[psycopg.Connection], _T]) -> _T:
        with self._lock:
            return self._called(action, work)

    def _called(self, action: str, work: Callable[[psycopg.Connection], _T]) -> _T:
        """Do the work, and again if the connection had died before it: a lost answer to a commit is ``_Lost``."""
        used_before = self._connection is not None
        try:
            return self._attempted(work)
        except psycopg.Error as error:
            if not used_before or self._connection is not None:
                raise self._explained(action, error) from None
            _log.info("connecting to the metadata store again", store=str(self._url), error=self._text(error))
        try:
            return self._attempted(work)
        except psycopg.Error as error:
            # The cause is left out, because its message may contain the password.
            raise self._explained(action, error) from None

    def _attempted(self, work: Callable[[psycopg.Connection], _T]) -> _T:
        connection = self._connected()
        cut = threading.Timer(_CALL_S, self._cut)
        cut.daemon = True
        cut.start()
        try:
            return work(connection)
        except psycopg.Error:
            if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self._disconnect()
            raise
        except BaseException:
            self._disconnect()
            raise
        finally:
            cut.cancel()

    def _cut(self) -> None:
        """End the wait for a server that doesn't answer. libpq has no limit of its own for that."""
        if (used := self._socket) is not None:
            _log.warning("the metadata store doesn't answer", store=str(self._url), seconds=_CALL_S)
            with suppress(OSError):  # the answer has just come, and the connection was closed
                used.shutdown(socket.SHUT_RDWR)

    def _has_happened(self, write: _Write, lost: str) -> bool:
        _log.warning("checking whether a write reached the metadata store", store=str(self._url), error=lost)
        end = time.monotonic() + _RESOLVE_S
        while True:
            try:
                found = self._called("look up a write in", write.look_up)
            except HeadraceError as error:
                if time.monotonic() > end or self._closed.wait(_RESOLVE_PAUSE_S):
                    raise self._unknown(f"{lost}; then: {error.message}") from None
            else:
                if found is None:
                    raise self._unknown(f"{lost}, and too many writes have followed")
                return found

    def _unknown(self, why: str) -> IndeterminateWriteError:
        said = f"can't write the metadata store {self._url}: {why}; the change may or may not have happened"
        return IndeterminateWriteError(said, hint="check that the server is up, then start the app or command again")

    def _connected(self) -> psycopg.Connection:
        if self._closed.is_set():
            raise UnavailableError(f"the metadata store {self._url} was closed")
        if os.getpid() != self._pid:
            raise UnavailableError(
                f"the metadata store {self._url} was opened by process {self._pid}, but this is process {os.getpid()}",
                hint="open it again in each process",
            )
        if self._connection is None:
            # A standby would show an older state.
            usual = {"client_encoding": "UTF8", "target_session_attrs": "read-write", "prepare_threshold": None}
            self._connection = connect(self._url, **usual)
            self._socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        used, self._socket = self._socket, None
        if used is not None:
            used.close()
        if connection is not None:
            connection.close()

    def _check_format(self, connection: psycopg.Connection) -> bool:
        if connection.execute("SELECT to_regclass('headrace_metadata')").fetchall() == [(None,)]:
            return False
        ((found,),) = connection.execute("SELECT format FROM headrace_metadata").fetchall()
        if found != FORMAT:
            said = f"the metadata store {self._url} is of format {found}; this version of Headrace reads {FORMAT}"
            raise InfrastructureError(said, hint="use the version of Headrace that wrote it, or a newer one")
        return True

    def _text(self, error: psycopg.Error) -> str:
        return self._url.clean(" ".join(str(error).split()))

    def _explained(self, action: str, error: psycopg.Error) -> HeadraceError:
        where = f"can't {action} the metadata store {self._url}: {self._text(error)}"
        state = error.sqlstate or ""
        if not state and isinstance(error, psycopg.ProgrammingError):
            return UsageError(where, hint="write the URL as postgresql://user:password@host/database")
        if state == "42501":
            hint = "the database's user must be allowed to create tables, or to use those named headrace_metadata"
            return InfrastructureError(where, hint=hint)
        if state == "53100":
            return StorageError(where, hint="free up space on the disk of the database")
        if state.startswith("22"):
            return DataError(where, hint="keys must be text in the database's encoding: create the database with UTF8")
        if state and not state.startswith(RETRIED):
            hint = "check whether another program has changed the tables headrace_metadata*"
            return InfrastructureError(where, hint=hint)
        return UnavailableError(where, hint="check that the server is up, and host, user and password in the URL")


@contextmanager
def _transaction(connection: psycopg.Connection) -> Iterator[None]:
    """Commit at the end, unless the block has rolled back. Raises ``_Lost`` if the outcome is unknown."""
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    connection.execute(
        "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true),"
        " set_config('idle_in_transaction_session_timeout', %s, true),"
        " CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END",
        [_LOCK_WAIT, _STATEMENT_WAIT, _IDLE_WAIT],
    )
    try:
        yield
    except psycopg.Error:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        return
    try:
        connection.execute("COMMIT")
    except psycopg.Error as error:
        if connection.closed:
            raise _Lost("the connection was lost during the commit") from error
        raise


def _create(connection: psycopg.Connection) -> None:
    try:
        with _transaction(connection):
            for statement in _TABLES:
                connection.execute(statement.encode())
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject):
        return  # another handle has created them at the same time


class _Write:
    def __init__(self, namespace: str, changes: Sequence[Change]) -> None:
        self.versions: list[Version] = []
        self._namespace = namespace
        self._changes = changes
        self._token = secrets.token_hex(16)
        self._last = 0

    def attempt(self, connection: psycopg.Connection) -> list[Version] | None:
        """Make the changes in a transaction. None: a key hasn't the expected version."""
        with _transaction(connection):
            # A version for each put, at least one. Other writes wait until this one is over.
            count = max(1, sum(isinstance(change, Put) for change in self._changes))
            query = "UPDATE headrace_metadata SET last_version = last_version + %s RETURNING last_version"
            ((self._last,),) = connection.execute(query, [count]).fetchall()
            query = "SELECT key, version FROM headrace_metadata_entries WHERE namespace = %s AND key = ANY(%s)"
            keys = [change.key for change in self._changes]
            found: dict[str, Version] = dict(connection.execute(query, [self._namespace, keys]).fetchall())
            if any(found.get(change.key) != change.expected for change in self._changes):
                connection.execute("ROLLBACK")
                return None
            self.versions = _make(connection, self._namespace, self._changes, self._last)
            connection.execute("INSERT INTO headrace_metadata_writes VALUES (%s, %s)", [self._last, self._token])
            forgotten = self._last - _WRITES_KEPT
            connection.execute("DELETE FROM headrace_metadata_writes WHERE version <= %s", [forgotten])
        return self.versions

    def look_up(self, connection: psycopg.Connection) -> bool | None:
        with _transaction(connection):
            # An attempt that isn't over holds this lock.
            ((last,),) = connection.execute("SELECT last_version FROM headrace_metadata FOR UPDATE").fetchall()
            query = "SELECT 1 FROM headrace_metadata_writes WHERE token = %s"
            found = bool(connection.execute(query, [self._token]).fetchall())
            connection.execute("ROLLBACK")
        return None if not found and last - _WRITES_KEPT >= self._last else found


def _make(connection: psycopg.Connection, namespace: str, changes: Sequence[Change], last: Version) -> list[Version]:
    puts = [change for change in changes if isinstance(change, Put)]
    gone = [change.key for change in changes if isinstance(change, Delete)]
    versions = range(last - len(puts) + 1, last + 1)
    if puts:
        connection.execute(
            "INSERT INTO headrace_metadata_entries (namespace, key, value, version)"
            " SELECT %s, * FROM unnest(%s::text[], %s::bytea[], %s::bigint[])"
            " ON CONFLICT (namespace, key) DO UPDATE SET value = EXCLUDED.value, version = EXCLUDED.version",
            [namespace, [put.key for put in puts], [bytes(put.value) for put in puts], list(versions)],
        )
    if gone:
        query = "DELETE FROM headrace_metadata_entries WHERE namespace = %s AND key = ANY(%s)"
        connection.execute(query, [namespace, gone])
    numbered = iter(versions)
    return [0 if isinstance(change, Delete) else next(numbered) for change in changes]
