"""Rows of stores as people read them: without columns that only the store needs, and with times as times. Pure."""

from __future__ import annotations

import polars as pl

_MS = pl.Datetime("ms")
_READABLE: dict[str, tuple[str, pl.DataType | None]] = {
    "__start": ("window_start", _MS),
    "__end": ("window_end", _MS),
    "__since": ("valid_from", _MS),
    "__until": ("valid_until", _MS),
    "__gone": ("deleted", None),
    "__put": ("put_at", _MS),
    "__time": ("time", _MS),
}
_OWN = "__"
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. What is outside of them means always, or never."""


def readable(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without the store's own columns; a few of these have a meaning for people, and get a name."""
    shown = [name for name in rows.columns if not name.startswith(_OWN)]
    columns = [pl.col(name) for name in shown]
    for own, (name, dtype) in _READABLE.items():
        if own in rows.columns and name not in shown:
            columns.append(_moment(own).alias(name) if dtype is not None else pl.col(own).alias(name))
    return rows.select(columns)


def _moment(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_between(_EARLIEST, _LATEST)).then(pl.col(name)).cast(_MS)
