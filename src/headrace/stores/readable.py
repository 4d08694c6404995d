"""Rows of stores as people read them: without columns that only the store needs, and with times as times. Pure."""

from __future__ import annotations

import polars as pl

_MS = pl.Datetime("ms")
_READABLE = {
    "__start": "window_start",
    "__end": "window_end",
    "__slice": "slice_start",
    "__due": "due_at",
    "__since": "valid_from",
    "__until": "valid_until",
    "__gone": "deleted",
    "__put": "put_at",
    "__time": "time",
}
"""What columns of a store's own are called. Numbers in them are times in milliseconds."""
_OWN = "__"
_EARLIEST, _LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999. What is outside of them means always, or never."""


def readable(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without the store's own columns; a few of these have a meaning for people, and get a name."""
    columns = []
    for name, dtype in rows.schema.items():
        if not name.startswith(_OWN):
            columns.append(pl.col(name))
        elif name in _READABLE and _READABLE[name] not in rows.columns:
            known = _moment(name) if dtype == pl.Int64 else pl.col(name)
            columns.append(known.alias(_READABLE[name]))
    return rows.select(columns)


def _moment(name: str) -> pl.Expr:
    """Return a column of milliseconds as times; null where a value isn't a valid time."""
    return pl.when(pl.col(name).is_between(_EARLIEST, _LATEST)).then(pl.col(name)).cast(_MS)
