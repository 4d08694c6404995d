"""Rows as JSON lines, for people and for other programs.

Values that JSON has no type for become text: binary as base64, times as ISO 8601, decimals as digits. NaN and the
infinities become null.
"""

from __future__ import annotations

import io
from typing import Any

import polars as pl


def encode_lines(df: pl.DataFrame) -> bytes:
    """Return the rows as JSON lines, one object a line."""
    out = io.BytesIO()
    df.with_columns(_spelled(pl.col(name), dtype) for name, dtype in df.schema.items()).write_ndjson(out)
    return out.getvalue()


def _spelled(values: pl.Expr, dtype: Any) -> pl.Expr:
    """Return the values, as text where Polars' own writer would write them differently or fail."""
    if not _is_respelled(dtype):
        return values
    match dtype:
        case pl.Binary():
            return values.bin.encode("base64")
        case pl.Datetime():
            return values.dt.to_string("iso:strict")
        case pl.Array():
            return values.arr.to_list().list.eval(_spelled(pl.element(), dtype.inner))
        case pl.List():
            return values.list.eval(_spelled(pl.element(), dtype.inner))
    return values.struct.with_fields(_spelled(pl.field(field.name), field.dtype) for field in dtype.fields)


def _is_respelled(dtype: Any) -> bool:
    if isinstance(dtype, pl.Struct):
        return any(_is_respelled(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _is_respelled(dtype.inner)
    return isinstance(dtype, pl.Binary | pl.Datetime)
