"""Names of what an app owns in a system: its intermediate streams and changelogs. They are durable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.api.settings import Settings
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.systems.registry import SystemSpec


def changelog_name(app: str, stage: str) -> str:
    """The changelog stream of a stage; task n has partition n."""
    return f"{app}-{stage}-changelog"


def changelog_ssp(settings: Settings, app: str, task: TaskName) -> tuple[SSP, SystemSpec]:
    """The changelog partition of a task, and the system it is in."""
    system = settings.internal_system()
    stream = StreamId(system.name, changelog_name(app, task.stage))
    return SSP(stream, task.number), system


@dataclass(frozen=True, slots=True)
class StateFolders:
    """Where a task keeps its local state, and the snapshots that bound its changelog."""

    local: Path
    snapshots: Path


def state_folders(settings: Settings, app: str, task: TaskName) -> StateFolders | None:
    """The folders of a task; None for an app that keeps no state on disk."""
    if not settings.state_on_disk:
        return None
    home, name = Path(settings.home), f"{task.stage}-{task.number}"
    return StateFolders(home / "state" / app / name, home / "snapshots" / app / name)
