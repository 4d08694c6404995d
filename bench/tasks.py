"""The cost of a message in a low-level task, compared with functions of rows and a task that does nothing.

``python -m bench.tasks``. Rows pass through the operators of one task, without streams, changelogs and checkpoints, so
only the call of the user's function and its overhead are measured. With ``--app``, each task is a whole app in this
process: it reads its messages from the log, writes results there, and commits each second. What its start and end take
is left out: the figure is the difference between a long and a short run.

Seconds are processor time of all threads, so that other load on the machine matters less. To compare two versions of
Headrace, run both in turn, with ``PYTHONPATH``. ``--only`` chooses tasks by a part of their names.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl

import headrace as hr
from bench.pipelines import COUNTS, Count
from headrace.core.ids import TaskName
from headrace.plan.chain_plan import chain_plan
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo
from headrace.task.calls import Calls
from headrace.task.event_time import Progress
from headrace.task.metrics import TaskMetrics
from headrace.task.task import Chain

ROWS, BATCH, KEYS = 200_000, 5_000, 10_000
APP_ROWS, START_ROWS = 1_000_000, 100_000
"""The messages of a long and of a short run of a whole app."""
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


Columns = Mapping[str, Any]
Declare = Callable[[hr.App, hr.Stream], None]


def with_task(task: hr.tasks.Task, columns: Columns = COLUMNS, **policy: Any) -> Declare:
    def declare(app: hr.App, source: hr.Stream) -> None:
        app.task(task, {"in": source}, {"out": columns}, id="task", **policy)["out"].send_to(app.output("out"))

    return declare


def with_map(app: hr.App, source: hr.Stream) -> None:
    source.map(lambda row: row, COLUMNS).send_to(app.output("out"))


def with_map_to_new(app: hr.App, source: hr.Stream) -> None:
    source.map(lambda row: {"member": row["member"], "ts": row["ts"] + 1}, COLUMNS).send_to(app.output("out"))


def with_filter(app: hr.App, source: hr.Stream) -> None:
    source.filter(lambda row: row["ts"] % 2 == 0).send_to(app.output("out"))


def with_flat_map(app: hr.App, source: hr.Stream) -> None:
    source.flat_map(lambda row: [row], COLUMNS).send_to(app.output("out"))


TASKS: dict[str, Declare] = {
    "filter": with_filter,
    "flat_map": with_flat_map,
    "map": with_map,
    "map: a new dict": with_map_to_new,
    "process: nothing": with_task(Nothing()),
    "process: send": with_task(Sending()),
    "process: get and put": with_task(GetPut()),
    "process: get, put and send": with_task(Count(), COUNTS),
    "the same, on_error skip": with_task(Count(), COUNTS, on_error="skip"),
    "process: set a timer": with_task(Timing()),
    "process_batch: get_rows and put_rows": with_task(InBatches()),
}


def in_operators(declare: Declare, rows: pl.DataFrame) -> float:
    """Return the processor time that the rows take in the operators of a task."""
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


def in_app(declare: Declare, rows: pl.DataFrame) -> float:
    """Return the processor time of an app that reads the rows."""
    with TemporaryDirectory() as folder:
        app = hr.App("bench", home=folder)
        hr.streams.create_stream("in", partitions=1, schema=COLUMNS, home=Path(folder))
        declare(app, app.input("in", COLUMNS, event_time="ts"))
        with hr.streams.StreamWriter("in", home=Path(folder)) as writer:
            for batch in rows.iter_slices(BATCH):
                writer.write(batch)
            writer.seal()
        began = time.process_time()
        app.run(local=True, progress=False)
        return time.process_time() - began


def main() -> None:
    """Print the best of several runs of each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--app", action="store_true", help="measure whole apps")
    parser.add_argument("--only", default="", help="a part of the names of the tasks to measure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, help="the messages of a run")
    options = parser.parse_args()
    number = options.rows or (APP_ROWS if options.app else ROWS)
    members = np.random.default_rng(1).integers(0, KEYS, number)
    rows = pl.DataFrame({"member": [f"m{n}" for n in members], "ts": np.arange(number) // 10})
    for name, declare in TASKS.items():
        if options.only in name:
            repeats = range(options.repeats)
            if options.app:
                in_app(declare, rows[:START_ROWS])  # the first run imports what the others need
                pairs = [(in_app(declare, rows[:START_ROWS]), in_app(declare, rows)) for _ in repeats]
                start, whole = (min(seconds) for seconds in zip(*pairs, strict=True))
                best = (whole - start) / (number - START_ROWS)
            else:
                best = min(in_operators(declare, rows) for _ in repeats) / number
            print(f"{name:38} {1 / best / 1000:7.0f} k messages/s  {best * 1e6:5.2f} us a message", flush=True)


if __name__ == "__main__":
    main()
