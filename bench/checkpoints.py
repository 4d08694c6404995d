"""The cost of a checkpoint by number of tasks, and by size of the state with a constant number of changes.

The apps run in this process (``run_local``), so only the engine is measured. A window of a day keeps all keys in the
state. First the state is built. Then a thousand messages arrive several times a second, and the durations count that
tasks report for their checkpoints from then on.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

import headrace as hr
from bench.measure import median
from bench.turns import folder
from headrace.coordinator.messages import AppStatus
from headrace.life.metadata import SqliteMetadata
from headrace.run.local import run_local
from headrace.run.planning import check_run

SCHEMA = {"member": pl.Int64, "ts": pl.Int64}
TRICKLE = 1000
SAMPLES = 6
LOOKS_MAX = 240
"""The limit of status reports: a minute, at four a second. After that the measurement ends with what it has."""


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Median duration of one task's checkpoint, and the sum over the app's stateful tasks."""

    tasks: int
    keys: int
    task_ms: float
    all_ms: float
    checkpoints: int


@dataclass(slots=True)
class _Trickle:
    """A callback for the app's status, a few times a second. It feeds the app, collects durations, and ends it."""

    writer: hr.streams.StreamWriter
    keys: int
    filled: Callable[[AppStatus], bool]
    durations: dict[str, dict[int, float]] = field(default_factory=dict)
    looks: int = 0
    settled: int = 0

    def __call__(self, status: AppStatus) -> None:
        self.looks += 1
        if not self.filled(status):
            return
        self.settled += 1
        for task in status.tasks:
            if task.checkpoint is not None and task.name.startswith("by-member") and self.settled > 8:
                seen = self.durations.setdefault(task.name, {})
                seen[task.checkpoint.version] = task.checkpoint.duration_ms
        if self.looks >= LOOKS_MAX or (self.durations and min(map(len, self.durations.values())) >= SAMPLES):
            self.writer.seal()
            return
        self.writer.write(_messages(self.looks * TRICKLE % self.keys, TRICKLE, self.keys))


def checkpoint_cost(base: Path, tasks: int, keys: int) -> CheckpointCost:
    """Build a state of ``keys`` keys in ``tasks`` tasks, and measure checkpoints while few keys change."""
    with folder(base) as home:
        hr.streams.create_stream("changes", partitions=1, schema=SCHEMA, home=home)
        with hr.streams.StreamWriter("changes", home=home) as writer:
            for first in range(0, keys, 1 << 17):
                writer.write(_messages(first, min(1 << 17, keys - first), keys))
            trickle = _Trickle(writer, keys, lambda status: _rows(status, "by-member") >= keys)
            metadata = SqliteMetadata(home / "metadata.db")
            try:
                with redirect_stderr(io.StringIO()):
                    run_local(check_run(_app(home, tasks).graph(), metadata), trickle)
            finally:
                metadata.close()
    each = {task: list(seen.values()) for task, seen in trickle.durations.items()}
    if len(each) != tasks:
        raise AssertionError(f"{len(each)} of {tasks} tasks reported checkpoints")
    return CheckpointCost(
        tasks=tasks,
        keys=keys,
        task_ms=median([duration for seen in each.values() for duration in seen]),
        all_ms=sum(median(seen) for seen in each.values()),
        checkpoints=sum(map(len, each.values())),
    )


def _app(home: Path, tasks: int) -> hr.App:
    app = hr.App("bench-checkpoints", home=str(home))
    changes = app.input("changes", SCHEMA, event_time="ts", lateness="1s")
    counted = (
        changes.partition_by("member", id="by-member", partitions=tasks)
        .window(hr.tumbling("1d"), key="member", id="per-day")
        .agg(changes=hr.count())
    )
    counted.send_to(app.output("counts", partitions=tasks))
    return app


def _messages(first: int, count: int, keys: int) -> pl.DataFrame:
    number = pl.int_range(first, first + count, eager=True)
    return pl.DataFrame({"member": number % keys, "ts": pl.repeat(1_700_000_000_000, count, eager=True)})


def _rows(status: AppStatus, stage: str) -> int:
    return sum(task.rows_in for task in status.tasks if task.name.startswith(stage))
