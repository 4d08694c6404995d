"""Make a savepoint from the state of a batch job's tasks at its seam, from which a live run can continue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.clock import WallClock
from headrace.core.errors import DataError
from headrace.core.ids import TaskName
from headrace.plan.inventory import Inventory, inventory_of
from headrace.plan.model import Plan
from headrace.runtime.batch.notes import Left
from headrace.runtime.naming import task_folder
from headrace.savepoints.folder import Shelf, copies, copy_tree, write_manifest
from headrace.savepoints.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class FromBatch:
    """What becomes a savepoint. ``before`` is the app's inventory in its present ``timeline``."""

    plan: Plan
    before: Inventory
    timeline: int
    version: int
    left: Mapping[TaskName, Left]


def save(shelf: Shelf, name: str, job: FromBatch) -> Manifest:
    """Write the savepoint. Raises ``DataError`` if a task has left nothing, as it can't be complete then."""
    tasks = [task.name for stage in job.plan.stages for task in stage.tasks]
    missing = [str(task) for task in tasks if task not in job.left]
    if missing:
        raise DataError(
            f"the results of the batch job lack the state of task {missing[0]}",
            hint="the files of the run were changed: delete them, and run the job again",
        )
    inventory = inventory_of(job.plan).after(job.before)
    with shelf.locked(), shelf.draft(name) as draft:
        for task in tasks:
            copy_tree(Path(job.left[task].folder), draft / task_folder(task))
        manifest = Manifest(
            app=job.plan.graph.app,
            name=name,
            version=job.version,
            created_ms=WallClock().now_ms(),
            timeline=job.timeline,
            system=job.plan.graph.settings.internal_system().name,
            written=True,
            stages=tuple(inventory.stages[stage] for stage in sorted(inventory.stages)),
            gone=tuple(sorted(inventory.gone)),
            tasks=copies(draft, tasks),
        )
        write_manifest(draft, manifest)
    return manifest
