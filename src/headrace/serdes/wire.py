"""The types that text parsers read reliably, and the casts from them to the declared types.

The parsers know few types (and Polars' JSON parser panics at some others), so narrow and rare types are read as a wide
type and cast, strictly: a number that doesn't fit makes its row a bad one. Binary values are base64, as in all other
text.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from headrace.serdes.casting import with_exact_digits
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
    found = frame.schema
    cast = [_from_wire(pl.col(name), dtype) for name, dtype in columns.items() if found[name] != dtype]
    return frame.with_columns(cast) if cast else frame


def _from_wire(values: pl.Expr, dtype: Any) -> pl.Expr:
    if not _is_parsed(dtype):
        return values.cast(dtype)
    match dtype:
        case pl.Decimal():
            exact = values.map_batches(lambda text: with_exact_digits(text, dtype), return_dtype=pl.String())
            return exact.cast(dtype)
        case pl.Binary():
            return values.str.decode("base64")
        case pl.Time():
            return values.str.to_time()
        case pl.List() | pl.Array():
            return values.list.eval(_from_wire(pl.element(), dtype.inner)).cast(dtype)
        case pl.Struct():
            fields = [_from_wire(pl.field(field.name), field.dtype) for field in dtype.fields]
            return values.struct.with_fields(fields)
    raise TypeError(f"{dtype} isn't parsed")


def _is_parsed(dtype: Any) -> bool:
    """Return whether values of this type come from text that a cast alone can't read, or reads too generously."""
    if isinstance(dtype, pl.Struct):
        return any(_is_parsed(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _is_parsed(dtype.inner)
    return isinstance(dtype, pl.Binary | pl.Time | pl.Decimal)


def why_unreadable(error: pl.exceptions.PolarsError) -> str:
    """What a person needs of the error: its first line, without advice about Polars' parameters."""
    return str(error).splitlines()[0].partition("; try setting")[0]


def without_null_types(columns: Columns) -> Columns:
    """Inferred columns, with text for a column of nothing but nulls."""
    return {name: pl.String() if dtype == pl.Null else dtype for name, dtype in columns.items()}
