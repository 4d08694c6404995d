"""The join with a table of versions: each message finds the row as it was at the message's time.

If flows of this stage fill the table, messages wait in the task's state until the watermark has passed their times.
By then every version that counts for them has arrived, in whatever order, and they are looked up and leave, earliest
first. If side inputs fill the table, nothing says that all versions have arrived, so messages are looked up at once, in
what has been read so far. A message that is older than the versions that are kept is counted as late and dropped; one
that is older than the watermark, but not by so much, is looked up at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.api.operators.table import TableJoin
from headrace.api.specs import Node
from headrace.runtime.event_time.limits import StepTime
from headrace.runtime.event_time.watermark import FOREVER, NEVER
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.build_context import BuildContext
from headrace.runtime.operators.joins.key_lookup import FOUND, LookupColumns
from headrace.runtime.operators.provenance import Numbers
from headrace.stores.base import StateStore
from headrace.stores.conform import conformed
from headrace.stores.lots import in_lots
from headrace.stores.runs import Runs
from headrace.stores.versions import VersionedTable

_TIME = "__time"
_EMITTED_ROWS_MAX = 1 << 17


class TableAsOf(Operator):
    """A join with a table of versions."""

    def __init__(self, node: Node, spec: TableJoin, table: VersionedTable, context: BuildContext) -> None:
        super().__init__(node)
        if spec.time is None:
            raise ValueError("a table of versions is read as of a time")
        (left,) = context.inputs
        self._table = table
        self._counters = context.counters
        self._waits = context.tables.filled_by_flows(spec.table)
        self._time = StepTime(f"join {node.id!r}", spec.time, left.columns[spec.time.column])
        self._left = list(left.columns)
        self._columns = LookupColumns(spec, left, table.key, table.values)
        held = f"{node.id}.held"
        kept: dict[str, pl.DataType] = {**left.columns, _TIME: pl.Int64()}
        self._held = Runs(
            held,
            _TIME,
            lambda run: run.sort(_TIME, maintain_order=True),
            list(spec.keys),
            lambda rows: conformed(held, rows, kept, {*spec.keys, _TIME}),
            form=spec.state_forms(node.id, context.inputs)[held],
        )
        self._watermark = NEVER
        table.used_by(node.id)

    @override
    def stores(self) -> Sequence[StateStore]:
        return (self._held,) if self._waits else ()

    @property
    @override
    def owes(self) -> bool:
        return self._held.earliest is not None

    @override
    def on_batch(self, rows: pl.DataFrame) -> None:
        timed = self._time.added(rows, _TIME)
        times = timed.get_column(_TIME)
        numbers: Numbers = range(timed.height)
        lowest = times.min()
        late = isinstance(lowest, int) and lowest < self._table.bound
        if late or self._waits:
            now = times >= self._table.bound if late else pl.repeat(True, timed.height, eager=True)
            self._counters.count("late", timed.height - int(now.sum()))
            if self._waits:
                self._held.add(timed.filter(now & (times >= self._watermark)))
                now &= times < self._watermark
            timed, numbers = timed.filter(now), now.arg_true()
        self._join(timed, numbers)

    @override
    def on_watermark(self, watermark: int) -> None:
        self._release(watermark)
        self._watermark = watermark
        self._table.pass_by(self.node.id, watermark)

    @override
    def on_end(self) -> None:
        self._release(FOREVER)

    @override
    def resume(self, watermark: int) -> None:
        self._watermark = watermark
        self._table.pass_by(self.node.id, watermark)

    def _release(self, watermark: int) -> None:
        """Emit the messages that are older than the watermark."""
        if watermark == NEVER or not self._waits:
            return
        for stop in (*self._held.crowd(NEVER, watermark - 1).stops(), watermark - 1):
            for part in in_lots(self._held.take_parts(stop)):
                for rows in part.sort(_TIME, maintain_order=True).iter_slices(_EMITTED_ROWS_MAX):
                    self._join(rows)

    def _join(self, timed: pl.DataFrame, numbers: Numbers | None = None) -> None:
        """Look messages up; ``numbers`` are theirs in the batch that is processed."""
        if not timed.height:
            return
        keys, times = timed.select(self._columns.keys), timed.get_column(_TIME).to_numpy()
        found = self._table.as_of(keys, times, found=FOUND)
        joined, kept = self._columns.joined(timed.select(self._left), found)
        if numbers is not None:
            self.provenance.became(lambda: np.asarray(numbers)[np.asarray(kept)])
        self.emit(joined)
