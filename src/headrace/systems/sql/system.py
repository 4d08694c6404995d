"""SQL tables as a row system that is only written: a transaction for each version, with the writer's position in it."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, InfrastructureError, UsageError
from headrace.core.url import SecretUrl
from headrace.serdes.ipc import concat_rows
from headrace.systems.base import Consumer, Lookup, RowSystem, StreamInfo, Target
from headrace.systems.sql.client import SqlClient
from headrace.systems.sql.sqlite_client import SqliteClient
from headrace.systems.sql.values import plain, restored
from headrace.systems.write_only import WriteOnlyAdmin

_SQLITE = "sqlite:///"
PARAMETERS_MAX = 30_000
"""In one statement: SQLite takes 32,766, PostgreSQL twice as many."""
SCHEMES = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True)
class SqlSystem(RowSystem):
    """See ``RowSystem``. One table, whatever stream it is called by.

    With ``key`` a row takes the place of the one with the same key; without, rows are added. ``create`` says whether a
    table that isn't there is made.
    """

    url: SecretUrl
    table: str
    key: tuple[str, ...] = ()
    create: bool = True

    def __post_init__(self) -> None:
        if self.url.scheme not in SCHEMES:
            raise DeclarationError(
                f"sql: {self.url} is of no known database",
                hint="write sqlite:///path/to/file.db or postgresql://user@host/database",
            )

    @override
    def admin(self) -> SqlAdmin:
        return SqlAdmin(self)

    @override
    def consumer(self, columns: Collection[str] | None = None) -> Consumer:
        """Refused: a table has no order to read on from."""
        raise _refused(f"the table {self.table} of {self.url} can't be read as a stream")

    @override
    def target(self, stream: str) -> SqlTarget:
        del stream
        return SqlTarget(self.client(), self.key)

    def lookup(self, columns: Mapping[str, pl.DataType]) -> SqlLookup:
        """See ``KeyedSystem``."""
        return SqlLookup(self.client(), self.key, columns)

    def client(self) -> SqlClient:
        """A new client of the database that the URL names."""
        if self.url.scheme == "sqlite":
            return SqliteClient(sqlite_path(self.url), self.table, self.key)
        try:
            from headrace.systems.sql.postgres_client import PostgresClient
        except ImportError as error:
            raise InfrastructureError(
                f"PostgreSQL needs psycopg, which can't be imported here: {error}",
                hint='install it wherever containers run: pip install "headrace[postgres]"',
            ) from error
        return PostgresClient(self.url, self.table, self.key)


class SqlTarget(Target):
    """See ``Target``."""

    def __init__(self, client: SqlClient, key: tuple[str, ...]) -> None:
        self._client = client
        self._key = key

    @override
    def position(self, writer: str) -> int:
        return self._client.position(writer)

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        """See ``Target``. Of several rows of one key the last one counts."""
        table = concat_rows(list(rows))
        if self._key:
            table = table.unique(subset=list(self._key), keep="last", maintain_order=True)
        self._client.publish(writer, version, table)

    @override
    def close(self) -> None:
        self._client.close()


class SqlLookup(Lookup):
    """See ``Lookup``."""

    def __init__(self, client: SqlClient, key: tuple[str, ...], columns: Mapping[str, pl.DataType]) -> None:
        self._client = client
        self._key = key
        self._columns = columns

    @override
    def read(self, keys: pl.DataFrame) -> pl.DataFrame:
        wanted = plain(keys.select(self._key))
        found: list[tuple[Any, ...]] = []
        for part in wanted.iter_slices(PARAMETERS_MAX // len(self._key)):
            found += self._client.find(part.rows(), list(self._columns))
        return restored(found, self._columns)

    @override
    def close(self) -> None:
        self._client.close()


class SqlAdmin(WriteOnlyAdmin):
    """See ``Admin``: what makes sense of it for a table."""

    def __init__(self, system: SqlSystem) -> None:
        self._system = system
        self._what = f"the table {system.table} of {system.url}"

    @override
    def list(self) -> builtins.list[str]:
        """The table, if it is there."""
        return [self._system.table] if self._columns() is not None else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """See ``Admin``; a table is one partition, and its columns are the database's matter."""
        return None if self._columns() is None else StreamInfo(stream, 1)

    @override
    def create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> StreamInfo:
        """Create the table if it isn't there, or see whether it has the columns."""
        if columns is not None:
            self._require(self._system.key, list(columns), "the output")
        client = self._system.client()
        try:
            found = client.columns()
            if found is None:
                if not self._system.create or columns is None:
                    raise DeclarationError(
                        f"{self._what} doesn't exist", hint="create it, or leave out create_table=False"
                    )
                client.create(columns)
                found = client.columns() or []
            self._require([*(columns or ()), *self._system.key], found, self._what)
        finally:
            client.close()
        return StreamInfo(stream, partitions, columns)

    def _require(self, wanted: Sequence[str], found: Sequence[str], what: str) -> None:
        for name in wanted:
            if name not in found:
                raise DeclarationError(
                    f"{what} has no column {name!r}; it has {', '.join(found)}",
                    hint=f"the output, its key and {self._what} have to name the same columns",
                )

    def _columns(self) -> builtins.list[str] | None:
        client = self._system.client()
        try:
            return client.columns()
        finally:
            client.close()

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"{self._what} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="a SQL table is an output only; export it to files to read it")


def sqlite_path(url: SecretUrl) -> Path:
    """The file of ``sqlite:///relative.db`` or ``sqlite:////absolute.db``; raises ``DeclarationError`` for others."""
    path = unquote(url.text[len(_SQLITE) :].partition("?")[0]) if url.text.startswith(_SQLITE) else ""
    if not path or path.startswith(":memory:"):
        raise DeclarationError(
            f"sql: {url} names no file",
            hint="three slashes and a path: sqlite:///data/results.db, or four from the root",
        )
    return Path(path)


def open_sql(name: str, options: Mapping[str, Any]) -> SqlSystem:
    """The table of a ``SystemSpec``: ``url`` and ``table``, and ``key`` and ``create`` if given."""
    unknown = set(options) - {"url", "table", "key", "create"}
    if unknown or not {"url", "table"} <= set(options):
        wrong = f"unknown options {sorted(unknown)}" if unknown else "options 'url' and 'table' are needed"
        raise DeclarationError(f"system {name!r} (sql): {wrong}", hint="sql takes url, table, key and create")
    url = options["url"]
    if not isinstance(url, SecretUrl):
        url = SecretUrl(url)
    return SqlSystem(url, options["table"], tuple(options.get("key", ())), options.get("create", True))
