"""Column types and values of Delta tables: what a column of Polars becomes there. Pure.

Delta has no unsigned numbers, so these become the next wider type; instants are in UTC, in microseconds; categories
are text; arrays are lists. A type that Delta doesn't have is refused before the app runs. A value that can't be stored
is found before its commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from headrace.core.errors import DataError, DeclarationError
from headrace.serdes.casting import CastSafety, cast_safety
from headrace.serdes.dtypes import instantiate, written

_AS_IT_IS = (
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary, pl.Date,
    pl.Decimal,
)  # fmt: skip
_WIDENED: dict[type[pl.DataType], pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.UInt64: pl.Decimal(20, 0),
    pl.Enum: pl.String(),
    pl.Categorical: pl.String(),
}
_REMEDIES: dict[type[pl.DataType], str] = {
    pl.Duration: 'write a number: pl.col("x").dt.total_microseconds()',
    pl.Time: 'write text: pl.col("x").cast(pl.String)',
    pl.Null: "give it a type: pl.lit(None, dtype=pl.String)",
}
_PARTITIONING = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Boolean, pl.String, pl.Date)
_TIME_MAX = {"ms": 8_150_000_000_000_000, "us": 8_150_000_000_000_000_000, "ns": 2**63 - 1}
"""Times have to be this near to 1970: no calendar of the libraries in between goes further."""

_READ_AS_NULL = ("", "__HIVE_DEFAULT_PARTITION__")


def stored_columns(columns: Mapping[str, pl.DataType], partition_by: Sequence[str] = ()) -> dict[str, pl.DataType]:
    """Return what the columns are in a Delta table, as types of Polars.

    Raises ``DeclarationError`` for types that Delta doesn't have, and for columns that can't partition a table.
    """
    seen: dict[str, str] = {}
    for name in columns:
        if other := seen.get(name.lower()):
            raise DeclarationError(
                f"the columns {other!r} and {name!r} are the same to Delta, which ignores case",
                hint="rename one of them",
            )
        seen[name.lower()] = name
    stored = {name: _stored(name, dtype) for name, dtype in columns.items()}
    for name in partition_by:
        if name not in stored:
            raise DeclarationError(
                f"partition_by: the output has no column {name!r}; it has {', '.join(columns)}",
                hint="name columns of the output",
            )
        if not isinstance(stored[name], _PARTITIONING):
            raise DeclarationError(
                f"partition_by: column {name!r} is of type {written(columns[name])}",
                hint='partition by dates, whole numbers, text or booleans, such as pl.col("ts").dt.date()',
            )
    if partition_by and len(partition_by) == len(stored):
        raise DeclarationError("partition_by: the table needs at least one other column")
    return stored


def stored_rows(rows: pl.DataFrame, partition_by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the rows in the types of ``stored_columns``. Raises ``DataError`` for a value that can't be stored."""
    wanted = stored_columns(dict(rows.schema))
    for name, dtype in rows.schema.items():
        if isinstance(dtype, pl.Datetime):
            near = rows[name].to_physical().is_between(-_TIME_MAX[dtype.time_unit], _TIME_MAX[dtype.time_unit])
            _refuse(~near, name, "is a time beyond the year 260,000", "filter or fix such rows")
    stored = rows.cast({name: dtype for name, dtype in wanted.items() if rows.schema[name] != dtype})
    for name in partition_by:
        if wanted.get(name) == pl.String:
            lost = stored[name].is_in(_READ_AS_NULL).fill_null(value=False)
            hint = "replace it with null or with other text before the output"
            _refuse(lost, name, "is text that readers take for null in a partition column", hint)
    return stored


def fitted(rows: pl.DataFrame, table: Mapping[str, pl.DataType], where: str) -> pl.DataFrame:
    """Return stored rows with exactly the columns of the table: those that the rows don't have are null.

    Raises ``DeclarationError`` if ``misfits`` finds anything.
    """
    wrong = misfits(rows.schema, table)
    if missing := [name for name in rows.columns if name not in table]:
        wrong += [f"it has no column {name!r}" for name in missing]
    if wrong:
        raise misfit_error(where, wrong)
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in table.items()
    )


def misfits(stored: Mapping[str, pl.DataType], table: Mapping[str, pl.DataType]) -> list[str]:
    """Say for each column that both have why its values don't fit into the table, if they don't."""
    wrong: list[str] = []
    for name, dtype in stored.items():
        if name not in table or cast_safety(dtype, table[name]) in (CastSafety.SAME, CastSafety.LOSSLESS):
            continue
        wrong.append(f"its column {name!r} is {written(table[name])}, not {written(dtype)}")
        if isinstance(dtype, pl.Datetime) and isinstance(table[name], pl.Datetime):
            wrong[-1] += " (a time with a zone is an instant; .dt.replace_time_zone() adds or removes the zone)"
    return wrong


def misfit_error(where: str, wrong: Sequence[str]) -> DeclarationError:
    """The error for a table that doesn't fit the output."""
    return DeclarationError(
        f"{where} doesn't fit the output: {'; '.join(wrong)}",
        hint="change the columns before the output, or write to another table",
    )


def _stored(column: str, dtype: pl.DataType) -> pl.DataType:
    if type(dtype) in _WIDENED:
        return _WIDENED[type(dtype)]
    match dtype:
        case pl.List() | pl.Array():
            return pl.List(_stored(column, instantiate(dtype.inner, column)))
        case pl.Struct():
            fields = [(field.name, _stored(column, instantiate(field.dtype, column))) for field in dtype.fields]
            return pl.Struct(dict(fields))
        case pl.Datetime() if dtype.time_unit != "ns":
            return pl.Datetime("us", "UTC" if dtype.time_zone else None)
        case pl.Datetime():
            raise DeclarationError(
                f"column {column!r}: Delta's times have microseconds, but {written(dtype)} is finer",
                hint=f'round it before the output: pl.col("{column}").dt.cast_time_unit("us")',
            )
        case _ if isinstance(dtype, _AS_IT_IS):
            return dtype
        case _:
            raise DeclarationError(
                f"column {column!r}: Delta has no type for {dtype}",
                hint=_REMEDIES.get(type(dtype), "cast it to another type"),
            )


def _refuse(rows: pl.Series, column: str, what: str, hint: str) -> None:
    if count := rows.sum():
        raise DataError(f"column {column!r} of {count} rows {what}", hint=hint)
