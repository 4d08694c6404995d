"""The record of apps' systems in the metadata store. Each start updates it, for commands without the app's program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import PlanError, UsageError
from headrace.metadata.store import MetadataStore, update
from headrace.metadata.timelines import FIRST, Timelines, current_timeline
from headrace.runtime.naming import folder_name
from headrace.stores.objects.place import ObjectPlace
from headrace.systems.app_systems import AppSystems, SnapshotsPlace
from headrace.systems.home_log import LOG, home_log
from headrace.systems.registry import SystemSpec

if TYPE_CHECKING:
    from headrace.api.settings import Settings
    from headrace.plan.model import Plan

NAMESPACE = "systems"


def check_systems(metadata: MetadataStore, app: str, settings: Settings) -> None:
    """Raise ``PlanError`` if the app's own streams were elsewhere at its last start in this timeline.

    The same holds for a timeline that begins with a savepoint in a system of another name.
    """
    own, before = settings.internal_system(), recorded_systems(metadata, app, settings.timeline)
    if before is not None:
        AppSystems.of(own, (), settings.home).check_own(before, app)
        return
    begun = Timelines(metadata, app).get(settings.timeline)
    if begun is not None and begun.system != own.name:
        raise PlanError(
            f"savepoint {begun.savepoint!r} of app {app!r} was restored for streams in {begun.system!r}, but "
            f"the app now keeps its own streams in {own.name!r}",
            hint="give the system in hr.App(system=...) the name that the savepoint was restored for",
        )


def check_snapshots(metadata: MetadataStore, plan: Plan) -> None:
    """Raise ``PlanError`` if the app's snapshots were elsewhere at its last start in this timeline.

    A timeline that begins with a savepoint needs none from before, so its first start may put them anywhere.
    """
    app, settings = plan.graph.app, plan.graph.settings
    before = recorded_systems(metadata, app, settings.timeline)
    if before is not None:
        before.check_snapshots(_recorded_as(settings.snapshots), app)


def record_systems(metadata: MetadataStore, plan: Plan, stages: Sequence[str] = ()) -> None:
    """Record the systems of these stages (default: all). Raises ``PlanError`` like the checks."""
    app, settings = plan.graph.app, plan.graph.settings
    used = {
        id_
        for stage in plan.stages
        if not stages or stage.name in stages
        for id_ in (*stage.inputs, *stage.side_inputs, *stage.outputs)
    }
    specs = [plan.streams[id_].spec.system for id_ in sorted(used)]
    now = AppSystems.of(settings.internal_system(), specs, settings.home, _recorded_as(settings.snapshots))

    def change(data: bytes | None) -> bytes:
        return (now if data is None else now.after(AppSystems.decode(data, app), app, whole=not stages)).encode()

    update(metadata, NAMESPACE, folder_name(app, settings.timeline), change)


def recorded_systems(metadata: MetadataStore, app: str, timeline: int) -> AppSystems | None:
    """Return the systems that an app used in a timeline; None if it has never run there."""
    entry = metadata.get(NAMESPACE, folder_name(app, timeline))
    return None if entry is None else AppSystems.decode(entry.value, app)


def snapshots_place(metadata: MetadataStore, app: str, timeline: int) -> ObjectPlace | None:
    """The object store with an app's snapshots of a timeline; None: they are in its home, or it has never run there."""
    systems = recorded_systems(metadata, app, timeline)
    found = None if systems is None else systems.snapshots
    return None if found is None else ObjectPlace(found.url, found.endpoint, found.region)


def _recorded_as(place: ObjectPlace | None) -> SnapshotsPlace | None:
    return None if place is None else SnapshotsPlace(url=place.url, endpoint=place.endpoint, region=place.region)


def latest_systems(metadata: MetadataStore, app: str) -> AppSystems | None:
    """Return the systems of an app's last run; None if it has never run."""
    current = recorded_systems(metadata, app, current_timeline(metadata, app))
    return current or next((systems for known, systems in all_systems(metadata) if known == app), None)


def all_systems(metadata: MetadataStore) -> Iterator[tuple[str, AppSystems]]:
    """The systems of each app and timeline that has ever run, by the names of the apps, the newest timeline first."""
    found = []
    for key, entry in metadata.scan(NAMESPACE).items():
        app, at, timeline = key.partition("@")
        found.append((app, -int(timeline if at else FIRST), entry.value))
    for app, _, data in sorted(found):
        yield app, AppSystems.decode(data, app)


def forget_systems(metadata: MetadataStore, app: str, timeline: int) -> None:
    """Forget the systems that an app used in a timeline that is deleted."""
    update(metadata, NAMESPACE, folder_name(app, timeline), lambda data: None)


def system_called(metadata: MetadataStore, home: Path, name: str, app: str | None = None) -> SystemSpec:
    """The record system of this name; with ``app``, that app's, or without a name the one of its own streams.

    Raises ``UsageError`` if there is none, or if apps use the name for different ones.
    """
    used = {known: latest_systems(metadata, known) for known, _ in all_systems(metadata) if app in (None, known)}
    if app is not None and app not in used:
        raise UsageError(
            f"app {app!r} has never run on {metadata.place}",
            hint="give the home folder that it uses with --home, or its metadata store with --metadata",
        )
    found: dict[str, SystemSpec] = {}
    named: set[str] = {LOG}
    for known, systems in used.items():
        if systems is not None:
            specs = systems.record_systems(home)
            named |= specs.keys()
            if (spec := specs.get(name or systems.own)) is not None:
                found[known] = spec
    distinct = {repr(spec): known for known, spec in found.items()}
    if len(distinct) > 1:
        one, other, *_ = sorted(distinct.values())
        raise UsageError(
            f"apps {one!r} and {other!r} use different systems named {name!r}",
            hint=f"say which app you mean, for example --app {one}",
        )
    if not found:
        raise UsageError(
            f"no app on {metadata.place} has streams in a system {name!r} that commands can open",
            hint=f"commands can open {', '.join(sorted(named))}",
        )
    return next(iter(found.values()))


def known_systems(metadata: MetadataStore, home: Path) -> list[SystemSpec]:
    """The embedded log of this home, and all other record systems of apps, by their names."""
    found = [home_log(home)]
    for app in dict(all_systems(metadata)):
        systems = latest_systems(metadata, app)
        for spec in () if systems is None else systems.record_systems(home).values():
            if spec not in found:
                found.append(spec)
    return [found[0], *sorted(found[1:], key=lambda spec: spec.name)]
