"""Null values of single columns. Pure."""

from __future__ import annotations

import polars as pl


def filled(series: pl.Series, value: object) -> pl.Series:
    """The values with ``value`` in place of nulls.

    Whether there are any is asked first: where there are none Polars takes 80 µs for a column of ten rows.
    """
    return series.fill_null(value) if series.null_count() else series
