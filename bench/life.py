"""Runs one task in a process of its own, for ``restarts`` and ``memory``: ``python -m bench.life``.

It prints one JSON object a line for each event: the task runs; it has processed its first batch; everything that it
should read is committed; it has ended. Each has the seconds since the start of the task, and the current and the peak
memory of the process. The process ends when its input ends, cleanly at SIGTERM, when it is killed, or at once when the
process that measures it ends for any reason.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
from pathlib import Path
from typing import get_args

from typing_extensions import override

import headrace as hr
from bench.state_apps import Shape, state_app
from headrace.core.clock import WallClock
from headrace.life.metadata import Generations, MetadataStore, SqliteMetadata
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.run.planning import gather_facts, prepare_streams
from headrace.systems.startpoints import Grant
from headrace.task.container import Container
from headrace.task.state import task_state

NEVER_BYTES = 1 << 62
"""A limit on the changelog that is never reached, so that no snapshot is taken."""
_PR_SET_PDEATHSIG = 1


class _Observed(Container):
    """A container that reports events between its turns."""

    rows = 0
    """The number of messages to be committed."""
    began = 0.0
    _reported: frozenset[str] = frozenset()
    _read_ms: float | None = None

    @override
    def turn(self) -> float:
        """Run one turn. The first one starts when every task is running."""
        self._report_once("running")
        pause = super().turn()
        read = sum(host.metrics.rows_in for host in self.hosts)
        if read:
            self._report_once("first")
        if read >= self.rows:
            now = WallClock().monotonic_ms()
            self._read_ms = now if self._read_ms is None else self._read_ms
            if all(host.committed_ms is not None and host.committed_ms > self._read_ms for host in self.hosts):
                self._report_once("committed")
        return pause

    def _report_once(self, event: str) -> None:
        if event not in self._reported:
            self._reported |= {event}
            report(event, self.began)


def report(event: str, began: float) -> None:
    """Print an event."""
    line = {
        "event": event,
        "seconds": time.perf_counter() - began,
        "rss_mb": memory_mb("VmRSS"),
        "peak_mb": memory_mb("VmHWM"),
    }
    print(json.dumps(line), flush=True)


def run_tasks(app: hr.App, home: Path, rows: int) -> None:
    """Run the app's tasks until they end, or until SIGTERM."""
    graph = app.graph()
    planned = plan(graph, gather_facts(graph))
    prepare_streams(planned)
    metadata = SqliteMetadata(home / "metadata.db")
    try:
        run_plan(planned, metadata, rows)
    finally:
        metadata.close()


def run_plan(planned: Plan, metadata: MetadataStore, rows: int) -> None:
    """Run all tasks until they end, or until SIGTERM."""
    tasks = [task.name for stage in planned.stages for task in stage.tasks]
    generations = Generations(metadata, planned.graph.app)
    began = time.perf_counter()
    container = _Observed(planned, tasks, lambda task: Grant(generation=generations.issue([task])[task]), WallClock())
    container.rows, container.began = rows, began
    signal.signal(signal.SIGTERM, lambda *_: container.drain())
    try:
        container.run()
    finally:
        container.close()
    report("ended", began)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, because a killed parent can't do it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it ended before the call
        raise SystemExit(f"process {parent}, which should measure this one, has ended")


def memory_mb(field: str) -> float:
    """Return the current (``VmRSS``) or the peak (``VmHWM``) memory of this process."""
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(kilobytes) / 1024


def main() -> None:
    """Run the task that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m bench.life", description=__doc__)
    parser.add_argument("shape", choices=get_args(Shape))
    parser.add_argument("home", type=Path)
    parser.add_argument("rows", type=int, help="how many messages must be committed")
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="end when this process ends")
    parser.add_argument("--snapshot-after", type=int, default=NEVER_BYTES, metavar="BYTES")
    options = parser.parse_args()
    end_with(options.parent)
    task_state.SNAPSHOT_AFTER_BYTES = options.snapshot_after
    run_tasks(state_app(options.shape, options.home), options.home, options.rows)


if __name__ == "__main__":
    main()
