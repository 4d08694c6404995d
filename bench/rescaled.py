"""How long an app takes to begin where a savepoint was taken: with its number of tasks, and with twice as many.

The app keeps a table and an open window of a count, both with a row for each key, in two tasks. A savepoint of it is
restored again and again, in turn as it is and into four partitions. The time is that of the restore itself, and from
the construction of the container until every task has committed. That run is a process of its own, with the real log,
RocksDB and metadata. The operating system's cache is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import headrace as hr
from bench.life import end_with, run_plan
from bench.measure import median
from bench.state_apps import SCHEMA, write
from bench.turns import folder
from headrace.coordinator.publication import find_all
from headrace.life.metadata import MetadataStore, existing_metadata, open_metadata
from headrace.plan.inventory import NO_CONSENT
from headrace.run.planning import Deployment, prepare_streams
from headrace.run.savepoints.restoring import Restoring, restore
from headrace.run.savepoints.taking import Taking, take

APP, NAME = "bench-rescaled", "full"
PARTITIONS = 2
REPEATS = 3
_PATIENCE_S = 600.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class RescaleCost:
    """Medians for one number of partitions: the command, until every task runs, and until every task has committed."""

    keys: int
    partitions: int
    restore_s: float
    running_s: float
    committed_s: float

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self.restore_s + self.committed_s


def rescaled_app(home: Path) -> hr.App:
    """Declare the app."""
    app = hr.App(APP, home=str(home), checkpoint_interval="100ms")
    changes = app.input("changes", SCHEMA, event_time="ts", lateness="1s").partition_by("key", id="by-key")
    changes.send_to(app.table("last", key="key", schema=SCHEMA))
    changes.window(hr.tumbling("1d"), key="key", id="w").agg(n=hr.count()).send_to(app.output("results"))
    return app


def rescale_costs(base: Path, keys: int, say: Callable[[str], None]) -> list[RescaleCost]:
    """Build a state of ``keys`` keys, and measure restores without and with a rescale."""
    found: dict[int, list[tuple[float, float, float]]] = {PARTITIONS: [], 2 * PARTITIONS: []}
    with folder(base) as home:
        _build(home, keys)
        for _ in range(REPEATS):
            for partitions, times in found.items():
                times.append(_restore(home, partitions))
                say(
                    f"{keys:,} keys, {partitions} partitions: restored in {times[-1][0]:.2f} s, committed in "
                    f"{times[-1][2]:.2f} s"
                )
    return [
        RescaleCost(keys, n, *(median(list(one)) for one in zip(*times, strict=True))) for n, times in found.items()
    ]


def _build(home: Path, keys: int) -> None:
    """Run the app until it has processed a message of each key, and take a savepoint."""
    hr.streams.create_stream("changes", partitions=PARTITIONS, schema=SCHEMA, home=home)
    write("changes", home, 0, keys)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            rescaled_app(home).run(local=True, progress=False)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="bench-rescaled")
    thread.start()
    deadline = time.monotonic() + _PATIENCE_S
    while not errors and not _has_read_all(home):
        if time.monotonic() > deadline:
            raise AssertionError("the app didn't read all messages in time")
        time.sleep(_LOOK_S)
    if not errors:
        with existing_metadata(home) as store:
            (address,) = find_all(store, APP)
            client = address.client()
            try:
                take(Taking(home, APP, store, [client], patience_s=_PATIENCE_S, progress=lambda what: None), NAME)
            finally:
                client.drain()
                client.close()
    thread.join(_PATIENCE_S)
    if errors:
        raise errors[0]


def _has_read_all(home: Path) -> bool:
    with existing_metadata(home) as store:
        if not find_all(store, APP):
            return False  # it hasn't started yet
    offsets = hr.startpoints.open_startpoints(APP, home=home).offsets()
    return bool(offsets) and all(one.committed is not None and one.lag == 0 for one in offsets)


def _restore(home: Path, partitions: int) -> tuple[float, float, float]:
    counts = {} if partitions == PARTITIONS else {"by-key": partitions}
    store = open_metadata(home)
    began = time.perf_counter()
    try:
        restore(Restoring(home=home, app=APP, metadata=store, name=NAME, partitions=counts))
    finally:
        store.close()
    restored_s = time.perf_counter() - began
    command = [sys.executable, "-m", __name__, str(home), str(partitions), "--parent", str(os.getpid())]
    seconds = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                event = json.loads(line)
                seconds[event["event"]] = event["seconds"]
                if event["event"] == "committed":
                    break
        finally:
            process.kill()
    if "committed" not in seconds:
        raise AssertionError(f"the restored app ended with {process.returncode} before its tasks had committed")
    return restored_s, seconds["running"], seconds["committed"]


def main() -> None:
    """Run the restored app until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m bench.rescaled", description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("partitions", type=int)
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="end when this process ends")
    options = parser.parse_args()
    end_with(options.parent)
    graph = rescaled_app(options.home).graph()
    metadata: MetadataStore = open_metadata(options.home)
    try:
        planned = Deployment(graph, metadata, NO_CONSENT).planned().plan
        (stage,) = (stage for stage in planned.stages if "by-key" in stage.inputs)
        active = sum(bool(task.inputs) for task in stage.tasks)  # tasks of a restore before this one only end
        if active != options.partitions:
            raise AssertionError(f"the stage has {active} active tasks instead of {options.partitions}")
        prepare_streams(planned)
        run_plan(planned, metadata, rows=0)
    finally:
        metadata.close()


if __name__ == "__main__":
    main()
