"""What fills a table: rows become puts, deletions or versions, whole batches at a time."""

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
    """One way into a table: a flow that is sent there, or a side input."""

    def __init__(
        self, spec: TableSpec, table: LocalTable, fed: Schema, time: EventTime | None = None, *, deletes: bool = False
    ) -> None:
        """``fed`` are the columns of what comes; ``deletes`` says that all of it are deletions."""
        self._table = table
        self._keys = list(spec.key)
        self._gone = pl.lit(True) if deletes else _gone(spec)
        self._since = pl.lit(None, pl.Int64) if time is None else time_ms(time, fed.columns[time.column])
        columns = {**table.key, **table.values}
        self._columns = [pl.col(n) if n in fed.columns else pl.lit(None, t).alias(n) for n, t in columns.items()]

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Put the rows in, take out what is deleted. Returns the rows as the table has been told of them."""
        told = rows
        if isinstance(self._table, VersionedTable):
            gone = pl.lit(False) if self._gone is None else self._gone
            told = rows.select(*self._columns, self._since.alias(SINCE), gone.alias(GONE))
            self._table.put_versions(told)
        elif self._gone is None:
            self._table.put_rows(rows)
        else:
            # Of one key the last row counts, whichever it is.
            told = rows.with_columns(self._gone.alias(GONE)).unique(self._keys, keep="last", maintain_order=True)
            self._table.put_rows(told.filter(~pl.col(GONE)).select(self._columns))
            self._table.delete_rows(told.filter(GONE))
        return told


def _gone(spec: TableSpec) -> pl.Expr | None:
    """Which rows are deletions; where that is null the row isn't."""
    if spec.deleted is None:
        return None
    return (pl.col(spec.deleted) if isinstance(spec.deleted, str) else spec.deleted).fill_null(False)
