"""Apps with many tasks in one container: how long they take to start, what they cost while they idle, descriptors.

``python -m bench.wide 1000`` runs one app in this process and prints one JSON object; ``--shuffle`` puts a shuffle into
the app, to as many partitions, and ``--window`` a windowed count. Nothing is written to the input while the app idles.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr
from headrace.metadata.opening import open_metadata
from headrace.runners.checked import check_run
from headrace.runners.coordination.messages import AppStatus, TaskStatus
from headrace.runners.local import run_local

COLUMNS = {"member": pl.String, "ts": pl.Int64}
IDLE_S = 10.0
TIMEOUT_S = 600.0


def wide_app(home: Path, partitions: int, *, shuffle: bool, window: bool) -> hr.App:
    """Declare an app whose input, and whose intermediate stream if it has one, has so many partitions."""
    app = hr.App("wide", home=str(home))
    rows = app.input("in", COLUMNS, event_time="ts")
    if shuffle:
        rows = rows.partition_by("member", id="by-member", partitions=partitions)
    if window:
        counted = rows.window(hr.tumbling("10s"), key="member", id="w").agg(n=hr.count())
        counted.send_to(app.output("out"))
    else:
        rows.filter(pl.col("ts") >= 0).send_to(app.output("out"))
    return app


def _runs(task: TaskStatus) -> bool:
    return all(one.position is not None for one in task.inputs.values())


def cpu_s() -> float:
    """Return the processor time of this process."""
    return time.process_time()


class Observer:
    """Follows the run; drains it when it has been idle for long enough."""

    def __init__(self, tasks: int, idle_s: float) -> None:
        self.began, self.began_cpu = time.monotonic(), cpu_s()
        self._tasks = tasks
        self._idle_s = idle_s
        self._running: tuple[float, float] | None = None
        self._settled: tuple[float, float] | None = None
        self._draining = 0.0
        self.found: dict[str, float] = {}

    def __call__(self, status: AppStatus) -> None:
        """Take a status of the app."""
        now, cpu = time.monotonic(), cpu_s()
        if self._running is None:
            tasks = status.tasks
            if len(tasks) == self._tasks and all(_runs(task) for task in tasks):
                self._running = now, cpu
                self.found |= {"start_s": now - self.began, "start_cpu_s": cpu - self.began_cpu}
                self.found["descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
                self.found["threads"] = threading.active_count()
                self.found["rss_mb"] = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
        elif self._settled is None:
            if now - self._running[0] >= 2:
                self._settled = now, cpu
        elif not self._draining and now - self._settled[0] >= self._idle_s:
            self.found["idle_cores"] = (cpu - self._settled[1]) / (now - self._settled[0])
            self._draining = now
            os.kill(os.getpid(), signal.SIGTERM)

    def ended(self) -> None:
        """The run is over."""
        self.found["drain_s"] = time.monotonic() - self._draining


def measured(partitions: int, *, shuffle: bool, window: bool, idle_s: float) -> dict[str, float]:
    """Start, idle and drain an app in this process."""
    with TemporaryDirectory(prefix="headrace-wide-") as folder:
        home = Path(folder)
        hr.streams.create_stream("in", partitions=partitions, schema=COLUMNS, home=str(home))
        app = wide_app(home, partitions, shuffle=shuffle, window=window)
        observer = Observer(partitions * (2 if shuffle else 1), idle_s)
        with closing(open_metadata(home)) as metadata:
            run_local(check_run(app.graph(), metadata), observer)
        observer.ended()
        return {"partitions": partitions, **{name: round(value, 3) for name, value in observer.found.items()}}


def measured_apart(partitions: int, *, shuffle: bool) -> dict[str, float]:
    """``measured``, in a process of its own. Raises ``TimeoutExpired`` if that takes too long."""
    command = [sys.executable, "-m", "bench.wide", str(partitions), *(["--shuffle"] if shuffle else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what one app costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partitions", type=int)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--window", action="store_true")
    parser.add_argument("--idle", type=float, default=IDLE_S)
    options = parser.parse_args(arguments)
    print(
        json.dumps(measured(options.partitions, shuffle=options.shuffle, window=options.window, idle_s=options.idle)),
        flush=True,
    )


if __name__ == "__main__":
    main()
