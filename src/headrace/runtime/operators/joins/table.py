"""The operators that fill a table and look rows up in it, whole batches at a time.

Both see the table as it is when a batch reaches them. Within a task that is the order in which messages are
processed; between a flow that fills a table and one that joins it there is no other. Tables of versions are joined by
``table_as_of``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.specs import Node
from headrace.api.steps import SendTo, SendToTable, TableJoin
from headrace.core.errors import DataError
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Counters, Operator, Port
from headrace.runtime.operators.joins.key_lookup import FOUND, look_up
from headrace.runtime.operators.sending import SendOperator
from headrace.runtime.tables.table_feed import LocalTable, TableFeed
from headrace.serdes.schema import Schema
from headrace.stores.conform import SINCE
from headrace.stores.table import RowTable
from headrace.stores.versions import VersionedTable


class TableWriter(Operator):
    """Puts rows into a table, or takes them out; the last one of a key counts.

    A version that is older than the watermark is counted as late, and counts for whoever asks from then on.
    """

    def __init__(self, node: Node, spec: SendToTable, table: LocalTable, feed: TableFeed, counters: Counters) -> None:
        super().__init__(node)
        self._id = spec.table
        self._key = list(table.key)
        self._feed = feed
        self._counters = counters
        self._versions = table if isinstance(table, VersionedTable) else None
        self._time = spec.time
        self._watermark = NEVER
        if self._versions is not None:
            self._versions.used_by(node.id)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        _require_keys(self.node, self._id, self._key, rows)
        if self._time is not None and (missing := rows.get_column(self._time.column).null_count()):
            raise DataError(
                f"step {self.node.id!r} ({self.node.location}) sends rows without an event time to table {self._id!r}: "
                f"{self._time.column!r} is null in {missing} of {rows.height}",
                hint="filter them out before it, or give them a time",
            )
        told = self._feed.take(rows)
        if self._versions is not None:
            since = told.get_column(SINCE).to_numpy()
            self._counters.count("late", int(np.count_nonzero(since < self._watermark)))

    @override
    def on_watermark(self, watermark: int) -> None:
        self._watermark = watermark
        if self._versions is not None:
            self._versions.pass_by(self.node.id, watermark)

    @override
    def resume(self, watermark: int) -> None:
        self.on_watermark(watermark)


class RemoteWriter(SendOperator):
    """Writes rows to the output that becomes a remote table; the last one of a key counts."""

    def __init__(self, node: Node, spec: SendTo, port: Port, key: Sequence[str]) -> None:
        super().__init__(node, spec, port)
        self._id = spec.stream
        self._key = key

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        _require_keys(self.node, self._id, self._key, rows)
        super().on_batch(rows)


def _require_keys(node: Node, table: str, key: Sequence[str], rows: pl.DataFrame) -> None:
    for name in key:
        if missing := rows.get_column(name).null_count():
            raise DataError(
                f"step {node.id!r} ({node.location}) sends rows without a key to table {table!r}: "
                f"{name!r} is null in {missing} of {rows.height}",
                hint=f"leave them out before it: .filter(pl.col({name!r}).is_not_null())",
            )


class TableLookup(Operator):
    """Adds the columns of the row that a message's key finds. A null key finds nothing."""

    def __init__(self, node: Node, spec: TableJoin, left: Schema, table: RowTable) -> None:
        super().__init__(node)
        self._table = table
        self._inner = spec.how == "inner"
        self._keys = [pl.col(ours).alias(theirs) for ours, theirs in zip(spec.keys, table.key, strict=True)]
        self._names = {name: f"{name}{spec.suffix}" if name in left.columns else name for name in table.values}

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        looked_up = look_up(self._table, rows.select(self._keys))
        found = looked_up.get_column(FOUND)
        columns = looked_up.select(pl.col(old).alias(new) for old, new in self._names.items())
        joined = pl.concat([rows, columns], how="horizontal") if self._names else rows
        self.emit(joined.filter(found) if self._inner and not found.all() else joined)
