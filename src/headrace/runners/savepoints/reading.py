"""Read what a savepoint holds as DataFrames: tables, windows, and the stores of low-level tasks.

The stores are those of the app, opened on copies of the tasks' databases; the savepoint doesn't change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import polars as pl

from headrace.api.app import Declarations
from headrace.checkpoint.founding import DATABASE_FOLDER
from headrace.core.errors import UsageError
from headrace.core.ids import TaskName
from headrace.plan.model import Plan
from headrace.runners.planning import planned_against
from headrace.runners.savepoints.stores_of import attempt_at_rest
from headrace.runtime.naming import task_folder
from headrace.runtime.state.disk import Disk
from headrace.savepoints.folder import Shelf
from headrace.savepoints.manifest import Manifest
from headrace.stores.base import StateStore
from headrace.stores.database import KeySpace


def read_state(app: Declarations, name: str) -> tuple[Manifest, dict[str, pl.DataFrame]]:
    """Return the manifest of a savepoint, and by id the rows that all tasks together kept."""
    graph = app.graph()
    shelf = Shelf(Path(graph.settings.home), graph.app)
    folder, manifest = shelf.path(name), shelf.manifest(name)
    planned = planned_against(graph, manifest.inventory).plan
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
            f"the app has no stage {task.stage!r}, but the savepoint holds state for it",
            hint="read it with the version of the app from which it was taken",
        )
    known = stage.tasks[min(task.number, len(stage.tasks) - 1)]
    with closing(Disk().open_copy(database)) as opened, attempt_at_rest(planned, stage, known) as attempt:
        stores: Mapping[str, StateStore] = attempt.stores()
        for name, store in stores.items():
            store.attach(KeySpace(opened, name))
            for rows in store.frames():
                yield store.id, rows
