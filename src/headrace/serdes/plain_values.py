"""Conditions under which a Python value surely fits a column, as source text for functions that are compiled.

Such a value is immutable, and a column of this type returns an equal one of the same type.
"""

from __future__ import annotations

from datetime import date, datetime
from functools import cache
from typing import Any

import polars as pl

_KINDS: dict[type[pl.DataType], type] = {
    pl.Float64: float, pl.String: str, pl.Boolean: bool, pl.Binary: bytes, pl.Date: date,
}  # fmt: skip


@cache
def kind_of(dtype: pl.DataType) -> type | None:
    """Return the only type that values of a column may have to fit surely; None if there is none."""
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        return int
    if isinstance(dtype, pl.Datetime):  # nanoseconds don't reach as far as Python's years
        return datetime if dtype.time_zone is None and dtype.time_unit != "ns" else None
    return _KINDS.get(type(dtype))


@cache
def fits(dtype: pl.DataType, variable: str) -> str:
    """Return the condition that the value of a variable surely fits a column. The text uses names from ``NAMES``.

    >>> fits(pl.Int8(), "v")
    'type(v) is int and -128 <= v <= 127'
    """
    kind = kind_of(dtype)
    if kind is None:
        return "False"
    condition = f"type({variable}) is {kind.__name__}"
    if kind is int:
        bits = int(str(dtype).lstrip("UInt"))
        below = 1 << bits - 1 if dtype.is_signed_integer() else 0
        condition += f" and {-below} <= {variable} <= {(1 << bits) - below - 1}"
    if kind is str:
        condition += f" and ({variable}.isascii() or is_unicode({variable}))"
    if kind is datetime:
        condition += f" and {variable}.tzinfo is None"
        condition += f" and {variable}.microsecond % 1000 == 0" if dtype == pl.Datetime("ms") else ""
    return condition


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode it: it has no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NAMES: dict[str, Any] = {"is_unicode": _is_unicode, "date": date, "datetime": datetime}
