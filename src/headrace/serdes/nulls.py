"""Null values in a column. Pure."""

from __future__ import annotations

import polars as pl


def filled(series: pl.Series, value: object) -> pl.Series:
    """Return the column with ``value`` in place of nulls.

    ``fill_null`` is called only if there are nulls: it takes 80 µs even for ten rows without any.
    """
    return series.fill_null(value) if series.null_count() else series
