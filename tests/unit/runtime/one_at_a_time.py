"""The operators of one task, driven by hand: as batches, and as one message at a time."""

from __future__ import annotations

from typing import Any

import polars as pl

import headrace as hr
from headrace.core.ids import SSP, TaskName
from headrace.plan.chain_plan import ChainPlan, chain_plan
from headrace.plan.planner import plan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.chain import Chain
from headrace.runtime.event_time.watermark import Progress
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.provenance import Arrival
from headrace.stores.versions import VersionedTable
from headrace.systems.base import StreamInfo
from simulator.one_at_a_time import Written, hand_on_each_row, without_meetings


def plan_of(app: hr.App, *inputs: str) -> ChainPlan:
    """The operators of the stage that reads these inputs, of one partition each."""
    planned = plan(app.graph(), {name: StreamInfo(name, 1) for name in inputs})
    (stage,) = (stage for stage in planned.stages if set(stage.inputs) & set(inputs))
    return chain_plan(planned, stage)


class Flow:
    """A task's operators, and what they have written."""

    def __init__(self, plan: ChainPlan) -> None:
        self.written = Written()
        self.metrics = TaskMetrics()
        self.chain = Chain(plan, self.written, self.metrics, Calls(lambda: None))
        self.chain.tell_time(1000)
        self.chain.begin(TaskName("task", 0))

    def rows(self, stream: str, rows: pl.DataFrame) -> None:
        self.chain.process(stream, rows, Arrival(SSP.of(f"log.{stream}", 0), 0, rows.height, rows.height))

    def watermark(self, **watermarks: int) -> None:
        self.chain.advance({stream: Progress(watermark) for stream, watermark in watermarks.items()})

    def clock(self, now_ms: int) -> None:
        self.chain.on_time(now_ms)

    def tables(self, keys: pl.DataFrame) -> dict[str, Any]:
        """What the tables have under these keys."""
        return {
            id_: table.get_rows(keys, found="found").to_dicts()
            for id_, table in self.chain.tables.local.items()
            if not isinstance(table, VersionedTable)
        }


class OneAtATime(Flow):
    """A task whose operators hand on each row alone, all the way, before the next one."""

    def __init__(self, plan: ChainPlan) -> None:
        super().__init__(without_meetings(plan))
        hand_on_each_row(self.chain)

    def rows(self, stream: str, rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            super().rows(stream, row)
