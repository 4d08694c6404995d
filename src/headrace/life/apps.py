"""The record of apps' systems in the metadata store, updated by each start, for commands without the app's program.

Secrets are recorded by their places (``core/secrets.py``). Of a system whose options aren't known to do so, or
can't be written as JSON, the name and the kind are recorded, and only the app's program can open it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.errors import PlanError, UsageError
from headrace.core.files import decode_record
from headrace.core.ids import FIRST_TIMELINE
from headrace.core.secrets import hide_passwords, is_secret
from headrace.life.metadata import MetadataStore, update
from headrace.life.timelines import Timelines, current_timeline
from headrace.stores.snapshots import ObjectPlace
from headrace.systems.registry import KAFKA_LOG_PREFIX, LOG, SystemSpec, home_log, keeps_rows
from headrace.task.naming import folder_name

if TYPE_CHECKING:
    from headrace.api.specs import Settings
    from headrace.plan.model import Plan

FORMAT = 2

_TOLD = frozenset({"log", "kafka-log", "kafka", "memory"})
"""The kinds whose options have only the places of secrets, so that every program with these secrets can open them.
Streams in memory belong to one process, and so does the store in which a test of an app records them."""
_MOVES = frozenset({"brokers", "client", "oauth", "replication", "record_bytes"})
"""Options that a system's contents don't depend on."""


class _Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A system. ``options`` None: only the app's program has them. ``at``: the folder of a log, or Kafka's prefix."""

    kind: str
    at: str | None = None
    options: dict[str, Any] | None = None
    home: bool = False

    def is_where(self, other: _Known) -> bool:
        if (self.kind, self.home, self.at) != (other.kind, other.home, other.at):
            return False
        return self.options is None or other.options is None or _staying(self.options) == _staying(other.options)


class SnapshotsPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object store of an app's snapshots. Its URL says where they are, and the rest how it is reached."""

    url: str
    endpoint: str | None = None
    region: str | None = None


