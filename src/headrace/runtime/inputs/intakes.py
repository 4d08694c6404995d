"""All inputs of one task: decode, check and process frames and tables when their turn comes."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.ids import SSP, Offset
from headrace.core.log import logger
from headrace.runtime.inputs.envelope import RowBatch
from headrace.runtime.inputs.intake import DeadLetters, Intake
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.provenance import Arrival
from headrace.runtime.task import Task

_log = logger(__name__)


class Intakes:
    """The intakes of one attempt: everything that the task processes comes through here."""

    def __init__(self, task: Task, dead_letters: DeadLetters, metrics: TaskMetrics) -> None:
        self._task = task
        self._metrics = metrics
        tables, partial = task.chain.tables, task.scope.partial
        self._intakes = {
            ssp: Intake(
                spec,
                metrics,
                dead_letters,
                keys=tables.keys_of(spec.id),
                placing=task.scope.placing.get(spec.id),
                added=task.scope.added.get(spec.id, ()),
                partial=spec.id in partial,
            )
            for ssp, spec in task.specs.items()
        }

    def begin_at(self, ssp: SSP, since_ms: int) -> None:
        """Leave out what has an older event time, and count it."""
        self._intakes[ssp].since_ms = since_ms

    def frames(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes], after: Offset) -> None:
        """Process user frames of a partition, all their rows at once. ``after`` is the offset after the last frame."""
        begin = 0
        for rows, heights in self._intakes[ssp].decode(ssp, offsets, payloads):
            each = list(offsets[begin : begin + len(heights)])
            begin += len(heights)
            end = after if begin == len(offsets) else offsets[begin]
            self._task.rows(Arrival(ssp, each[0], end, rows.height, each, heights), rows)

    def table(self, table: RowBatch) -> None:
        """Process rows of a row system."""
        for unread in table.unread:
            self._metrics.count(unread.counter, unread.count)
            self._metrics.warnings.add(_log, f"{table.ssp}: {unread.warning}", shard=table.shard or None)
        if not table.rows.height and not table.bad:
            return  # only the position moves
        accepted = self._intakes[table.ssp].accept(table.ssp, table.rows, table.offset, table.bad, table.place)
        self._metrics.bytes_in += table.bytes
        self._metrics.bytes_of[table.ssp] += table.bytes
        offsets = table.offsets if accepted.height == table.rows.height else None
        arrival = Arrival(table.ssp, table.offset, table.next, accepted.height, shard=table.shard, each=offsets)
        self._task.rows(arrival, accepted)
