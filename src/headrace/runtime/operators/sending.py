"""The operator with which rows leave a task: partition_by, broadcast, send_to."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.streams import Broadcast, PartitionBy, SendTo
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.windows.partial import CombineOperator


class SendOperator(Operator):
    """Writes rows to a stream: to the partitions of their keys, or to the task's own partition.

    A broadcast writes to the task's own partition, too: it is the readers that read all partitions.
    """

    def __init__(self, node: Node, spec: PartitionBy | SendTo | Broadcast, context: BuildContext) -> None:
        super().__init__(node)
        self._stream = spec.stream
        self._keys = () if isinstance(spec, Broadcast) else spec.keys
        self._port = context.port
        self._remote_key = context.remote_key
        self._entry: Operator = self
        if context.partials_of is not None:
            self._entry = CombineOperator(context.partials_of, context.counters)
            self._entry.after.append(self)

    @override
    def side(self, number: int) -> Operator:
        return self._entry

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        require_keys(self.node, self._stream, self._remote_key, rows)
        self._port.write(self._stream, rows, self._keys)


def require_keys(node: Node, table: str, key: Sequence[str], rows: pl.DataFrame) -> None:
    """Raise if a row for a table has no key."""
    for name in key:
        if missing := rows.get_column(name).null_count():
            raise DataError(
                f"step {node.id!r} ({node.location}) sends rows without a key to table {table!r}: "
                f"{name!r} is null in {missing} of {rows.height}",
                hint=f"leave them out before it: .filter(pl.col({name!r}).is_not_null())",
            )
