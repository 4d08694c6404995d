"""The cost of a message in a low-level task, compared with ``map`` and a function that does nothing.

``python -m bench.tasks``. Rows pass through the operators of one task, without streams, changelogs and checkpoints, so
only the call of the user's function and its overhead are measured. Seconds are processor time, so that other load on
the machine matters less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

import headrace as hr
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import chain_plan
from headrace.plan.planner import plan
from headrace.runtime.calls.lanes import Calls
from headrace.runtime.chain import Chain
from headrace.runtime.event_time.watermark import Progress
from headrace.runtime.metrics import TaskMetrics
from headrace.systems.base import StreamInfo

ROWS, BATCH, KEYS, REPEATS = 200_000, 5_000, 10_000, 3
COLUMNS = {"member": pl.String, "ts": pl.Int64}


class Nothing(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        pass


class Sending(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.send("out", message)


class GetPut(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        before = self.seen.get(message["member"])
        self.seen.put(message["member"], {"n": 1 if before is None else before["n"] + 1})


class Timing(hr.tasks.Task):
    def process(self, message: Any, out: hr.tasks.Out) -> None:
        out.set_timer(message["member"], message["ts"] + 1000)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("out", {"member": timer.key, "ts": timer.time})


class InBatches(hr.tasks.Task):
    seen = hr.tasks.Store(key={"member": pl.String}, value={"n": pl.Int64})

    def process_batch(self, rows: pl.DataFrame, out: hr.tasks.Out) -> None:
        counts = rows.group_by("member").agg(n=pl.len().cast(pl.Int64))
        before = self.seen.get_rows(counts.select("member")).get_column("n").fill_null(0)
        self.seen.put_rows(counts.with_columns(n=pl.col("n") + before))


class Port:
    """Takes the output of the task."""

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """Drop the rows."""


def with_task(task: hr.tasks.Task) -> Callable[[hr.App, hr.Stream], None]:
    def declare(app: hr.App, source: hr.Stream) -> None:
        app.task(task, {"in": source}, {"out": COLUMNS}, id="task")["out"].send_to(app.output("out"))

    return declare


def with_map(app: hr.App, source: hr.Stream) -> None:
    source.map(lambda row: row, COLUMNS).send_to(app.output("out"))


def seconds(declare: Callable[[hr.App, hr.Stream], None], rows: pl.DataFrame) -> float:
    """Return the processor time that the rows take."""
    app = hr.App("bench")
    declare(app, app.input("in", COLUMNS, event_time="ts"))
    planned = plan(app.graph(), {"in": StreamInfo("in", 1)})
    chain = Chain(chain_plan(planned, planned.stages[0]), Port(), TaskMetrics(), Calls(lambda: None))
    chain.tell_time(1)
    chain.begin(TaskName("in", 0))
    began = time.process_time()
    for batch in rows.iter_slices(BATCH):
        chain.process("in", batch)
        chain.advance({"in": Progress(int(batch["ts"][-1]))})
    return time.process_time() - began


def main() -> None:
    """Print the best of several runs of each task."""
    members = np.random.default_rng(1).integers(0, KEYS, ROWS)
    rows = pl.DataFrame({"member": [f"m{n}" for n in members], "ts": np.arange(ROWS) // 10})
    tasks = {
        "map": with_map,
        "process: nothing": with_task(Nothing()),
        "process: send": with_task(Sending()),
        "process: get and put": with_task(GetPut()),
        "process: set a timer": with_task(Timing()),
        "process_batch: get_rows and put_rows": with_task(InBatches()),
    }
    for name, declare in tasks.items():
        best = min(seconds(declare, rows) for _ in range(REPEATS))
        print(f"{name:38} {ROWS / best / 1000:7.0f} k messages/s  {best / ROWS * 1e6:5.2f} us a message")


if __name__ == "__main__":
    main()
