"""Names of what an app owns in a system: its intermediate streams and changelogs. Durable; change nothing here."""

from __future__ import annotations

from headrace.core.ids import SSP, StreamId, TaskName
from headrace.plan.model import Plan
from headrace.systems.registry import SystemSpec


def changelog_name(app: str, stage: str) -> str:
    """The changelog stream of a stage; task n has partition n."""
    return f"{app}-{stage}-changelog"


def changelog_ssp(plan: Plan, task: TaskName) -> tuple[SSP, SystemSpec]:
    """The changelog partition of a task, and the system it is in."""
    system = plan.graph.settings.internal_system()
    stream = StreamId(system.name, changelog_name(plan.graph.app, task.stage))
    return SSP(stream, task.number), system
