"""Writes rows into a table, as puts, deletions or versions, whole batches at a time."""

from __future__ import annotations

import polars as pl

from headrace.api.operators.spec import EventTime
from headrace.api.specs import TableSpec
from headrace.runtime.event_time.columns import time_ms
from headrace.serdes.schema import Schema
from headrace.stores.conform import GONE, SINCE
from headrace.stores.table import RowTable
from headrace.stores.versions import VersionedTable

LocalTable = RowTable | VersionedTable


class TableFeed:
    """Writes the rows of one flow, or of one side input, into a table."""

    def __init__(
        self, spec: TableSpec, table: LocalTable, fed: Schema, time: EventTime | None = None, *, deletes: bool = False
    ) -> None:
        """``fed`` is the schema of the rows; ``deletes``: all of them are deletions."""
        self._table = table
        self._keys = list(spec.key)
        self._gone = pl.lit(True) if deletes else _gone(spec)
        self._since = pl.lit(None, pl.Int64) if time is None else time_ms(time, fed.columns[time.column])
        columns = {**table.key, **table.values}
        self._columns = [pl.col(n) if n in fed.columns else pl.lit(None, t).alias(n) for n, t in columns.items()]

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put and delete rows. Return them as they were written; for versions with ``SINCE`` and ``GONE``."""
        written = rows
        if isinstance(self._table, VersionedTable):
            gone = pl.lit(False) if self._gone is None else self._gone
            written = rows.select(*self._columns, self._since.alias(SINCE), gone.alias(GONE))
            self._table.put_versions(written)
        elif self._gone is None:
            self._table.put_rows(rows)
        else:
            # The last row of a key wins, whether it is a put or a deletion.
            written = rows.with_columns(self._gone.alias(GONE)).unique(self._keys, keep="last", maintain_order=True)
            self._table.put_rows(written.filter(~pl.col(GONE)).select(self._columns))
            self._table.delete_rows(written.filter(GONE))
        return written


def _gone(spec: TableSpec) -> pl.Expr | None:
    """True for rows that are deletions; null counts as false."""
    if spec.deleted is None:
        return None
    return (pl.col(spec.deleted) if isinstance(spec.deleted, str) else spec.deleted).fill_null(False)
