"""The operators that fill a table and look rows up in it, whole batches at a time.

Both see the table as it is when a batch reaches them. Within a task that is the order in which messages are
processed; between a flow that fills a table and one that joins it there is no other.
"""

from __future__ import annotations

import polars as pl

from headrace.api.specs import Node, SendToTable, TableJoin
from headrace.core.errors import DataError
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.look_up import FOUND, look_up
from headrace.serdes.schema import Schema
from headrace.stores.table import TableStore


class TableWriter(Operator):
    """Puts rows into a table; the last one of a key counts."""

    def __init__(self, node: Node, spec: SendToTable, table: TableStore) -> None:
        super().__init__(node)
        self._id = spec.table
        self._table = table

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        for name in self._table.key:
            if missing := rows.get_column(name).null_count():
                raise DataError(
                    f"step {self.node.id!r} ({self.node.location}) sends rows without a key to table {self._id!r}: "
                    f"{name!r} is null in {missing} of {rows.height}",
                    hint=f"leave them out before it: .filter(pl.col({name!r}).is_not_null())",
                )
        self._table.put_rows(rows)


class TableLookup(Operator):
    """Adds the columns of the row that a message's key finds. A null key finds nothing."""

    def __init__(self, node: Node, spec: TableJoin, left: Schema, table: TableStore) -> None:
        super().__init__(node)
        self._table = table
        self._inner = spec.how == "inner"
        self._keys = [pl.col(ours).alias(theirs) for ours, theirs in zip(spec.keys, table.key, strict=True)]
        self._names = {name: f"{name}{spec.suffix}" if name in left.columns else name for name in table.values}

    def on_batch(self, rows: pl.DataFrame) -> None:
        """See ``Operator``."""
        looked_up = look_up(self._table, rows.select(self._keys))
        found = looked_up.get_column(FOUND)
        columns = looked_up.select(pl.col(old).alias(new) for old, new in self._names.items())
        joined = pl.concat([rows, columns], how="horizontal") if self._names else rows
        self.emit(joined.filter(found) if self._inner and not found.all() else joined)
