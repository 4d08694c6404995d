"""The same operators, one message at a time: what each app's results are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

import headrace as hr
from headrace.core.ids import SSP, TaskName
from headrace.plan.chain_plan import ChainPlan, chain_plan
from headrace.plan.order import Order
from headrace.plan.planner import plan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.chain import Chain
from headrace.runtime.event_time.watermark import Progress
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.base import Operator
from headrace.runtime.operators.provenance import Arrival
from headrace.stores.versions import VersionedTable
from headrace.systems.base import StreamInfo


def plan_of(app: hr.App, *inputs: str) -> ChainPlan:
    """The operators of the stage that reads these inputs, of one partition each."""
    graph = app.graph()
    planned = plan(graph, {name: StreamInfo(name, 1) for name in inputs})
    (stage,) = (stage for stage in planned.stages if set(stage.inputs) & set(inputs))
    return chain_plan(planned, stage)


@dataclass
class Written:
    """A port that keeps all rows by stream, and all streams in the order of writing."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    batches: int = 0

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        self.batches += 1
        self.rows.setdefault(stream, []).extend(rows.select(sorted(rows.columns)).to_dicts())


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

    def state(self) -> dict[str, Any]:
        keys = pl.DataFrame({"k": range(-2, 40)})
        return {
            id_: table.get_rows(keys, found="found").to_dicts()
            for id_, table in self.chain.tables._tables.items()
            if not isinstance(table, VersionedTable)
        }


class OneAtATime(Flow):
    """A task whose operators hand on each row alone, all the way, before the next one."""

    def __init__(self, plan: ChainPlan) -> None:
        order = Order(branches=plan.order.branches, inputs=plan.order.inputs)
        super().__init__(replace(plan, order=order))
        for operator in self.chain._all:
            _hand_on_each_row(operator)

    def rows(self, stream: str, rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            super().rows(stream, row)


def _hand_on_each_row(operator: Operator) -> None:
    def emit(rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            for after in operator.after:
                after.receive(row)

    def emit_aside(output: str, rows: pl.DataFrame) -> None:
        for row in rows.iter_slices(1):
            for after in operator.aside.get(output, ()):
                after.receive(row)

    operator.emit = emit  # type: ignore[method-assign]
    operator.emit_aside = emit_aside  # type: ignore[method-assign]
