"""Operators that pass rows on, within a task (inputs, merges, side outputs) or out of it (partition_by, send_to)."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from typing_extensions import override

from headrace.api.operators.streams import Broadcast, Input, Merge, PartitionBy, SendTo, SideOutput
from headrace.api.operators.table import TaskTable
from headrace.api.operators.window import Window
from headrace.api.specs import Node
from headrace.core.errors import DataError
from headrace.runtime.metrics import Counters
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.windows.choice import mergeable_window


class PassOnOperator(Operator):
    """Hands rows on; everything else is decided by who is connected to it."""

    def __init__(self, node: Node, spec: Input | Merge | SideOutput | TaskTable, context: BuildContext) -> None:
        super().__init__(node)


class SendOperator(Operator):
    """Writes rows to a stream: to the partitions of their keys, or to the task's own partition.

    A broadcast writes to the task's own partition, too: it is the readers that read all partitions.
    """

    def __init__(self, node: Node, spec: PartitionBy | SendTo | Broadcast, context: BuildContext) -> None:
        super().__init__(node)
        self._stream = spec.stream
        self._keys = () if isinstance(spec, Broadcast) else spec.keys
        self._port = context.port
        self._target_key = context.target_key
        self._entry: Operator = self
        if context.partials_of is not None:
            self._entry = CombineOperator(context.partials_of, context.counters)
            self._entry.after.append(self)

    @override
    def side(self, number: int) -> Operator:
        return self._entry

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        require_keys(self.node, self._stream, self._target_key, rows)
        self._port.write(self._stream, rows, self._keys)


class CombineOperator(Operator):
    """Turns messages into partial results of a window, before the ``partition_by`` that writes them.

    ``plan.combining`` says for which windows these give the same results.
    """

    def __init__(self, window: Node, counters: Counters) -> None:
        """Errors name the window's node."""
        super().__init__(window)
        if not isinstance(window.operator, Window):
            raise TypeError(f"step {window.id!r} isn't a window")
        self._window = mergeable_window(window, window.operator, counters)

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self.emit(self._window.combine(rows))


def require_keys(node: Node, target: str, key: Sequence[str], rows: pl.DataFrame) -> None:
    """Raise if a row for a target that replaces rows by key has a null in it. To a database no null equals another."""
    for name in key:
        if missing := rows.get_column(name).null_count():
            raise DataError(
                f"step {node.id!r} ({node.location}) sends rows without a key to {target!r}: "
                f"{name!r} is null in {missing} of {rows.height}",
                hint=f"leave them out before it: .filter(pl.col({name!r}).is_not_null())",
            )
