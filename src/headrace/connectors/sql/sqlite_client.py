"""SQLite, through Python's own driver. Only this module of the system imports ``sqlite3``.

A transaction starts by taking the write lock, so two that publish the same version run one after the other. The wait
for a lock that another process holds is short; when it is over, an error says to retry later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.connectors.sql.client import SqlClient, Statements, sqlite_type, to_database_values
from headrace.core.errors import DataError, DeclarationError, HeadraceError, UnavailableError

_LOCK_WAIT_S = 2.0
_ROWS_AT_ONCE = 1 << 14


class SqliteClient(SqlClient):
    """A client of one SQLite table, with separate connections for transactions and for lookups."""

    def __init__(self, path: Path, table: str, key: tuple[str, ...]) -> None:
        schema, _, self._table = table.rpartition(".")
        if schema.lower() not in ("", "main"):
            hint = f'write "{self._table}", without a schema; or use the schema "main"'
            raise DeclarationError(f"SQLite {path}, table {table}: an SQLite file has no schema {schema!r}", hint=hint)
        self._path = path
        self._sql = Statements(table, key, "?")
        self._open: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None

    @override
    def columns(self) -> list[str] | None:
        try:
            self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._translated(error) from error
        with self._reader() as connection:
            return self._columns(connection) or None

    @override
    def create(self, columns: Mapping[str, pl.DataType]) -> None:
        types = {name: sqlite_type(name, dtype) for name, dtype in columns.items()}
        with self._transaction() as connection:
            connection.execute(self._sql.create(types))

    @override
    def add_columns(self, columns: Mapping[str, pl.DataType]) -> None:
        types = {name: sqlite_type(name, dtype) for name, dtype in columns.items()}
        with self._transaction() as connection:
            there = self._columns(connection)
            for name, type_ in types.items():
                if name not in there:
                    connection.execute(self._sql.add_column(name, type_))

    @override
    def prepare(self) -> None:
        with self._transaction():
            pass  # connecting creates the table

    @override
    def position(self, writer: str) -> int:
        with self._transaction() as connection:
            row = connection.execute(self._sql.position(), [writer]).fetchone()
        return -1 if row is None else int(row[0])

    @override
    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        with self._transaction() as connection:
            if connection.execute(self._sql.claim(), [writer, version]).rowcount == 0:
                return
            insert = self._sql.insert(rows.columns, f"VALUES ({', '.join('?' * rows.width)})")
            for part in to_database_values(rows).iter_slices(_ROWS_AT_ONCE):
                connection.executemany(insert, part.rows())

    @override
    def find(self, keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        width = len(self._sql.key)
        mark = "?" if width == 1 else f"({', '.join(['?'] * width)})"
        marks = f"{'' if width == 1 else 'VALUES '}{', '.join([mark] * len(keys))}"
        with self._reader() as connection:
            found = connection.execute(self._sql.find(columns, marks), [value for key in keys for value in key])
            return found.fetchall()

    @override
    def close(self) -> None:
        for connection in (self._open, self._reading):
            if connection is not None:
                connection.close()
        self._open = self._reading = None

    def _columns(self, connection: sqlite3.Connection) -> list[str]:
        found = connection.execute("SELECT name FROM pragma_table_info(?, 'main')", [self._table]).fetchall()
        return [name for (name,) in found]

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._reading is None:
                place = f"{self._path.absolute().as_uri()}?mode=ro"
                given: dict[str, Any] = {"timeout": _LOCK_WAIT_S, "isolation_level": None, "check_same_thread": False}
                self._reading = sqlite3.connect(place, uri=True, **given)
            yield self._reading
        except (sqlite3.Error, OSError, OverflowError) as error:
            self.close()
            raise self._translated(error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError, OverflowError) as error:
            self.close()  # this ends the transaction
            raise self._translated(error) from error
        except BaseException:
            self.close()
            raise

    def _connected(self) -> sqlite3.Connection:
        if self._open is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open = sqlite3.connect(self._path, timeout=_LOCK_WAIT_S, isolation_level=None)
            with closing(self._open.cursor()) as cursor:
                cursor.execute(self._sql.create_positions())
        return self._open

    def _translated(self, error: Exception) -> HeadraceError:
        where = f"SQLite {self._path}, table {self._sql.table}: {error}"
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if isinstance(error, OSError):
            return UnavailableError(where, hint="check that the disk is mounted, and that the app may write to it")
        if isinstance(error, OverflowError):
            return DataError(where, hint="SQLite's integers have 63 bits; cast the column to String")
        if code in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG):
            return DataError(where, hint="these rows don't fit the table's constraints: filter or fix them")
        if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or not code:
            return DeclarationError(where, hint="check that the output's columns and key match the table")
        return UnavailableError(where, hint="another program has locked the file, or the disk is full or unmounted")
