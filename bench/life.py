"""One life of one task in a process of its own, for ``restarts`` and ``memory``: ``python -m bench.life``.

It prints, as one JSON object per line, when the task was running, when it had processed its first
batch, when all that it was to read was committed, and its end: the seconds since the start of the task, and what
the process had in memory then and at most. It ends when its input does, at SIGTERM (cleanly), by being killed, or
at once when the process that measures it has ended, however that did.
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

import headrace as hr
from bench.state_apps import Shape, state_app
from headrace.core.clock import WallClock
from headrace.metadata.generations import Generations
from headrace.metadata.sqlite import SqliteMetadata
from headrace.plan.planner import plan
from headrace.runners.facts import gather_facts
from headrace.runners.prepare import prepare_streams
from headrace.runtime import state
from headrace.runtime.container import Container

NEVER_BYTES = 1 << 62
"""So much changelog that no snapshot is ever taken."""
_PR_SET_PDEATHSIG = 1


class _Observed(Container):
    """A container that notes what comes to pass between its turns."""

    rows = 0
    """So many messages are to be committed."""
    began = 0.0
    _told: frozenset[str] = frozenset()
    _read_ms: float | None = None

    def turn(self) -> float:
        """See ``Container``; the first one begins when every task is running."""
        self._tell("running")
        pause = super().turn()
        read = sum(host.metrics.rows_in for host in self.hosts)
        if read:
            self._tell("first")
        if read >= self.rows:
            now = WallClock().monotonic_ms()
            self._read_ms = now if self._read_ms is None else self._read_ms
            if all(host.committed_ms is not None and host.committed_ms > self._read_ms for host in self.hosts):
                self._tell("committed")
        return pause

    def _tell(self, event: str) -> None:
        if event not in self._told:
            self._told |= {event}
            tell(event, self.began)


def tell(event: str, began: float) -> None:
    """Say what has come to pass."""
    told = {
        "event": event,
        "seconds": time.perf_counter() - began,
        "rss_mb": _memory("VmRSS"),
        "peak_mb": _memory("VmHWM"),
    }
    print(json.dumps(told), flush=True)


def live(app: hr.App, home: Path, rows: int) -> None:
    """Run the app's tasks until they end or are told to."""
    graph = app.graph()
    planned = plan(graph, gather_facts(graph))
    prepare_streams(planned)
    tasks = [task.name for stage in planned.stages for task in stage.tasks]
    metadata = SqliteMetadata(home / "metadata.db")
    generations = Generations(metadata, graph.app)
    began = time.perf_counter()
    container = _Observed(planned, tasks, lambda task: generations.issue([task])[task], WallClock())
    container.rows, container.began = rows, began
    signal.signal(signal.SIGTERM, lambda *_: container.drain())
    try:
        container.run()
    finally:
        container.close()
        metadata.close()
    tell("ended", began)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent has ended: one that is killed has no time to."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it had ended before
        raise SystemExit(f"process {parent}, which was to measure this one, has ended")


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(kilobytes) / 1024


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.life", description=__doc__)
    parser.add_argument("shape", choices=get_args(Shape))
    parser.add_argument("home", type=Path)
    parser.add_argument("rows", type=int, help="how many messages are to be committed")
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="what it is not to outlive")
    parser.add_argument("--snapshot-after", type=int, default=NEVER_BYTES, metavar="BYTES")
    options = parser.parse_args()
    end_with(options.parent)
    state.SNAPSHOT_AFTER_BYTES = options.snapshot_after
    live(state_app(options.shape, options.home), options.home, options.rows)


if __name__ == "__main__":
    main()
