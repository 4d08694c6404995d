"""PostgreSQL, through psycopg. Only this module imports it, and it is imported when a table there is first used.

Rows are written by ``COPY``. Every wait is limited to seconds: for a connection, for a lock, and for the answer of a
machine that has died. A statement may run for up to a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
import psycopg
from psycopg.conninfo import conninfo_to_dict
from typing_extensions import override

from headrace.connectors.sql.client import SqlClient, Statements, postgres_type, quoted, to_database_values
from headrace.core.errors import DataError, DeclarationError, HeadraceError, UnavailableError
from headrace.core.secrets import SecretUrl

_LOCK_WAIT, _STATEMENT_WAIT = "3s", "60s"
_NULL = r"\N"
_BATCH = "headrace_batch"
_BYTES_AT_ONCE = 1 << 20
RETRIED = ("08", "25", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE after which a retry may succeed: connection, read-only, deadlock, resources, locks, shutdown."""


def connect(url: SecretUrl, **usual: Any) -> psycopg.Connection:
    """A connection that commits each statement. ``usual`` are options that the URL may override."""
    usual |= {"connect_timeout": 3, "tcp_user_timeout": 10_000, "application_name": "headrace"}
    return psycopg.connect("", autocommit=True, **usual | conninfo_to_dict(url.text))


class PostgresClient(SqlClient):
    """A client of one PostgreSQL table, with separate connections for transactions and for lookups."""

    def __init__(self, url: SecretUrl, table: str, key: tuple[str, ...]) -> None:
        self._url = url
        self._sql = Statements(table, key, "%s")
        self._open: psycopg.Connection | None = None
        self._reading: psycopg.Connection | None = None

    @override
    def columns(self) -> list[str] | None:
        with self._reader() as cursor:
            if not self._exists(cursor, self._sql.name):
                return None
            cursor.execute(f"SELECT * FROM {self._sql.name} LIMIT 0".encode())  # noqa: S608 - quoted
            return [column.name for column in cursor.description or ()]

    @override
    def create(self, columns: Mapping[str, pl.DataType]) -> None:
        self._create(self._sql.create({name: postgres_type(name, dtype) for name, dtype in columns.items()}))

    @override
    def add_columns(self, columns: Mapping[str, pl.DataType]) -> None:
        for name, dtype in columns.items():
            self._create(self._sql.add_column(name, postgres_type(name, dtype)))

    @override
    def prepare(self) -> None:
        with self._transaction():
            pass  # connecting creates the table

    @override
    def position(self, writer: str) -> int:
        with self._transaction() as cursor:
            row = cursor.execute(self._sql.position().encode(), [writer]).fetchone()
        return -1 if row is None else int(row[0])

    @override
    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        columns = rows.columns
        with self._transaction() as cursor:
            if cursor.execute(self._sql.claim().encode(), [writer, version]).rowcount == 0:
                return
            into = self._sql.name
            if self._sql.key:
                into = f'pg_temp."{_BATCH}"'
                select = self._sql.select(columns, self._sql.name)
                cursor.execute(f'CREATE TEMP TABLE "{_BATCH}" ON COMMIT DROP AS {select} WITH NO DATA'.encode())
            names = ", ".join(map(quoted, columns))
            with cursor.copy(f"COPY {into} ({names}) FROM STDIN WITH (FORMAT csv, NULL '{_NULL}')".encode()) as copy:
                text = memoryview(_as_csv(rows))
                for start in range(0, len(text), _BYTES_AT_ONCE):
                    copy.write(text[start : start + _BYTES_AT_ONCE])
            if self._sql.key:
                cursor.execute(self._sql.insert(columns, self._sql.select(columns, into)).encode())

    @override
    def find(self, keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        width = len(self._sql.key)
        mark = "%s" if width == 1 else f"({', '.join(['%s'] * width)})"
        text = self._sql.find(columns, ", ".join([mark] * len(keys)))
        with self._reader() as cursor:
            return cursor.execute(text.encode(), [value for key in keys for value in key]).fetchall()

    @override
    def close(self) -> None:
        for connection in (self._reading, self._open):
            if connection is not None:
                connection.close()
        self._reading = self._open = None

    @contextmanager
    def _reader(self) -> Iterator[psycopg.Cursor]:
        try:
            connection = self._reading = self._reading or connect(self._url)
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [_STATEMENT_WAIT])
                yield cursor
        except psycopg.Error as error:
            self.close()
            raise self._translated(error) from None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor]:
        try:
            connection = self._connected()
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_WAIT])
                cursor.execute("SELECT set_config('statement_timeout', %s, true)", [_STATEMENT_WAIT])
                yield cursor
        except psycopg.Error as error:
            self.close()
            # The cause is left out, because its message may contain the password.
            raise self._translated(error) from None
        except BaseException:
            self.close()
            raise

    def _connected(self) -> psycopg.Connection:
        if self._open is None or self._open.closed:
            self._open = connect(self._url)
            with self._open.cursor() as cursor:
                if not self._exists(cursor, self._sql.positions):
                    self._create(self._sql.create_positions())
        return self._open

    def _exists(self, cursor: psycopg.Cursor, name: str) -> bool:
        """Say whether a table exists. CREATE ... IF NOT EXISTS would need a right that a writer may not have."""
        row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return bool(row and row[0])

    def _create(self, statement: str) -> None:
        try:
            (self._open or self._connected()).execute(statement.encode())
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateColumn):
            return  # another client created it at the same time
        except psycopg.Error as error:
            self.close()
            raise self._translated(error) from None

    def _translated(self, error: psycopg.Error) -> HeadraceError:
        where = f"{self._url}, table {self._sql.table}: {self._url.clean(' '.join(str(error).split()))}"
        state = error.sqlstate or ""
        if state.startswith(("22", "23")):
            return DataError(where, hint="these rows don't fit the table's types or constraints: filter or fix them")
        unreadable_url = not state and isinstance(error, psycopg.ProgrammingError)
        if unreadable_url or (state and not state.startswith(RETRIED)):
            hint = "check that the output's columns match the table and its key, and that this user may write to it"
            return DeclarationError(where, hint=hint)
        return UnavailableError(where, hint="check that the server is up, and host, user and password in the URL")


def _as_csv(rows: pl.DataFrame) -> bytes:
    """Return the rows as CSV. Text is quoted and null is not, so no text is read as null."""
    changes = [_as_literal(pl.col(name), dtype).alias(name) for name, dtype in rows.schema.items()]
    table = to_database_values(rows).with_columns(changes)
    return table.write_csv(include_header=False, null_value=_NULL, quote_style="non_numeric").encode()


def _as_literal(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.Binary():
            return pl.lit(r"\x") + column.bin.encode("hex")
        case pl.Duration():
            return column.cast(pl.String) + pl.lit(" microseconds")
        case _:
            return column
