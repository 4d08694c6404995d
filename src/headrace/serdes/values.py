"""Columns of values that are Python objects: an app's function returned them, or a decoder did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl


def column(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """Return the values as a column of this type. Raises an ``Exception`` if one of them doesn't fit.

    Polars panics over some values, and what it raises then isn't an ``Exception``: nothing that handles a bad value
    would catch it, and the container would end.

    >>> from decimal import Decimal
    >>> column("price", [Decimal("NaN")], pl.Decimal(10, 2))
    Traceback (most recent call last):
    ValueError: a value doesn't fit Decimal(precision=10, scale=2)
    """
    try:
        return pl.Series(name, values, dtype=dtype, strict=True)
    except (pl.exceptions.PanicException, RuntimeError) as error:  # they speak of Polars' insides
        raise ValueError(f"a value doesn't fit {dtype}") from error
