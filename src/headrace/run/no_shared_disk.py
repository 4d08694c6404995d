"""Refuse features that need a shared disk. An app with snapshots in an object store runs on machines without one.

What containers read and only the driver writes, or the other way round, has to be in a system that all reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.api.specs import Settings
from headrace.core.errors import PlanError, UsageError
from headrace.life.apps import recorded_systems
from headrace.life.metadata import MetadataStore
from headrace.plan.model import Plan
from headrace.run.planning import reads
from headrace.systems.registry import SystemSpec

_IN_HOME = ("root", "path", "list_file")
"""Options of systems that name what containers have to find. A memo is given to them."""
_KEPT = {"files": "the list of its files is, or the copy of its rows", "log": "the embedded log is"}


def shares_no_disk(settings: Settings) -> bool:
    return settings.snapshots is not None and settings.snapshots.scheme != "file"


def check_standby(plan: Plan) -> None:
    """Raise if the app wants standbys on a cluster whose machines share its home, so that all have the same folders."""
    app, settings = plan.graph.app, plan.graph.settings
    own_in_home = _in_home(settings.internal_system(), settings)
    if settings.standby and (settings.snapshots is None or own_in_home):
        shared = "snapshots" if settings.snapshots is None else "own streams"
        raise PlanError(
            f"app {app!r} has standby={settings.standby}, but keeps its {shared} in its home, which its machines then "
            "share: a copy of its state on another machine would be of no use",
            hint="give it snapshots= and a log in Kafka, or leave standby= out",
        )


def check_no_shared_disk(plan: Plan, metadata: MetadataStore, stages: Sequence[str] = (), savepoint: str = "") -> None:
    """Raise for what these stages (default: all) would need a shared disk for, unless the app has one."""
    app, settings = plan.graph.app, plan.graph.settings
    if not shares_no_disk(settings):
        return
    why = f"its machines share no disk, since its snapshots are in {settings.snapshots}"
    if _in_home(settings.internal_system(), settings):
        raise PlanError(
            f"app {app!r} keeps its own streams in the embedded log of its home, and {why}",
            hint='write internal=hr.io.kafka_log("host:9092"), or leave snapshots= out if the home is shared',
        )
    written = {id_ for stage in plan.stages if not stages or stage.name in stages for id_ in stage.outputs}
    for id_, stream in plan.streams.items():
        if (id_ in written or reads(plan, id_, stages)) and _in_home(stream.spec.system, settings):
            kind = stream.spec.system.kind
            raise PlanError(
                f"{stream.spec.role.value} stream {id_!r} ({stream.spec.location}) needs the home of app {app!r}, "
                f"where {_KEPT.get(kind, f'its system, of kind {kind!r}, keeps something')}, and {why}",
                hint="move it to Kafka or another system that all machines reach, or leave snapshots= out if the home "
                "is shared",
            )
    if savepoint:
        raise UsageError(
            f"app {app!r} can't have savepoints, which are kept in the home: {why}", hint="leave --savepoint out"
        )
    restored = any(task.founding is not None and task.founding.donors for stage in plan.stages for task in stage.tasks)
    if restored and recorded_systems(metadata, app, settings.timeline) is None:
        raise PlanError(
            f"app {app!r} begins with a savepoint, whose copies are in the home of this machine, and {why}",
            hint="run it once on the machine with that home, with a local master, until its tasks have committed: then "
            "their state is in their changelogs. Or undo the restore: headrace savepoint undo",
        )


def _in_home(system: SystemSpec, settings: Settings) -> bool:
    home = Path(settings.home).absolute()
    found = (system.options.get(name) for name in _IN_HOME)
    return any(isinstance(path, str) and Path(path).absolute().is_relative_to(home) for path in found)
