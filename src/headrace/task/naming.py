"""The durable names of an app's data in a system and in its home: changelogs, state, snapshots, savepoints.

Each timeline has its own. Names of the first one have no number; names of apps contain no ``@``, so none collide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.ids import FIRST_TIMELINE, SSP, StreamId, TaskName
from headrace.systems.registry import SystemSpec

if TYPE_CHECKING:
    from headrace.api.specs import Settings


def changelog_name(app: str, stage: str, timeline: int = FIRST_TIMELINE) -> str:
    return f"{app}-{stage}-changelog" + ("" if timeline == FIRST_TIMELINE else f".{timeline}")


def folder_name(app: str, timeline: int = FIRST_TIMELINE) -> str:
    return app if timeline == FIRST_TIMELINE else f"{app}@{timeline}"


def task_folder(task: TaskName) -> str:
    return f"{task.stage}-{task.number}"


def changelog_ssp(settings: Settings, app: str, task: TaskName) -> tuple[SSP, SystemSpec]:
    system = settings.internal_system()
    return SSP(StreamId(system.name, changelog_name(app, task.stage, settings.timeline)), task.number), system


@dataclass(frozen=True, slots=True)
class StateFolders:
    """Where a task keeps its local state and its snapshots; ``remote`` is its folder in the store of snapshots."""

    local: Path
    snapshots: Path
    remote: str | None = None


def state_folders(settings: Settings, app: str, task: TaskName) -> StateFolders | None:
    if not settings.state_on_disk:
        return None
    folders = state_folders_at(Path(settings.home), app, task, settings.timeline)
    remote = None if settings.snapshots is None else remote_folder(app, task, settings.timeline)
    return replace(folders, remote=remote)


def remote_folder(app: str, task: TaskName, timeline: int) -> str:
    return f"{remote_timeline(app, timeline)}{task_folder(task)}/"


def remote_timeline(app: str, timeline: int) -> str:
    return f"snapshots/{folder_name(app, timeline)}/"


def state_folders_at(home: Path, app: str, task: TaskName, timeline: int) -> StateFolders:
    app_folder, name = folder_name(app, timeline), task_folder(task)
    return StateFolders(home / "state" / app_folder / name, home / "snapshots" / app_folder / name)


def inventory_namespace(app: str, timeline: int) -> str:
    return f"inventory/{folder_name(app, timeline)}"


def savepoints_folder(home: Path, app: str) -> Path:
    return home / "savepoints" / app


def founding_folder(home: Path, app: str, timeline: int) -> Path:
    return home / "timelines" / app / str(timeline)
