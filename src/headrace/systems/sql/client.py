"""What a database has to be able to do, and the statements that SQLite and PostgreSQL understand alike.

A client is the only place that knows its vendor's driver. It raises our errors alone: those whose ``retry`` is true
when the database is away, busy or full, others when the same call can't ever succeed. After any error it has let
its connection go, so that the next call begins with a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

POSITIONS = "headrace_positions"
"""The table that keeps how far each writer is; in the schema of the target table."""


class SqlClient(Protocol):
    """One table of one database. Connects when it is first used; one thread uses it."""

    def columns(self) -> list[str] | None:
        """The names of the table's columns; None when there is no such table."""
        ...

    def create(self, columns: Mapping[str, pl.DataType]) -> None:
        """Create the table, unless somebody else has done so meanwhile."""
        ...

    def position(self, writer: str) -> int:
        """See ``Target``."""
        ...

    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        """See ``Target``. With a key, ``rows`` have each key once."""
        ...

    def find(self, keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """These columns of the rows with these keys, which are plain values. Changes nothing, and takes no lock."""
        ...

    def close(self) -> None:
        """Let the connection go; maybe from another thread than the one that uses it."""
        ...


def quoted(name: str) -> str:
    """An identifier as SQL reads it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL for one table. ``mark`` stands for a parameter."""

    table: str
    key: tuple[str, ...]
    mark: str

    @property
    def name(self) -> str:
        """The table, quoted; a dot in what the user wrote is between schema and table."""
        return ".".join(quoted(part) for part in self.table.split("."))

    @property
    def positions(self) -> str:
        """The table of positions, quoted, beside the other one."""
        return ".".join(quoted(part) for part in [*self.table.split(".")[:-1], POSITIONS])

    def create(self, types: Mapping[str, str]) -> str:
        """Create the table."""
        columns = [f"{quoted(name)} {type_}" for name, type_ in types.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({_names(self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)})"

    def create_positions(self) -> str:
        """Create the table of positions."""
        return f"CREATE TABLE IF NOT EXISTS {self.positions} (writer TEXT PRIMARY KEY, version BIGINT NOT NULL)"

    def position(self) -> str:
        """Read a writer's position."""
        return f"SELECT version FROM {self.positions} WHERE writer = {self.mark}"  # noqa: S608 - quoted above

    def claim(self) -> str:
        """Set a writer's position if it rises. It changes one row, or none: then the version is there already.

        Two that claim at the same time wait for each other here, before either has written anything.
        """
        return (
            f"INSERT INTO {self.positions} AS p (writer, version) VALUES ({self.mark}, {self.mark}) "  # noqa: S608
            "ON CONFLICT (writer) DO UPDATE SET version = excluded.version WHERE p.version < excluded.version"
        )

    def insert(self, columns: Sequence[str], source: str) -> str:
        """Insert what ``source`` gives; with a key a new row takes the place of an old one."""
        text = f"INSERT INTO {self.name} ({_names(columns)}) {source}"
        if not self.key:
            return text
        others = [quoted(name) for name in columns if name not in self.key]
        action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        return f"{text} ON CONFLICT ({_names(self.key)}) DO {action}"

    def values(self, columns: Sequence[str]) -> str:
        """``VALUES`` with a parameter for each column."""
        return f"VALUES ({', '.join([self.mark] * len(columns))})"

    def find(self, columns: Sequence[str], keys: str) -> str:
        """``SELECT`` these columns of the rows whose keys are in a list.

        Names are qualified, or SQLite would take one that isn't there for text.
        """
        wanted, key = (", ".join(f"t.{quoted(name)}" for name in names) for names in (columns, self.key))
        key = f"({key})" if len(self.key) > 1 else key
        return f"SELECT {wanted} FROM {self.name} AS t WHERE {key} IN ({keys})"  # noqa: S608 - quoted

    def select(self, columns: Sequence[str], table: str) -> str:
        """``SELECT`` these columns of a table."""
        return f"SELECT {_names(columns)} FROM {table}"  # noqa: S608 - quoted


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in columns)
