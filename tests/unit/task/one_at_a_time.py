"""The operators of one task, driven by hand: as batches, and as one message at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

import headrace as hr
from headrace.core.ids import SSP, TaskName
from headrace.plan.chain_plan import ChainPlan, chain_plan
from headrace.plan.model import Plan, StagePlan
from headrace.plan.planner import plan
from headrace.stores.versions import VersionedTable
from headrace.systems.base import StreamInfo
from headrace.task.calls import Calls
from headrace.task.event_time import NEVER, UNHEARD, Progress, TimesCheckpoint
from headrace.task.metrics import TaskMetrics
from headrace.task.operators.base import Arrival
from headrace.task.scope import TaskScope
from headrace.task.task import Chain
from simulator.one_at_a_time import Record, Rows, Written, hand_on_each_row, heard_again, without_meetings


def stage_of(app: hr.App, *inputs: str) -> tuple[Plan, StagePlan]:
    """The stage that reads these inputs, of one partition each, and the plan that it is in."""
    planned = plan(app.graph(), {name: StreamInfo(name, 1) for name in inputs})
    (stage,) = (stage for stage in planned.stages if set(stage.inputs) & set(inputs))
    return planned, stage


def plan_of(app: hr.App, *inputs: str) -> ChainPlan:
    """The operators of the stage that reads these inputs, of one partition each."""
    return chain_plan(*stage_of(app, *inputs))


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


class Restarted:
    """A task that begins again from commits, and what it has heard of rows and of the clock."""

    def __init__(self, app: hr.App, *inputs: str) -> None:
        planned, stage = stage_of(app, *inputs)
        self.plan = chain_plan(planned, stage)
        self._scope = TaskScope.of(planned, stage, stage.tasks[0])
        self._inputs = inputs
        self._heard = Record()
        self._changes: dict[str, list[bytes]] = defaultdict(list)
        self.written = Written()
        self._chain = self._made()

    def _made(self) -> Chain:
        return Chain(self.plan, self.written, TaskMetrics(), Calls(lambda: None))

    def begin(self, now_ms: int) -> None:
        """The first life begins, when the clock shows this."""
        self.tell_time(now_ms)
        self._heard.begin(self._scope.name)
        self._chain.begin(self._scope.name)

    def restart(self, now_ms: int) -> None:
        """Commit, and begin another life from that, when the clock shows this."""
        times = self._chain.save(TimesCheckpoint(watermark=NEVER, partitions=[]), self._scope)
        for id_, store in self._chain.stores().items():
            self._changes[id_] += store.take_changes(1)
        self._chain = self._made()
        for id_, store in self._chain.stores().items():
            for change in self._changes[id_]:
                store.apply(change)
        unheard = dict.fromkeys(self._inputs, UNHEARD)
        self._heard.load(times, unheard, self._scope)
        self._chain.load(times, unheard, self._scope)
        self.begin(now_ms)

    def rows(self, stream: str, rows: pl.DataFrame) -> None:
        arrival = Arrival(SSP.of(f"log.{stream}", 0), 0, rows.height, rows.height)
        self._heard.process(stream, rows, arrival)
        self._chain.process(stream, rows, arrival)

    def tell_time(self, now_ms: int) -> None:
        self._heard.tell_time(now_ms)
        self._chain.tell_time(now_ms)

    def clock(self, now_ms: int) -> None:
        self._heard.on_time(now_ms)
        self._chain.on_time(now_ms)

    def one_at_a_time(self) -> Rows:
        """What it would have written one message at a time."""
        return heard_again(self.plan, self._heard.take()[0])
