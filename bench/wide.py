"""Apps with many tasks in one container: how long they take to start, what they cost while they idle, descriptors.

``python -m bench.wide 1000`` runs one app in this process and prints one JSON object; ``--shuffle`` puts a shuffle into
the app, to as many partitions, and ``--window`` a windowed count. Nothing is written to the input while the app idles.
Then ``--busy 10`` writes a row to each partition four times a second, for ten seconds.
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
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from typing_extensions import override

import headrace as hr
from headrace.coordinator.messages import AppStatus, TaskStatus
from headrace.core.frame import decode_header
from headrace.core.ids import SSP, StreamId
from headrace.life.metadata import open_metadata
from headrace.run.local import run_local
from headrace.run.planning import check_run
from headrace.streams.writer import StreamWriter
from headrace.systems.base import Records, polled_to
from headrace.systems.log.system import LogSystem

COLUMNS = {"member": pl.String, "ts": pl.Int64}
IDLE_S = 10.0
SETTLED_S = 3.0
SETTLING_S_MAX = 90.0
"""How long no task has committed before the app counts as idle, and how long that is waited for."""
WRITES_A_SECOND = 4
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


class Shuffle:
    """The intermediate stream of the app, if it has one."""

    def __init__(self, home: Path) -> None:
        self._log = LogSystem(home / "streams")

    def _streams(self) -> list[str]:
        return [name for name in self._log.admin().list() if name.endswith("by-member")]

    def ends(self) -> dict[SSP, int]:
        """Where its partitions end now."""
        return {
            SSP(StreamId("log", name), partition): extent.upcoming
            for name in self._streams()
            for partition, extent in enumerate(self._log.admin().extents(name))
        }

    def control_frames(self, start: dict[SSP, int], stop: dict[SSP, int]) -> Counter[str]:
        """Count the frames in between that carry no rows, by their kinds."""
        kinds: Counter[str] = Counter()
        for ssp, first in start.items():
            with closing(self._log.reader()) as reader:
                reader.register(ssp, first)
                for polled in polled_to(reader, ssp, stop[ssp], 1 << 20):
                    assert isinstance(polled, Records)
                    kinds.update(
                        decode_header(payload).kind.name.lower()
                        for offset, payload in zip(polled.offsets, polled.payloads, strict=True)
                        if offset < stop[ssp]
                    )
        del kinds["user"]
        return kinds


class Writer(threading.Thread):
    """Writes a row to each partition of the input, again and again."""

    def __init__(self, home: Path, partitions: int) -> None:
        super().__init__(daemon=True)
        self._home = home
        self._partitions = partitions
        self._done = threading.Event()

    @override
    def run(self) -> None:
        """Write until ``end`` is called."""
        with StreamWriter("in", key="member", home=self._home) as writer:
            while not self._done.wait(1 / WRITES_A_SECOND):
                members = [str(number) for number in range(2 * self._partitions)]
                writer.write(pl.DataFrame({"member": members, "ts": [time.time_ns() // 1_000_000] * len(members)}))

    def end(self) -> None:
        """Write no more."""
        self._done.set()
        self.join()


class Observer:
    """Follows the run; drains it when it has been idle, and then busy, for long enough."""

    def __init__(self, tasks: int, idle_s: float, busy_s: float, shuffle: Shuffle, writer: Writer) -> None:
        self.began, self.began_cpu = time.monotonic(), cpu_s()
        self._tasks = tasks
        self._idle_s = idle_s
        self._busy_s = busy_s
        self._shuffle = shuffle
        self._writer = writer
        self._running: tuple[float, float] | None = None
        self._versions: list[int] = []
        self._committed = 0.0
        self._settled: tuple[float, float] | None = None
        self._busy: tuple[float, float] | None = None
        self._ends: list[dict[SSP, int]] = []
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
            versions = [0 if task.checkpoint is None else task.checkpoint.version for task in status.tasks]
            if versions != self._versions:
                self._versions, self._committed = versions, now
            if now - self._committed >= SETTLED_S or now - self._running[0] >= SETTLING_S_MAX:
                self.found["settled_s"] = now - self._running[0]
                self._settled = now, cpu
                self._ends.append(self._shuffle.ends())
        elif self._busy is None:
            if now - self._settled[0] >= self._idle_s:
                self._past("idle", self._settled, now, cpu)
                self._busy = now, cpu
                if self._busy_s:
                    self._writer.start()
        elif not self._draining and now - self._busy[0] >= self._busy_s:
            if self._busy_s:
                self._past("busy", self._busy, now, cpu)
                self._writer.end()
            self._draining = now
            os.kill(os.getpid(), signal.SIGTERM)

    def _past(self, phase: str, since: tuple[float, float], now: float, cpu: float) -> None:
        """Note what the app has cost in a phase, and what its tasks have told each other."""
        seconds = now - since[0]
        self.found[f"{phase}_cores"] = (cpu - since[1]) / seconds
        self._ends.append(self._shuffle.ends())
        for kind, frames in self._shuffle.control_frames(*self._ends[-2:]).items():
            self.found[f"{phase}_{kind}_frames_a_second"] = frames / seconds

    def ended(self) -> None:
        """The run is over."""
        self.found["drain_s"] = time.monotonic() - self._draining


def measured(partitions: int, *, shuffle: bool, window: bool, idle_s: float, busy_s: float = 0.0) -> dict[str, float]:
    """Start, idle and drain an app in this process; in between it is busy, if that is wanted."""
    with TemporaryDirectory(prefix="headrace-wide-") as folder:
        home = Path(folder)
        hr.streams.create_stream("in", partitions=partitions, schema=COLUMNS, home=str(home))
        app = wide_app(home, partitions, shuffle=shuffle, window=window)
        tasks = partitions * (2 if shuffle else 1)
        observer = Observer(tasks, idle_s, busy_s, Shuffle(home), Writer(home, partitions))
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
    parser.add_argument("--busy", type=float, default=0.0)
    options = parser.parse_args(arguments)
    found = measured(
        options.partitions, shuffle=options.shuffle, window=options.window, idle_s=options.idle, busy_s=options.busy
    )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
