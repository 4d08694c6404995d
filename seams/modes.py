"""Runs a case in its mode with its move, and judges the results."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.api.specs import Role
from headrace.kit.harness import TestApp
from headrace.life.folder import Shelf
from headrace.life.metadata import open_metadata
from headrace.plan.inventory import Inventory
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.pieces import SCHEMA, as_batch
from headrace.run.batch_ends import Until, ends_of
from headrace.run.planning import gather_facts, prepare_outputs
from headrace.run.savepoints.restoring import Restoring, restore
from headrace.run.savepoints.writing import FromBatch, save
from headrace.spark.batch.runner import publish
from headrace.streams.ranges import stream_of_results
from headrace.task.batch import Seam
from seams.apps import APP, FACTS, FACTS_SHUFFLE, FIRST_SHUFFLE, IDLE_MS, INPUT, MORE, OUT, build
from seams.driven import DrivenApp
from seams.factors import BATCHES, ROW_STEPS, Case, written
from seams.in_process_batch import InProcess
from seams.messages import PORTIONS, Row
from seams.oracle import STEPS, expected, settled
from seams.places import Inputs, frame, more, results

PATIENCE_S = 60.0
OPEN_PATIENCE_S = 15.0
"""How long an app whose inputs stay open may take for its last results."""
MASTER = "local[2]"
SAVEPOINT = "half-way"
RESCALED_TO = 3


@dataclass(frozen=True)
class Found:
    """What came out of a case: of its output, and of the one that a second version adds."""

    rows: list[Row]
    more: list[int]


def wrong(case: Case, home: Path) -> str | None:
    """Run a case; what is wrong with its results, if anything is."""
    inputs = Inputs(case, home)
    try:
        found = MODES[case["mode"]](Scene(case, home, inputs))
    finally:
        for run in hr.runs.running():  # an error has left it
            run.stop()
        inputs.close()
    return difference(inputs, found)


def difference(inputs: Inputs, found: Found) -> str | None:
    """What is wrong with the results of a case: what is missing, what is too much, or in which order they are."""
    case = inputs.case
    rows, added = expected(inputs.messages)
    wanted, came = settled(case, rows), settled(case, found.rows)
    if wanted != came:
        missing, extra = list(wanted), []
        for row in came:
            if row in missing:
                missing.remove(row)
            else:
                extra.append(row)
        return (
            f"{len(wanted)} results expected, {len(came)} came; "
            f"{len(missing)} missing {missing[:3]}, {len(extra)} too many {extra[:3]}"
        )
    if sorted(found.more) != sorted(added):
        return f"the added output has {sorted(found.more)}, expected {sorted(added)}"
    return _order(inputs, found)


def _order(inputs: Inputs, found: Found) -> str | None:
    """Steps without state keep the order of a partition, which the task of the same number writes."""
    case = inputs.case
    if case["step"] not in ROW_STEPS or case["behind"] != "nothing" or case["output"] != "log":
        return None
    if case["mode"] not in ("kit", "local", "containers", "spark") or case["move"] in ("replay", "change"):
        return None
    parts = [
        [row for p in range(PORTIONS) for row in inputs.parts(INPUT, p)[n]] for n in range(inputs.messages.partitions)
    ]
    wanted = [row["n"] for part in parts for row in STEPS[case["step"]](case, part, [])]
    came = [row["n"] for row in found.rows]
    return None if case["input"] not in ("log", "fed") or came == wanted else f"in the order {came}, expected {wanted}"


@dataclass(frozen=True)
class Scene:
    """A case that runs."""

    case: Case
    home: Path
    inputs: Inputs

    def app(self, *, changed: bool = False, partitions: int | None = None) -> hr.App:
        """The app, or another version of it."""
        return build(self.case, self.home, changed=changed, partitions=partitions)

    def found(self) -> Found:
        """What has been committed by now."""
        return Found(results(self.case, self.home), more(self.home))

    @property
    def pauses(self) -> bool:
        """Whether nothing comes for long between two portions."""
        return self.case["arrival"] == "pauses"

    @property
    def at_once(self) -> bool:
        """Whether all messages are there before the app starts."""
        return self.case["arrival"] == "at-once"

    @property
    def sealed(self) -> bool:
        """Whether the inputs end."""
        return self.case["end"] == "sealed"

    def as_expected(self) -> bool:
        """Whether the results are complete by now."""
        return difference(self.inputs, self.found()) is None


# -- the test kit -----------------------------------------------------------------------------------


def _kit(scene: Scene) -> Found:
    case, inputs = scene.case, scene.inputs
    changed = False
    with scene.app().test(partitions=dict.fromkeys(inputs.names, inputs.messages.partitions)) as t:
        for portion in range(PORTIONS):
            for name in reversed(inputs.names):  # facts first
                for partition, rows in enumerate(inputs.parts(name, portion)):
                    _feed(t, inputs, name, partition, rows)
            if not scene.at_once:
                t.settle()
            if scene.pauses:
                t.advance(f"{2 * IDLE_MS}ms")
            if portion == 0:
                changed = _moved(t, scene)
        if scene.sealed:
            t.end()
        else:
            for name in inputs.names:
                for partition, rows in enumerate(inputs.messages.flushes()):
                    if (name, case["step"]) != (FACTS, "side-table"):
                        _feed(t, inputs, name, partition, rows)
            t.settle()
            t.advance(f"{2 * IDLE_MS}ms")
            t.restart(checkpoint=True)
        rows = t.read(OUT, committed=True).to_dicts()
        return Found(rows, t.read(MORE, committed=True)["n"].to_list() if changed else [])


def _feed(t: TestApp, inputs: Inputs, name: str, partition: int, rows: list[Row]) -> None:
    for piece in frame(rows, inputs.columns[name]).iter_slices(5):
        t.feed(name, piece, partition=partition, settle=False)


def _moved(t: TestApp, scene: Scene) -> bool:
    move = scene.case["move"]
    if move == "replay":
        t.restart(checkpoint=True)
        t.set_startpoint(INPUT, hr.startpoints.oldest())
        t.restart()
    elif move == "change":
        t.change(scene.app(changed=True))
    elif move in ("restart", "kill"):
        t.restart(checkpoint=move == "restart")
    return move == "change"


# -- runs: in this process or on Spark --------------------------------------------------------------


@dataclass(frozen=True)
class Going:
    """A run, and the view of commands on where it is in its inputs."""

    run: hr.runs.Run
    points: hr.startpoints.Startpoints

    def until_read(self) -> None:
        """Wait until commits cover all that has been written."""
        if not _until(self._has_read, PATIENCE_S):
            raise AssertionError(f"it didn't read all that was written: {self.run.status()}, {self.points.offsets()}")

    def _has_read(self) -> bool:
        if self.run.status().state == "failed":
            self.run.wait()
        return all(one.committed == one.newest and one.startpoint is None for one in self.points.offsets())


def _start(scene: Scene, *, changed: bool = False, savepoint: str = "", partitions: int | None = None) -> Going:
    where: dict[str, Any] = {"master": MASTER, "containers": 2} if scene.case["mode"] == "spark" else {"local": True}
    app = scene.app(changed=changed, partitions=partitions)
    points = hr.startpoints.open_startpoints(app)
    return Going(app.start(progress=False, savepoint=savepoint, **where), points)


def _runs(scene: Scene) -> Found:
    inputs, move = scene.inputs, scene.case["move"]
    inputs.write(*(range(PORTIONS) if scene.at_once else (0,)))
    if scene.at_once:
        inputs.end()
    if move == "startpoint":
        for name in inputs.names:
            hr.startpoints.open_startpoints(scene.app()).set(name, hr.startpoints.oldest())
    if move == "kill":
        _killed(scene)
    keeps = move in ("savepoint", "rescale")
    going = _start(scene, savepoint=SAVEPOINT if keeps else "")
    if not scene.at_once:
        going.until_read()
        _pause(scene)
    if move in ("restart", "replay", "change") or keeps:
        going.run.drain()
        partitions = RESCALED_TO if move == "rescale" else None
        if keeps:
            shuffles = (FIRST_SHUFFLE, FACTS_SHUFFLE) if len(inputs.names) > 1 else (FIRST_SHUFFLE,)
            counts = dict.fromkeys(shuffles, partitions) if partitions else None
            hr.restore_savepoint(scene.app(), SAVEPOINT, partitions=counts)
        if move == "replay":
            hr.startpoints.open_startpoints(scene.app()).set(INPUT, hr.startpoints.oldest())
        going = _start(scene, changed=move == "change", partitions=partitions)
    return _to_its_end(scene, going)


def _to_its_end(scene: Scene, going: Going) -> Found:
    """Write the rest, and wait for the end of a run."""
    if not scene.at_once:
        for portion in (1, 2):
            scene.inputs.write(portion)
            if scene.pauses or not scene.sealed:
                # What moves event time on must not overtake what comes after silence: that would be late indeed.
                going.until_read()
                _pause(scene)
        scene.inputs.end()
    run = going.run
    if scene.sealed:
        run.wait(timeout=f"{PATIENCE_S:.0f}s")
    else:
        _until(scene.as_expected, OPEN_PATIENCE_S)
    if run.status().state not in ("finished", "stopped"):
        run.drain()
    run.wait()
    return scene.found()


def _pause(scene: Scene) -> None:
    if scene.pauses:
        threading.Event().wait(2 * IDLE_MS / 1000)


def _until(done: Callable[[], bool], seconds: float) -> bool:
    end, never = time.monotonic() + seconds, threading.Event()
    while not (come := done()) and time.monotonic() < end:
        never.wait(0.02)
    return come


def _killed(scene: Scene) -> None:
    """Run the app in a process that is killed when it has committed something, or soon after its start."""
    command = [sys.executable, "-m", "seams.child", written(scene.case), str(scene.home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        _until(lambda: process.poll() is not None or bool(scene.found().rows), 0.6)
    finally:
        process.kill()
        process.communicate()


# -- several containers -----------------------------------------------------------------------------


def _containers(scene: Scene) -> Found:
    inputs, move = scene.inputs, scene.case["move"]
    inputs.write(*(range(PORTIONS) if scene.at_once else (0,)))
    if scene.at_once:
        inputs.end()
    with DrivenApp(scene.app()) as driven:
        tasks = [task.name for stage in driven.plan.stages for task in stage.tasks]
        dealt = [tasks[::2], tasks[1::2]] if len(tasks) > 1 else [tasks]
        for some in dealt:
            driven.start_tasks(some)
        driven.run(4 * IDLE_MS if not scene.at_once else 100)
        if move in ("restart", "kill"):
            for container, some in zip(list(driven.living), dealt, strict=True):
                (driven.drain if move == "restart" else driven.kill)(container)
                driven.start_tasks(some)
                driven.run(60)
        if not scene.at_once:
            inputs.write(1)
            driven.run(4 * IDLE_MS if scene.pauses else 100)
            inputs.write(2)
            driven.run(400)  # what moves event time on must not overtake what comes after silence
            inputs.end()
        if scene.sealed:
            driven.finish()
        else:
            driven.run(4_000)
    return scene.found()


# -- batches, in this process and on Spark ----------------------------------------------------------


def _planned(app: hr.App) -> Plan:
    graph = app.graph()
    return plan(graph, gather_facts(graph))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _publish(scene: Scene, the_plan: Plan, job: InProcess) -> None:
    pieces = job.run()
    folder = scene.home / "computed"
    folder.mkdir()
    prepare_outputs(the_plan)
    for spec in the_plan.graph.streams.values():
        if spec.role is Role.SINK and spec.id not in the_plan.graph.tables:
            by_partition = sorted(pieces[spec.id], key=lambda piece: piece.partition)
            pq.write_table(pa.Table.from_batches([as_batch(by_partition)], SCHEMA), folder / f"{spec.id}.parquet")
            publish(the_plan, spec.id, 1, folder, stream_of_results)


def _batch(scene: Scene) -> Found:
    scene.inputs.write(*range(PORTIONS))
    scene.inputs.end()
    until = None if scene.sealed else "now"
    if scene.case["mode"] == "spark-batch":
        scene.app().run(batch=True, master=MASTER, until=until, progress=False)
        return scene.found()
    the_plan = _planned(scene.app())
    ends = ends_of(the_plan, None if until is None else Until.of(until))
    _publish(scene, the_plan, InProcess(the_plan, ends, scene.home / "state", _now_ms()))
    return scene.found()


def _backfill(scene: Scene) -> Found:
    """History is the first portion, or all."""
    scene.inputs.write(*(range(PORTIONS) if scene.at_once else (0,)))
    if scene.at_once:
        scene.inputs.end()
    if scene.case["mode"] == "spark-backfill":
        scene.app().backfill("now", master=MASTER, progress=False)
        hr.restore_savepoint(scene.app(), "backfill")
        return _to_its_end(scene, _start(scene))
    the_plan = _planned(scene.app())
    version = _now_ms()
    seam = Seam(version, str(scene.home / "left"))
    job = InProcess(the_plan, ends_of(the_plan, Until.of("now")), scene.home / "state", version, seam)
    _publish(scene, the_plan, job)
    what = FromBatch(plan=the_plan, before=Inventory(), timeline=1, version=version, left=job.left)
    save(Shelf(scene.home, APP), SAVEPOINT, what)
    with closing(open_metadata(scene.home, None)) as metadata:
        restore(Restoring(home=scene.home, app=APP, metadata=metadata, name=SAVEPOINT))
    return _to_its_end(scene, _start(scene))


MODES: dict[str, Callable[[Scene], Found]] = {
    "kit": _kit,
    "local": _runs,
    "spark": _runs,
    "containers": _containers,
    **dict.fromkeys(BATCHES, _batch),
    "backfill": _backfill,
    "spark-backfill": _backfill,
}
