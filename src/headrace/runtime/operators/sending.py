"""The operator with which rows leave a task: partition_by, broadcast, send_to."""

from __future__ import annotations

import polars as pl
from typing_extensions import override

from headrace.api.specs import Node
from headrace.api.steps import Broadcast, PartitionBy, SendTo
from headrace.runtime.operators.base import Operator, Port


class SendOperator(Operator):
    """Writes rows to a stream: to the partitions of their keys, or to the task's own.

    A broadcast writes to the task's own partition too: it is the readers that read all of them.
    """

    def __init__(self, node: Node, spec: PartitionBy | SendTo | Broadcast, port: Port) -> None:
        super().__init__(node)
        self._stream = spec.stream
        self._keys = () if isinstance(spec, Broadcast) else spec.keys
        self._port = port

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        self._port.write(self._stream, rows, self._keys)
