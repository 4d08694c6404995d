"""The types that text parsers read reliably, and the casts from them to the declared types.

The parsers know few types (and Polars' JSON parser panics at some others), so narrow and rare types are read as a wide
type and cast, strictly: a number that doesn't fit makes its row a bad one.
"""

from __future__ import annotations

import polars as pl

from headrace.serdes.dtypes import Columns

_SIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Duration)
_UNSIGNED = (pl.UInt8, pl.UInt16, pl.UInt32)
_AS_TEXT = (pl.Int128, pl.Decimal, pl.Binary, pl.Enum, pl.Null, pl.Time)


def wire_columns(columns: Columns) -> Columns:
    """The columns as types to request from a parser."""
    return {name: _wire(dtype) for name, dtype in columns.items()}


def _wire(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, _SIGNED):
        return pl.Int64()
    if isinstance(dtype, _UNSIGNED):
        return pl.UInt64()
    if isinstance(dtype, pl.Float32):
        return pl.Float64()
    if isinstance(dtype, _AS_TEXT):
        return pl.String()
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        return pl.Datetime(dtype.time_unit, "UTC")
    if isinstance(dtype, pl.List):
        return pl.List(_wire(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Array):
        return pl.List(_wire(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: _wire(field.dtype) for field in dtype.fields})  # type: ignore[arg-type]
    return dtype


def from_wire(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The frame with the declared types; raises a Polars error if a value doesn't fit."""
    changes = []
    for name, dtype in columns.items():
        if frame.schema[name] == dtype:
            continue
        column = pl.col(name)
        if isinstance(dtype, pl.Time):
            changes.append(column.str.to_time())
        else:
            changes.append(column.cast(dtype))
    return frame.with_columns(changes) if changes else frame


def without_null_types(columns: Columns) -> Columns:
    """Inferred columns, with text for a column of nothing but nulls."""
    return {name: pl.String() if dtype == pl.Null else dtype for name, dtype in columns.items()}
