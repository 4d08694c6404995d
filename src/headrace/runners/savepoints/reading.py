"""Read what a savepoint holds as DataFrames: tables, windows, and the stores of low-level tasks.

The stores are those of the app, opened on copies of the tasks' databases; the savepoint doesn't change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import polars as pl

from headrace.api.app import Declarations
from headrace.checkpoint.founding import DATABASE_FOLDER
from headrace.checkpoint.machine import ProtocolMachine
from headrace.core.errors import UsageError
from headrace.core.ids import TaskName
from headrace.plan.heritage import Heritage
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.facts import gather_facts
from headrace.runtime.connections import Connections
from headrace.runtime.host.attempt import Attempt, Factories
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import task_folder
from headrace.runtime.state.disk import Disk
from headrace.runtime.task import task_factory
from headrace.runtime.task_scope import TaskScope
from headrace.savepoints.folder import Shelf
from headrace.savepoints.manifest import Manifest
from headrace.stores.base import StateStore
from headrace.stores.database import KeySpace


def read_state(app: Declarations, name: str) -> tuple[Manifest, dict[str, pl.DataFrame]]:
    """Return the manifest of a savepoint, and by id what all tasks together kept."""
    graph = app.graph()
    shelf = Shelf(Path(graph.settings.home), graph.app)
    folder, manifest = shelf.path(name), shelf.manifest(name)
    heritage = Heritage(manifest.inventory)
    adopted = heritage.adopt(graph)
    planned = plan(adopted, gather_facts(adopted), 1, heritage)
    found: dict[str, list[pl.DataFrame]] = {}
    for copy in manifest.tasks:
        for id_, rows in _rows(planned, copy.name, folder / task_folder(copy.name) / DATABASE_FOLDER):
            if rows.height:
                found.setdefault(id_, []).append(rows)
    tables = {id_: pl.concat(frames, how="diagonal_relaxed") for id_, frames in sorted(found.items())}
    return manifest, tables


def _rows(planned: Plan, task: TaskName, database: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    stage = next((stage for stage in planned.stages if stage.name == task.stage), None)
    if stage is None or not stage.tasks:
        raise UsageError(
            f"the app has no stage {task.stage!r}, of which the savepoint holds state",
            hint="read it with the version of the app that it was taken of",
        )
    scope = TaskScope.of(planned, stage, stage.tasks[min(task.number, len(stage.tasks) - 1)])
    connections = Connections()
    try:
        metrics = TaskMetrics(str(task))
        machine = ProtocolMachine(scope.machine, writer="reader")
        make = Factories(task_factory(planned, stage, scope))
        with (
            closing(Disk().open_copy(database)) as opened,
            closing(Attempt(scope, make, machine, connections, metrics, random.Random(), 0.0)) as attempt,
        ):
            stores: Mapping[str, StateStore] = attempt.stores()
            for name, store in stores.items():
                store.attach(KeySpace(opened, name))
                for rows in store.frames():
                    yield store.id, rows
    finally:
        connections.close()
