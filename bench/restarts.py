"""How long a task takes from its start until it runs, by size of its state.

Each incarnation of the task is a process of its own (``bench.life``), with the real log, RocksDB and metadata. The
state is built from messages, one for each key. Then the process is killed (SIGKILL) or stopped (SIGTERM), and a new
one starts on the same folders. In other cases the local state is deleted before the start, and is restored from the
whole changelog, or from a snapshot and the changelog after it. The time is measured from the construction of the
container until every task runs. The start of Python and its imports, which don't depend on the state, aren't included.
The operating system's cache is warm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.life import NEVER_BYTES
from bench.measure import median
from bench.state_apps import Shape, create_inputs, write
from bench.turns import folder

TRICKLE = 1000
"""The number of messages after each start, which show that the task works."""
REPEATS = 3


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Medians over starts: seconds until the task runs, and until its first batch is processed; memory when running."""

    shape: Shape
    keys: int
    case: str
    seconds: float
    first_s: float
    rss_mb: float
    runs_s: list[float]


@dataclass(frozen=True, slots=True)
class _Start:
    seconds: float
    first_s: float
    rss_mb: float


class _Task:
    """One task, and its incarnations one after the other."""

    def __init__(self, shape: Shape, keys: int, home: Path) -> None:
        self._shape: Shape = shape
        self._keys = keys
        self._home = home
        self._written = 0
        create_inputs(shape, home)

    def build(self) -> None:
        """Build and commit the whole state in the first incarnation, then kill it."""
        self._write(self._keys)
        with task_process(self._shape, self._home, self._keys) as wait_for:
            wait_for("committed")

    def start(self, *, rows: int = TRICKLE, clean: bool = False, snapshot_after: int = NEVER_BYTES) -> _Start:
        """Start another incarnation, and kill or cleanly stop it when ``rows`` more messages are committed."""
        self._write(rows)
        with task_process(self._shape, self._home, rows, snapshot_after, clean=clean) as wait_for:
            running = wait_for("running")
            first = wait_for("first")
            wait_for("committed")
        return _Start(running["seconds"], first["seconds"], running["rss_mb"])

    def snapshot(self) -> None:
        """Take a snapshot, and change a tenth of the state after it."""
        self.start(snapshot_after=1, clean=True)
        if not any((self._home / "snapshots").rglob("*.sst")):
            raise AssertionError("no snapshot was taken")
        self.start(rows=self._keys // 10)

    def wipe(self) -> None:
        """Delete the local state."""
        shutil.rmtree(self._home / "state")

    def _write(self, rows: int) -> None:
        write("changes", self._home, self._written % self._keys, rows)
        self._written += rows


def restart_costs(base: Path, shape: Shape, keys: int, say: Callable[[str], None]) -> list[RestartCost]:
    """Build a state of ``keys`` keys, and measure a start in every case."""
    costs = []

    def take(case: str, starts: list[_Start]) -> None:
        seconds = [start.seconds for start in starts]
        first, memory = median([s.first_s for s in starts]), median([s.rss_mb for s in starts])
        costs.append(RestartCost(shape, keys, case, median(seconds), first, memory, seconds))
        say(f"{shape}, {keys:,} keys, {case}: {costs[-1].seconds:.3f} s")

    with folder(base) as home:
        task = _Task(shape, keys, home)
        task.build()
        take("killed", [task.start() for _ in range(REPEATS)])
        task.start(clean=True)
        take("stopped", [task.start(clean=True) for _ in range(REPEATS)])
        task.wipe()
        take("whole changelog", [task.start()])
        task.snapshot()
        task.wipe()
        take("snapshot and changelog", [task.start()])
    return costs


@contextmanager
def task_process(
    shape: Shape, home: Path, rows: int, snapshot_after: int = NEVER_BYTES, *, clean: bool = False
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Run the task in a process, and yield a function that waits for an event. At the end, kill or stop the process."""
    command = [sys.executable, "-m", "bench.life", shape, str(home), str(rows)]
    command += ["--parent", str(os.getpid()), "--snapshot-after", str(snapshot_after)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_for(event: str) -> dict[str, Any]:
        for line in process.stdout or ():
            found: dict[str, Any] = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"the task of shape {shape!r} ended with {process.wait()} before it was {event}")

    try:
        yield wait_for
        if clean:
            process.terminate()
            wait_for("ended")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