class AppSystems(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The systems of an app by their names. ``own`` has its own streams. Without ``snapshots``: in its home."""

    format: int
    own: str
    systems: dict[str, _Known]
    snapshots: SnapshotsPlace | None = None

    @classmethod
    def of(
        cls, own: SystemSpec, others: Iterable[SystemSpec], home: str, snapshots: SnapshotsPlace | None = None
    ) -> AppSystems:
        known = {spec.name: _known(spec, home) for spec in (*others, own)}
        return cls(format=FORMAT, own=own.name, systems=known, snapshots=snapshots)

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")

    @classmethod
    def decode(cls, data: bytes, app: str) -> AppSystems:
        return decode_record(_DECODER, data, f"the record of the systems that app {app!r} uses", FORMAT)

    def after(self, before: AppSystems, app: str, *, whole: bool) -> AppSystems:
        """This record in place of the last one. Unless ``whole``, other stages may use others. Raises ``PlanError``."""
        self.check_own(before, app)
        before.check_snapshots(self.snapshots, app)
        return self if whole else msgspec.structs.replace(self, systems=before.systems | self.systems)

    def check_own(self, before: AppSystems, app: str) -> None:
        old, new = before.systems[before.own], self.systems[self.own]
        if before.own != self.own or not old.is_where(new):
            raise PlanError(
                f"app {app!r} has kept its own streams in {_described(before.own, old)} until now, and now declares "
                f"{_described(self.own, new)}: it wouldn't find its state and positions there",
                hint="restore system= or internal= of hr.App; to start over, give the app another name or another home",
            )

    def check_snapshots(self, now: SnapshotsPlace | None, app: str) -> None:
        """Raise ``PlanError`` if snapshots are elsewhere than recorded, because trimming changelogs relies on them."""
        there, here = ("" if place is None else place.url for place in (self.snapshots, now))
        if there != here:
            raise PlanError(
                f"app {app!r} has kept its snapshots in {there or 'its home'} until now, and would now look for them "
                f"in {here or 'its home'}: state that only those snapshots hold would be lost",
                hint=(f"write snapshots={there!r}, or HEADRACE_SNAPSHOTS={there}" if there else _IN_HOME)
                + ". To move them, run the unchanged app, end it with headrace run --savepoint NAME, restore that "
                "savepoint (headrace savepoint restore), and start the app with the new place",
            )

    def spec(self, name: str, home: Path) -> SystemSpec | None:
        known = self.systems.get(name)
        if known is None:
            return None
        if known.home:
            return home_log(home)
        return None if known.options is None else SystemSpec(name, known.kind, known.options)

    def own_spec(self, app: str, home: Path) -> SystemSpec:
        spec = self.spec(self.own, home)
        if spec is None:
            raise UsageError(
                f"app {app!r} keeps its own streams in {_described(self.own, self.systems[self.own])}, which only the "
                "app itself can open",
                hint="use the tools of that system; commands can open only the embedded log and hr.io.kafka_log",
            )
        return spec

    def specs(self, home: Path) -> dict[str, SystemSpec]:
        found = {name: self.spec(name, home) for name in self.systems}
        return {name: spec for name, spec in found.items() if spec is not None}

    def record_systems(self, home: Path) -> dict[str, SystemSpec]:
        return {name: spec for name, spec in self.specs(home).items() if not keeps_rows(spec)}


_IN_HOME = "leave out snapshots=, and don't set the variable HEADRACE_SNAPSHOTS"
_DECODER = msgspec.json.Decoder(AppSystems)


def _known(spec: SystemSpec, home: str) -> _Known:
    if spec == home_log(home):
        return _Known(kind=spec.kind, home=True)
    options = dict(spec.options)
    if spec.kind == "log":
        options["root"] = str(Path(options["root"]).absolute())
    at = {"log": options.get("root"), "kafka-log": options.get("prefix", KAFKA_LOG_PREFIX)}.get(spec.kind)
    return _Known(kind=spec.kind, at=at, options=options if spec.kind in _TOLD and _can_be_told(options) else None)


def _staying(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _MOVES}


def _can_be_told(value: object, name: str = "") -> bool:
    match value:
        case Mapping():
            return all(isinstance(key, str) and _can_be_told(one, key) for key, one in value.items())
        case list() | tuple():
            return all(_can_be_told(one, name) for one in value)
        case str():
            return not is_secret(name) and hide_passwords(value) == value
        case None | bool() | int() | float():
            return True
    return False


def _described(name: str, known: _Known) -> str:
    if known.home:
        return "the embedded log of its home"
    return f"{name!r}, of kind {known.kind!r}" + (f" ({known.at})" if known.at else "")


NAMESPACE = "systems"


def check_systems(metadata: MetadataStore, app: str, settings: Settings) -> None:
    own, before = settings.internal_system(), recorded_systems(metadata, app, settings.timeline)
    if before is not None:
        AppSystems.of(own, (), settings.home).check_own(before, app)
        return
    begun = Timelines(metadata, app).get(settings.timeline)
    if begun is not None and begun.system != own.name:
        raise PlanError(
            f"savepoint {begun.savepoint!r} of app {app!r} was restored for streams in {begun.system!r}, but "
            f"the app now keeps its own streams in {own.name!r}",
            hint="give the system in hr.App(internal=...) the name that the savepoint was restored for",
        )


def check_snapshots(metadata: MetadataStore, plan: Plan) -> None:
    app, settings = plan.graph.app, plan.graph.settings
    before = recorded_systems(metadata, app, settings.timeline)
    if before is not None:
        before.check_snapshots(_recorded_as(settings.snapshots), app)


def record_systems(metadata: MetadataStore, plan: Plan, stages: Sequence[str] = ()) -> None:
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
    current = recorded_systems(metadata, app, current_timeline(metadata, app))
    return current or next((systems for known, systems in all_systems(metadata) if known == app), None)


def all_systems(metadata: MetadataStore) -> Iterator[tuple[str, AppSystems]]:
    """The systems of each app and timeline that has ever run, by the names of the apps, the newest timeline first."""
    found = []
    for key, entry in metadata.scan(NAMESPACE).items():
        app, _, timeline = key.partition("@")
        found.append((app, -int(timeline or FIRST_TIMELINE), entry.value))
    for app, _, data in sorted(found):
        yield app, AppSystems.decode(data, app)


def forget_systems(metadata: MetadataStore, app: str, timeline: int) -> None:
    update(metadata, NAMESPACE, folder_name(app, timeline), lambda data: None)


def system_called(metadata: MetadataStore, home: Path, name: str, app: str | None = None) -> SystemSpec:
    used = {known: latest_systems(metadata, known) for known, _ in all_systems(metadata) if app in (None, known)}
    if app is not None and app not in used:
        hint = "give the home folder that it uses with --home, or its metadata store with --metadata"
        raise UsageError(f"app {app!r} has never run on {metadata.place}", hint=hint)
    found: dict[str, SystemSpec] = {}
    named: set[str] = {LOG}
    for known, systems in used.items():
        specs = {} if systems is None else systems.record_systems(home)
        named |= specs.keys()
        if systems is not None and (spec := specs.get(name or systems.own)) is not None:
            found[known] = spec
    distinct = {repr(spec): known for known, spec in found.items()}
    if len(distinct) > 1:
        one, other, *_ = sorted(distinct.values())
        hint = f"say which app you mean, for example --app {one}"
        raise UsageError(f"apps {one!r} and {other!r} use different systems named {name!r}", hint=hint)
    if not found:
        what = f"no app on {metadata.place} has streams in a system {name!r} that commands can open"
        raise UsageError(what, hint=f"commands can open {', '.join(sorted(named))}")
    return next(iter(found.values()))


def known_systems(metadata: MetadataStore, home: Path) -> list[SystemSpec]:
    found = [home_log(home)]
    for app in dict(all_systems(metadata)):
        systems = latest_systems(metadata, app)
        specs = () if systems is None else systems.record_systems(home).values()
        found += [spec for spec in specs if spec not in found]
    return [found[0], *sorted(found[1:], key=lambda spec: spec.name)]
