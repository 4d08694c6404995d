"""Polars' types as SQL's, and rows as values that any of the databases reads: columnar, before a driver sees them.

Dates and times become ISO text, in UTC where they have a zone; durations are microseconds; lists, arrays and structs
are JSON. What a database can't hold is the client's matter.
"""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from headrace.core.errors import DeclarationError

_POSTGRES: dict[type[pl.DataType], str] = {
    pl.Int8: "SMALLINT", pl.Int16: "SMALLINT", pl.Int32: "INTEGER", pl.Int64: "BIGINT",
    pl.UInt8: "SMALLINT", pl.UInt16: "INTEGER", pl.UInt32: "BIGINT", pl.UInt64: "NUMERIC(20)",
    pl.Float32: "REAL", pl.Float64: "DOUBLE PRECISION",
    pl.Boolean: "BOOLEAN", pl.String: "TEXT", pl.Enum: "TEXT", pl.Binary: "BYTEA",
    pl.Date: "DATE", pl.Time: "TIME", pl.Duration: "INTERVAL",
    pl.List: "JSONB", pl.Array: "JSONB", pl.Struct: "JSONB", pl.Null: "TEXT",
}  # fmt: skip

_SQLITE: dict[type[pl.DataType], str] = {
    **dict.fromkeys((pl.Int8, pl.Int16, pl.Int32, pl.Int64), "INTEGER"),
    **dict.fromkeys((pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64), "INTEGER"),
    **dict.fromkeys((pl.Boolean, pl.Duration), "INTEGER"),
    **dict.fromkeys((pl.Float32, pl.Float64), "REAL"),
    **dict.fromkeys((pl.String, pl.Enum, pl.Date, pl.Time, pl.Datetime, pl.Decimal), "TEXT"),
    **dict.fromkeys((pl.List, pl.Array, pl.Struct, pl.Null), "TEXT"),
    pl.Binary: "BLOB",
}


def postgres_type(column: str, dtype: pl.DataType) -> str:
    """The type of a column in PostgreSQL."""
    match dtype:
        case pl.Datetime():
            return "TIMESTAMP" if dtype.time_zone is None else "TIMESTAMPTZ"
        case pl.Decimal():
            return f"NUMERIC({dtype.precision},{dtype.scale})"
    return _known(_POSTGRES, column, dtype)


def sqlite_type(column: str, dtype: pl.DataType) -> str:
    """The type of a column in SQLite. Decimals are text: as numbers they would lose digits."""
    return _known(_SQLITE, column, dtype)


def plain(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with numbers, booleans, text and bytes alone."""
    rows = rows.with_columns(
        [
            pl.Series(name, _as_json(rows[name]), dtype=pl.String)
            for name, dtype in rows.schema.items()
            if _nested(dtype)
        ]
    )
    return rows.with_columns([_as_text(pl.col(name), dtype) for name, dtype in rows.schema.items()])


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
    """A list within a column comes out of Polars as a Series."""
    if isinstance(value, pl.Series):
        return value.to_list()
    raise NotImplementedError(type(value).__name__)


def _known(types: dict[type[pl.DataType], str], column: str, dtype: pl.DataType) -> str:
    found = types.get(type(dtype))
    if found is None:
        raise DeclarationError(
            f"column {column!r}: the type {dtype} can't be kept in a SQL table",
            hint="cast it before send_to: Int128 to Decimal or Int64, Categorical to String, Object to Binary",
        )
    return found
