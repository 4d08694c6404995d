"""The contract of a database client, the SQL statements that clients share, and the values of databases.

A client raises only Headrace's errors, whose ``retry`` is true if the database is unreachable, busy or full. After any
error it has closed its connection, so the next call starts with a new one.

Whole columns are converted, before a driver sees any row. Dates and times become ISO text, in UTC if they have a time
zone; durations become microseconds; lists, arrays and structs become JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import polars as pl

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.casting import with_exact_digits
from headrace.rows.values import column as made_column

POSITIONS = "headrace_positions"  # the table with the position of each writer; in the same schema as the target table


class SqlClient(Protocol):
    """A client of one table of one database. It connects when it is first used; one thread uses it."""

    def columns(self) -> list[str] | None:
        """Return the names of the table's columns; None if the table doesn't exist. Changes nothing."""

    def create(self, columns: Mapping[str, pl.DataType]) -> None:
        """Create the table. Does nothing if another program has created it meanwhile."""

    def add_columns(self, columns: Mapping[str, pl.DataType]) -> None:
        """Add columns, with null in present rows. Does nothing for one that another program has added meanwhile."""

    def prepare(self) -> None:
        """Create the table of positions if it doesn't exist, and finish what a writer that died has left."""

    def position(self, writer: str) -> int:
        """Return the highest version that ``writer`` has published, as ``Target.position`` says."""

    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        """Add the rows and set the writer's position, as ``Target.publish`` says. Each key occurs once in ``rows``."""

    def find(self, keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return these columns of the rows with these keys, given as database values. Takes no lock."""

    def close(self) -> None:
        """Close the connection, possibly from another thread than the one that uses it."""


def quoted(name: str) -> str:
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
        return ".".join(quoted(part) for part in [*self.table.split(".")[:-1], POSITIONS])

    def create(self, types: Mapping[str, str]) -> str:
        columns = [f"{quoted(name)} {type_}" for name, type_ in types.items()]
        if self.key:
            columns.append(f"PRIMARY KEY ({_names(self.key)})")
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)})"

    def add_column(self, column: str, type_: str) -> str:
        return f"ALTER TABLE {self.name} ADD COLUMN {quoted(column)} {type_}"

    def create_positions(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.positions} (writer TEXT PRIMARY KEY, version BIGINT NOT NULL)"

    def position(self) -> str:
        return f"SELECT version FROM {self.positions} WHERE writer = {self.mark}"  # noqa: S608 - quoted above

    def claim(self) -> str:
        """It changes one row, or none if the version was already published. Of two transactions the second waits."""
        return (
            f"INSERT INTO {self.positions} AS p (writer, version) VALUES ({self.mark}, {self.mark}) "  # noqa: S608
            "ON CONFLICT (writer) DO UPDATE SET version = excluded.version WHERE p.version < excluded.version"
        )

    def insert(self, columns: Sequence[str], source: str) -> str:
        text = f"INSERT INTO {self.name} ({_names(columns)}) {source}"
        if not self.key:
            return text
        others = [quoted(name) for name in columns if name not in self.key]
        action = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
        return f"{text} ON CONFLICT ({_names(self.key)}) DO {action}"

    def find(self, columns: Sequence[str], keys: str) -> str:
        """The query of these columns by a list of keys. SQLite takes a quoted name that isn't a column for a string."""
        wanted, key = (", ".join(f"t.{quoted(name)}" for name in names) for names in (columns, self.key))
        key = f"({key})" if len(self.key) > 1 else key
        return f"SELECT {wanted} FROM {self.name} AS t WHERE {key} IN ({keys})"  # noqa: S608 - quoted

    def select(self, columns: Sequence[str], table: str) -> str:
        return f"SELECT {_names(columns)} FROM {table}"  # noqa: S608 - quoted


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in columns)


# -- values ------------------------------------------------------------------------------------------
_POSTGRES: dict[type[pl.DataType], str] = {
    pl.Int8: "SMALLINT", pl.Int16: "SMALLINT", pl.Int32: "INTEGER", pl.Int64: "BIGINT",
    pl.UInt8: "SMALLINT", pl.UInt16: "INTEGER", pl.UInt32: "BIGINT", pl.UInt64: "NUMERIC(20)",
    pl.Float32: "REAL", pl.Float64: "DOUBLE PRECISION",
    pl.Boolean: "BOOLEAN", pl.String: "TEXT", pl.Enum: "TEXT", pl.Binary: "BYTEA",
    pl.Date: "DATE", pl.Time: "TIME", pl.Duration: "INTERVAL",
    pl.List: "JSONB", pl.Array: "JSONB", pl.Struct: "JSONB", pl.Null: "TEXT",
}  # fmt: skip
_SQLITE: dict[type[pl.DataType], str] = {
    pl.Int8: "INTEGER", pl.Int16: "INTEGER", pl.Int32: "INTEGER", pl.Int64: "INTEGER", pl.Boolean: "INTEGER",
    pl.UInt8: "INTEGER", pl.UInt16: "INTEGER", pl.UInt32: "INTEGER", pl.UInt64: "INTEGER", pl.Duration: "INTEGER",
    pl.Float32: "REAL", pl.Float64: "REAL", pl.Decimal: "TEXT", pl.String: "TEXT", pl.Enum: "TEXT", pl.Binary: "BLOB",
    pl.Date: "TEXT", pl.Time: "TEXT", pl.Datetime: "TEXT",
    pl.List: "TEXT", pl.Array: "TEXT", pl.Struct: "TEXT", pl.Null: "TEXT",
}  # fmt: skip


