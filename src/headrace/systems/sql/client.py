"""The contract of a database client, and the SQL statements that SQLite and PostgreSQL share.

Only a client's module knows the vendor's driver. A client raises only Headrace's errors: errors whose ``retry`` is true
if the database is unreachable, busy or full, and others if the same call can never succeed. After any error it has
closed its connection, so the next call starts with a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

POSITIONS = "headrace_positions"
"""The table with the position of each writer; in the same schema as the target table."""


class SqlClient(Protocol):
    """A client of one table of one database. It connects when it is first used; one thread uses it."""

    def columns(self) -> list[str] | None:
        """Return the names of the table's columns; None if the table doesn't exist. Changes nothing."""
        ...

    def create(self, columns: Mapping[str, pl.DataType]) -> None:
        """Create the table. Does nothing if another program has created it meanwhile."""
        ...

    def add_columns(self, columns: Mapping[str, pl.DataType]) -> None:
        """Add columns, with null in present rows. Does nothing for one that another program has added meanwhile."""
        ...

    def prepare(self) -> None:
        """Create the table of positions if it doesn't exist, and finish what a writer that died has left."""
        ...

    def position(self, writer: str) -> int:
        """Return the highest version that ``writer`` has published, as ``Target.position`` says."""
        ...

    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        """Add the rows and set the writer's position, as ``Target.publish`` says. Each key occurs once in ``rows``."""
        ...

    def find(self, keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return these columns of the rows with these keys, given as database values. Takes no lock."""
        ...

    def close(self) -> None:
        """Close the connection, possibly from another thread than the one that uses it."""
        ...


def quoted(name: str) -> str:
    """Quote an identifier for SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Statements:
    """The SQL for one table. ``mark`` is the placeholder of a parameter."""

    table: str
    key: tuple[str, ...]
    mark: str

    @property
    def name(self) -> str:
        """The table, quoted. A dot in the user's text separates schema and table."""
        return ".".join(quoted(part) for part in self.table.split("."))

    @property
    def positions(self) -> str:
        """The table of positions in the same schema, quoted."""
        return ".".join(quoted(part) for part in [*self.table.split(".")[:-1], POSITIONS])

    def create(self, types: Mapping[str, str]) -> str:
        """Return the statement that creates the table."""
        columns = [f"{quoted(name)} {type_}" for name, type_ in types.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({_names(self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)})"

    def add_column(self, column: str, type_: str) -> str:
        """Return the statement that adds a column."""
        return f"ALTER TABLE {self.name} ADD COLUMN {quoted(column)} {type_}"

    def create_positions(self) -> str:
        """Return the statement that creates the table of positions."""
        return f"CREATE TABLE IF NOT EXISTS {self.positions} (writer TEXT PRIMARY KEY, version BIGINT NOT NULL)"

    def position(self) -> str:
        """Return the query of a writer's position."""
        return f"SELECT version FROM {self.positions} WHERE writer = {self.mark}"  # noqa: S608 - quoted above

    def claim(self) -> str:
        """Return the statement that sets a writer's position, but only to a higher version.

        It changes one row, or none if the version was already published. Of two concurrent transactions the second one
        waits here for the first, before either has written any rows.
        """
        return (
            f"INSERT INTO {self.positions} AS p (writer, version) VALUES ({self.mark}, {self.mark}) "  # noqa: S608
            "ON CONFLICT (writer) DO UPDATE SET version = excluded.version WHERE p.version < excluded.version"
        )

    def insert(self, columns: Sequence[str], source: str) -> str:
        """Return the statement that inserts the rows of ``source``. With a key, a new row replaces an old one."""
        text = f"INSERT INTO {self.name} ({_names(columns)}) {source}"
        if not self.key:
            return text
        others = [quoted(name) for name in columns if name not in self.key]
        action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        return f"{text} ON CONFLICT ({_names(self.key)}) DO {action}"

    def values(self, columns: Sequence[str]) -> str:
        """Return ``VALUES`` with a parameter for each column."""
        return f"VALUES ({', '.join([self.mark] * len(columns))})"

    def find(self, columns: Sequence[str], keys: str) -> str:
        """Return the query of these columns of the rows whose keys are in a list.

        Names are qualified, because SQLite takes a quoted name that isn't a column for a string.
        """
        wanted, key = (", ".join(f"t.{quoted(name)}" for name in names) for names in (columns, self.key))
        key = f"({key})" if len(self.key) > 1 else key
        return f"SELECT {wanted} FROM {self.name} AS t WHERE {key} IN ({keys})"  # noqa: S608 - quoted

    def select(self, columns: Sequence[str], table: str) -> str:
        """Return the query of these columns of all rows of a table."""
        return f"SELECT {_names(columns)} FROM {table}"  # noqa: S608 - quoted


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in columns)
