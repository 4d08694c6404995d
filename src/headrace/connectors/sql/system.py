"""SQL tables as a row system: written with one transaction a version, and looked up by key; never read as a stream.

Each transaction also stores the writer's position.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
from typing_extensions import override

from headrace.connectors.sql.client import SqlClient, from_database_values, to_database_values
from headrace.connectors.sql.sqlite_client import SqliteClient
from headrace.core.errors import DeclarationError, UsageError, needing
from headrace.core.secrets import SecretUrl
from headrace.rows.given import concat_rows
from headrace.systems.base import Consumer, Creation, Lookup, RowSystem, StreamInfo, Target, WriteOnlyAdmin
from headrace.systems.registry import check_option_names

PARAMETERS_MAX = 30_000  # the number of parameters in one statement: SQLite takes 32,766, PostgreSQL twice as many


@dataclass(frozen=True)
class SqlSystem(RowSystem):
    """One table of a database, whatever the name of the stream. With ``key``, a row replaces the one with its key."""

    url: SecretUrl
    table: str
    key: tuple[str, ...] = ()
    create: bool = True
    new_columns: str = "refuse"

    def __post_init__(self) -> None:
        if self.url.scheme not in ("sqlite", "postgresql", "postgres"):
            hint = "write sqlite:///path/to/file.db or postgresql://user@host/database"
            raise DeclarationError(f"sql: {self.url} doesn't name a known kind of database", hint=hint)

    @override
    def admin(self) -> _SqlAdmin:
        return _SqlAdmin(self)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        raise _refused(f"the table {self.table} of {self.url} can't be read as a stream")

    @override
    def target(self, stream: str) -> _SqlTarget:
        return _SqlTarget(self.client(), self.key)

    def lookup(self, columns: Mapping[str, pl.DataType]) -> _SqlLookup:
        return _SqlLookup(self.client(), self.key, columns)

    def client(self) -> SqlClient:
        if self.url.scheme == "sqlite":
            return SqliteClient(_sqlite_path(self.url), self.table, self.key)
        with needing("psycopg", "PostgreSQL", "postgres", "wherever containers run"):
            from headrace.connectors.sql.postgres_client import PostgresClient
        return PostgresClient(self.url, self.table, self.key)


class _SqlTarget(Target):
    def __init__(self, client: SqlClient, key: tuple[str, ...]) -> None:
        self._client = client
        self._key = key
        self.replaces = bool(key)

    @override
    def position(self, writer: str) -> int:
        return self._client.position(writer)

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        table = concat_rows(list(rows))
        if self._key:
            table = table.unique(subset=list(self._key), keep="last", maintain_order=True)
        self._client.publish(writer, version, table)

    @override
    def close(self) -> None:
        self._client.close()


class _SqlLookup(Lookup):
    def __init__(self, client: SqlClient, key: tuple[str, ...], columns: Mapping[str, pl.DataType]) -> None:
        self._client = client
        self._key = key
        self._columns = columns

    @override
    def read(self, keys: pl.DataFrame) -> pl.DataFrame:
        wanted = to_database_values(keys.select(self._key))
        found: list[tuple[Any, ...]] = []
        for part in wanted.iter_slices(PARAMETERS_MAX // len(self._key)):
            found += self._client.find(part.rows(), list(self._columns))
        return from_database_values(found, self._columns)

    @override
    def close(self) -> None:
        self._client.close()


class _SqlAdmin(WriteOnlyAdmin):
    def __init__(self, system: SqlSystem) -> None:
        self._system = system
        self._what = f"the table {system.table} of {system.url}"

    @override
    def list(self) -> builtins.list[str]:
        return [self._system.table] if self._columns() is not None else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        return None if self._columns() is None else StreamInfo(stream, 1)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        self._check_key(columns)
        with closing(self._system.client()) as client:
            client.prepare()
            due = self._due(client.columns(), partitions, columns)
            if due.new:
                client.create(columns or {})
            if due.added:
                client.add_columns({name: (columns or {})[name] for name in due.added})
            if due.new or due.added:
                self._due(client.columns(), partitions, columns)  # another program may have been quicker
        return StreamInfo(stream, partitions, columns)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        self._check_key(columns)
        return self._due(self._columns(), partitions, columns)

    def _check_key(self, columns: Mapping[str, pl.DataType] | None) -> None:
        if columns is not None:
            self._require(self._system.key, list(columns), "the output")

    def _due(self, found: Sequence[str] | None, partitions: int, columns: Mapping[str, pl.DataType] | None) -> Creation:
        """Return what a table with these columns (None: no table) lacks. Raises ``DeclarationError`` if it can't be."""
        if found is None:
            if not self._system.create or columns is None:
                raise DeclarationError(f"{self._what} doesn't exist", hint="create it, or leave out create_table=False")
            return Creation(partitions, new=True)
        self._require(self._system.key, found, self._what)
        lower = {name.lower(): name for name in found}
        added = tuple(name for name in columns or () if name not in found)
        for name in added:
            if name.lower() in lower:
                hint = "write the column's name as the table does, in upper and lower case"
                raise DeclarationError(f"{self._what} has no column {name!r}, but {lower[name.lower()]!r}", hint=hint)
        if added and self._system.new_columns != "add":
            hint = 'add the column, or have it added, with null in earlier rows: hr.io.sql(..., new_columns="add")'
            raise DeclarationError(f"{self._what} has no column {added[0]!r}; it has {', '.join(found)}", hint=hint)
        return Creation(partitions, added=added)

    def _require(self, wanted: Sequence[str], found: Sequence[str], what: str) -> None:
        for name in wanted:
            if name not in found:
                hint = f"the output, its key and {self._what} must have the same columns"
                raise DeclarationError(f"{what} has no column {name!r}; it has {', '.join(found)}", hint=hint)

    def _columns(self) -> builtins.list[str] | None:
        with closing(self._system.client()) as client:
            return client.columns()

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"{self._what} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="a SQL table is an output only; export it to files to read it")


def _sqlite_path(url: SecretUrl) -> Path:
    _, root, rest = url.text.partition("sqlite:///")
    path = unquote(rest.partition("?")[0]) if root and url.text.startswith(root) else ""
    if not path or path.startswith(":memory:"):
        hint = "write sqlite:///data/results.db, or sqlite:////data/results.db for an absolute path"
        raise DeclarationError(f"sql: {url} doesn't name a file", hint=hint)
    return Path(path)


def open_sql(name: str, options: Mapping[str, Any]) -> SqlSystem:
    check_option_names(name, "sql", options, (one.name for one in fields(SqlSystem)), "url", "table")
    given = dict(options)
    given["url"] = url if isinstance(url := options["url"], SecretUrl) else SecretUrl(url)
    given["key"] = tuple(options.get("key", ()))
    return SqlSystem(**given)