def postgres_type(column: str, dtype: pl.DataType) -> str:
    match dtype:
        case pl.Datetime():
            return "TIMESTAMP" if dtype.time_zone is None else "TIMESTAMPTZ"
        case pl.Decimal():
            return f"NUMERIC({dtype.precision},{dtype.scale})"
    return _known(_POSTGRES, column, dtype)


def sqlite_type(column: str, dtype: pl.DataType) -> str:
    """Return the type of a column in SQLite. Decimals are text, because as numbers they would lose digits."""
    return _known(_SQLITE, column, dtype)


def to_database_values(rows: pl.DataFrame) -> pl.DataFrame:
    nested = [name for name, dtype in rows.schema.items() if _nested(dtype)]
    rows = rows.with_columns(pl.Series(name, _as_json(rows[name]), dtype=pl.String) for name in nested)
    return rows.with_columns([_as_text(pl.col(name), dtype) for name, dtype in rows.schema.items()])


def from_database_values(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the rows that a driver read, as ``columns``. Raises ``DataError`` for a value that isn't of its type."""
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pl.DataFrame([_as_series(*one, column) for one, column in zip(columns.items(), values, strict=True)])


def _as_series(name: str, dtype: pl.DataType, values: Sequence[Any]) -> pl.Series:
    """Convert one column. A driver returns Python objects for types that its database has, and text for others."""
    try:
        if dtype.is_integer():
            return pl.Series(name, [None if value is None else int(value) for value in values], dtype=dtype)
        if dtype == pl.Boolean:
            return pl.Series(name, [None if value is None else bool(value) for value in values], dtype=dtype)
        if _nested(dtype):
            found = [msgspec.json.decode(value) if isinstance(value, str) else value for value in values]
            return made_column(name, found, dtype)
        if isinstance(dtype, pl.Duration) and any(isinstance(value, int) for value in values):
            return pl.Series(name, values, dtype=pl.Int64).cast(pl.Duration("us")).cast(dtype)
        if any(isinstance(value, str) for value in values):
            return _parsed(pl.Series(name, values, dtype=pl.String), dtype)
        return made_column(name, values, dtype)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        said = f"column {name!r} of the database has a value that is not of type {dtype}: {error}"
        raise DataError(said, hint="compare the table's schema= with its columns in the database") from error


def _parsed(text: pl.Series, dtype: pl.DataType) -> pl.Series:
    match dtype:
        case pl.Date():
            return text.str.to_date("%Y-%m-%d")
        case pl.Time():
            return text.str.to_time("%H:%M:%S%.f")
        case pl.Datetime(time_zone=None):
            return text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f").cast(dtype)
        case pl.Datetime():
            return text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%z", time_zone="UTC").cast(dtype)
        case pl.Boolean() | pl.Float32() | pl.Float64() | pl.Binary():
            raise TypeError(f"{text.drop_nulls()[0]!r} is text")
        case _:
            return with_exact_digits(text, dtype).cast(dtype)


def _as_text(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.Date():
            return column.dt.to_string("%Y-%m-%d")
        case pl.Time():
            return column.dt.to_string("%H:%M:%S%.6f")
        case pl.Datetime():
            if dtype.time_zone is None:
                return column.dt.to_string("%Y-%m-%d %H:%M:%S%.6f")
            return column.dt.convert_time_zone("UTC").dt.to_string("%Y-%m-%d %H:%M:%S%.6f+00:00")
        case pl.Duration():
            return column.dt.total_microseconds()
        case pl.Decimal() | pl.Enum() | pl.Categorical() | pl.Null():
            return column.cast(pl.String)
        case _:
            return column


def _nested(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.List | pl.Array | pl.Struct)


def _as_json(column: pl.Series) -> list[str | None]:
    return [None if value is None else msgspec.json.encode(value, enc_hook=_listed).decode() for value in column]


def _listed(value: Any) -> Any:
    if isinstance(value, pl.Series):
        return value.to_list()
    raise NotImplementedError(type(value).__name__)


def _known(types: dict[type[pl.DataType], str], column: str, dtype: pl.DataType) -> str:
    found = types.get(type(dtype))
    if found is None:
        hint = "cast it before send_to: Int128 to Decimal or Int64, Categorical to String, Object to Binary"
        raise DeclarationError(f"column {column!r}: a SQL table can't hold values of type {dtype}", hint=hint)
    return found
