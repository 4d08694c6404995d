"""The operators that fill a table and look rows up in it, whole batches at a time.

Both see the table as it is when a batch reaches them. So the order in which the task processes messages decides what a
join finds; there is no other order between a flow that fills a table and one that joins it. ``as_of`` joins tables of
versions, and ``remote`` joins remote tables.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.table import SendToTable, TableJoin
from headrace.api.specs import Node
from headrace.runtime.event_time.limits import StepTime
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.joins.as_of import TableAsOf
from headrace.runtime.operators.joins.key_lookup import LookupColumns, look_up
from headrace.runtime.operators.joins.remote import RemoteLookup
from headrace.runtime.operators.sending import require_keys
from headrace.serdes.schema import Schema
from headrace.stores.conform import SINCE
from headrace.stores.table import RowTable
from headrace.stores.versions import VersionedTable


def build_table_join(node: Node, spec: TableJoin, context: BuildContext) -> Operator:
    """The operator for a join with a table: which one depends on the kind of table."""
    if spec.table in context.tables.remote:
        return RemoteLookup(node, spec, context)
    table = context.tables[spec.table]
    if isinstance(table, VersionedTable):
        return TableAsOf(node, spec, table, context)
    return TableLookup(node, spec, context.inputs[0], table)


class TableWriter(Operator):
    """Puts rows into a table, or deletes rows; the last row of a key wins.

    A version that is older than the watermark is counted as late; later look-ups find it nevertheless.
    """

    def __init__(self, node: Node, spec: SendToTable, context: BuildContext) -> None:
        super().__init__(node)
        table = context.tables[spec.table]
        (columns,) = context.inputs
        self._id = spec.table
        self._key = list(table.key)
        self._feed = context.tables.feed(spec, columns)
        self._counters = context.counters
        self._versioned = isinstance(table, VersionedTable)
        who = f"step {node.id!r} ({node.location}), which sends them to table {spec.table!r},"
        self._time = None if spec.time is None else StepTime(who, spec.time, columns.columns[spec.time.column])
        self._watermark = NEVER

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        require_keys(self.node, self._id, self._key, rows)
        if self._time is not None:
            self._time.check(rows)
        taken = self._feed.take(rows)
        if self._versioned:
            since = taken.get_column(SINCE).to_numpy()
            self._counters.count("late", int(np.count_nonzero(since < self._watermark)))

    @override
    def on_watermark(self, watermark: int) -> None:
        self._watermark = watermark

    @override
    def resume(self, watermark: int) -> None:
        self.on_watermark(watermark)


class TableLookup(Operator):
    """Adds the columns of the row with a message's key. A null key finds nothing."""

    def __init__(self, node: Node, spec: TableJoin, left: Schema, table: RowTable) -> None:
        super().__init__(node)
        self._table = table
        self._columns = LookupColumns(spec, left, table.key, table.values)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        joined, numbers = self._columns.joined(rows, look_up(self._table, rows.select(self._columns.keys)))
        self.provenance.became(lambda: numbers)
        self.emit(joined)
