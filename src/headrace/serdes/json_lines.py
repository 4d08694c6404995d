"""Rows as JSON lines, for people and for other programs.

Values that JSON has no type for become text: binary as base64, times as ISO 8601, decimals as digits. NaN and the
infinities become null.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec
import polars as pl


def encode_lines(df: pl.DataFrame) -> bytes:
    """Return the rows as JSON lines, one object a line."""
    nested = [dtype for dtype in df.dtypes if dtype.is_nested()]
    if any(_needs_row_encoder(dtype) for dtype in nested):
        return msgspec.json.Encoder().encode_lines(df.rows(named=True))
    instants = [name for name, dtype in df.schema.items() if isinstance(dtype, pl.Datetime)]
    binaries = [name for name, dtype in df.schema.items() if isinstance(dtype, pl.Binary)]
    plain = df.with_columns(pl.col(instants).dt.to_string("iso:strict"), pl.col(binaries).bin.encode("base64"))
    out = io.BytesIO()
    plain.write_ndjson(out)
    return out.getvalue()


def _needs_row_encoder(dtype: Any) -> bool:
    """Whether a nested type holds binaries or datetimes, which Polars' writer would spell differently."""
    if isinstance(dtype, pl.Struct):
        return any(_needs_row_encoder(field.dtype) for field in dtype.fields)
    if isinstance(dtype, pl.List | pl.Array):
        return _needs_row_encoder(dtype.inner)
    return isinstance(dtype, pl.Binary | pl.Datetime)
