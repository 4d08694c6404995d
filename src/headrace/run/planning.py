"""Before an app runs: plan it, compare it with its earlier version, and create the streams that it owns.

The inventory of an app is in the metadata store, one entry for each stage and one for the former names. It is written
before anything runs, so a start that dies in between is no different from one that ran.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api.specs import DEAD_LETTER_COLUMNS, Graph, Role, StreamSpec
from headrace.coordinator import publication
from headrace.coordinator.publication import find_all
from headrace.core.errors import (
    HeadraceError,
    PlanError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSealedError,
    UnavailableError,
    UsageError,
)
from headrace.core.ids import FIRST_TIMELINE, TaskName
from headrace.core.log import logger
from headrace.life.apps import check_snapshots, check_systems, record_systems
from headrace.life.changelogs import opened_changelogs, with_memos
from headrace.life.folder import read_foundings
from headrace.life.metadata import Change, Delete, MetadataStore, Put
from headrace.life.timelines import current_timeline
from headrace.plan.changes import Answer, Changes, Verdict, check_consent, compare
from headrace.plan.inventory import NO_CONSENT, Consent, Heritage, Inventory, StageRecord, inventory_of
from headrace.plan.model import Plan, StreamPlan
from headrace.plan.planner import plan
from headrace.plan.render import place_of
from headrace.plan.validate import missing, other_count
from headrace.run.savepoints.restoring import GONE, encode_gone, read_inventory
from headrace.stores.transfer import check_objects
from headrace.systems.base import Admin, StreamInfo
from headrace.systems.registry import keeps_rows
from headrace.task.connections import Connections
from headrace.task.naming import changelog_name, inventory_namespace

if TYPE_CHECKING:
    import polars as pl


_log = logger(__name__)


def gather_facts(graph: Graph) -> dict[str, StreamInfo | None]:
    """Return the facts about each stream from its system, by id; None where it doesn't exist. Changes nothing.

    An input that the start will create counts as there. The error of a system names the stream and the line that
    declares it. Raises ``PlanError`` if an input isn't there, but one of nearly the same name is.
    """
    facts: dict[str, StreamInfo | None] = {}
    with closing(Connections()) as connections:
        for id_, spec in graph.streams.items():
            if spec.role is Role.SINK and keeps_rows(spec.system):
                facts[id_] = None  # it has no partitions; whether it can be written is checked when the app runs
                continue
            try:
                admin = connections.admin(spec.system)
                facts[id_] = admin.describe(spec.stream.name)
                if facts[id_] is None and spec.create is not None:
                    facts[id_] = StreamInfo(spec.stream.name, spec.create, _columns(spec), key=spec.key)
                near = _near(spec, admin) if facts[id_] is None else None
            except HeadraceError as error:
                error.message = f"{spec.role.value} stream {id_!r} ({spec.location}): {error.message}"
                raise
            if near is not None:
                raise missing(spec, near)
    return facts


def _columns(spec: StreamSpec) -> dict[str, pl.DataType] | None:
    return None if spec.schema is None else dict(spec.schema.columns)


def _near(spec: StreamSpec, admin: Admin) -> str | None:
    """The stream of the log that may have been meant by the name of one that the app reads."""
    if spec.role not in (Role.SOURCE, Role.SIDE_INPUT) or spec.system.kind != "log":
        return None
    return next(iter(difflib.get_close_matches(spec.stream.name, admin.list(), n=1)), None)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and its changes to the app's kept state."""

    plan: Plan
    changes: Changes


class Deployment:
    """The planning of one app, given what is recorded of it: an app has a new one for each start."""

    def __init__(self, graph: Graph, metadata: MetadataStore, consent: Consent, against: str = "") -> None:
        """``against`` is the app whose inventory counts; by default this one's."""
        self._metadata, self._app = metadata, against or graph.app
        self.timeline = current_timeline(metadata, self._app)
        graph = with_memos(metadata, graph)
        self._declared = replace(graph, settings=replace(graph.settings, timeline=self.timeline))
        self._namespace = inventory_namespace(self._app, self.timeline)
        self._entries = metadata.scan(self._namespace)
        self.inventory = read_inventory(self._entries)
        known = self.inventory.ids()
        still = {new: old for new, old in consent.renamed.items() if old in known or new not in known}
        self._consent = Consent(consent.drop, still)
        self._facts: dict[Consent, tuple[Graph, Mapping[str, StreamInfo | None]]] = {}

    def planned(self, containers: int = 1, stages: Sequence[str] = ()) -> Planned:
        """Plan the app. State is dropped only where the app couldn't run otherwise, so the flags may stay in a script.

        An intermediate stream in which no message waits needs no flag: nothing is lost.
        """
        check_systems(self._metadata, self._app, self._declared.settings)
        cautious = Consent(frozenset(), self._consent.renamed)
        try:
            found = self._planned(cautious, containers, stages)
        except PlanError:
            if not self._consent.drop:
                raise
            found = self._planned(self._consent, containers, stages)
        names = [stage.name for stage in found.plan.stages]
        for name in stages:
            if name not in names:
                raise UsageError(f"the app has no stage {name!r}", hint=f"its stages: {', '.join(names)}")
        check_consent(self._consent, inventory_of(found.plan), self.inventory)
        refused = found.changes.of(Verdict.REFUSED)
        needed = {owner for change in refused for owner in (change.id, change.owner)}
        drop = self._consent.drop & needed
        drop |= {change.id for change in refused if change.kind == "stream" and self._is_empty(change.id)}
        if drop:
            found = self._planned(Consent(drop, self._consent.renamed), containers, stages)
        return Planned(self._founded(found.plan), found.changes)

    def _founded(self, plan: Plan) -> Plan:
        if self.timeline == FIRST_TIMELINE:
            return plan
        home, tasks = Path(plan.graph.settings.home), [task.name for stage in plan.stages for task in stage.tasks]
        found = read_foundings(home, self._app, self.timeline, tasks)
        stages = (
            replace(stage, tasks=tuple(replace(task, founding=found.get(task.name)) for task in stage.tasks))
            for stage in plan.stages
        )
        return replace(plan, stages=tuple(stages))

    def _is_empty(self, stream: str) -> bool:
        app, home = self._declared.app, Path(self._declared.settings.home)
        before = Consent(frozenset(), self._consent.renamed).before(stream, stream)
        found = next((both for both in self.inventory.parts() if both[1].id == before and both[1].reads), None)
        if found is None or find_all(self._metadata, app):
            return False
        record, part = found
        readers = [TaskName(record.stage, number) for number in range(record.tasks)]
        try:
            with opened_changelogs(self._metadata, home, app, self.timeline) as changelogs:
                return changelogs is not None and not changelogs.messages_wait(part.kept_as, readers)
        except HeadraceError as error:
            _log.info("can't find out whether messages wait", stream=part.kept_as, error=error.message)
            return False

    def _planned(self, consent: Consent, containers: int, stages: Sequence[str]) -> Planned:
        heritage = Heritage(self.inventory, consent)
        if consent not in self._facts:
            graph = heritage.adopt(self._declared)
            self._facts[consent] = graph, _known(graph, gather_facts(graph), self.inventory)
        graph, facts = self._facts[consent]
        planned = plan(graph, facts, containers, heritage)
        return Planned(planned, compare(inventory_of(planned), heritage, stages))

    def record(self, planned: Planned, stages: Sequence[str] = ()) -> None:
        """Record the version that is about to run. Raises ``UnavailableError`` if another start was quicker.

        Call it when the run's address is published. Then a restore either sees the run, or is seen here.
        """
        if current_timeline(self._metadata, self._app) != self.timeline:
            raise UnavailableError(
                f"a savepoint of app {self._app!r} was restored while it started",
                hint="start it again: it begins where the savepoint was taken",
            )
        record_systems(self._metadata, planned.plan, stages)
        new = inventory_of(planned.plan)
        changes = self._puts(record for name, record in new.stages.items() if not stages or name in stages)
        if not stages:
            changes += self._given_up(self.inventory, new)
        if self._metadata.write(self._namespace, changes) is None:
            raise UnavailableError(
                f"another start of app {self._declared.app!r} recorded its version at the same time",
                hint="start it again, unless the other one is running",
            )
        self._entries = self._metadata.scan(self._namespace)
        for change in planned.changes.notable if self.inventory else ():
            _log.info("the app has changed", what=change.what, verdict=change.verdict.value, why=change.why)

    def _puts(self, records: Iterable[StageRecord]) -> list[Change]:
        data = {record.stage: record.encode() for record in records}
        known = {stage: entry for stage, entry in self._entries.items() if stage in data}
        return [
            Put(stage, value, known[stage].version if stage in known else None)
            for stage, value in data.items()
            if stage not in known or known[stage].value != value
        ]

    def _given_up(self, before: Inventory, new: Inventory) -> list[Change]:
        """Delete the records of removed stages and streams, and record their names, so that new ones don't get them."""
        over = before.stages.keys() - new.stages.keys()
        gone = new.after(before).gone
        if gone == before.gone:
            return []
        known = self._entries.get(GONE)
        note = Put(GONE, encode_gone(gone), known.version if known else None)
        return [note, *(Delete(name, self._entries[name].version) for name in sorted(over))]


def planned_against(graph: Graph, inventory: Inventory) -> Planned:
    heritage = Heritage(inventory)
    adopted = heritage.adopt(graph)
    planned = plan(adopted, _known(adopted, gather_facts(adopted), inventory), 1, heritage)
    return Planned(planned, compare(inventory_of(planned), heritage))


def _known(graph: Graph, facts: Mapping[str, StreamInfo | None], inventory: Inventory) -> dict[str, StreamInfo | None]:
    """The facts; and the partition counts of a new timeline's streams, which exist only once it has run."""
    counts = {part.kept_as: part.fixed.get("partitions", "") for _, part in inventory.parts()}
    known = dict(facts)
    for id_, spec in graph.streams.items():
        count = counts.get(spec.stream.name, "")
        if spec.role is Role.INTERMEDIATE and known[id_] is None and count.isdecimal():
            known[id_] = StreamInfo(spec.stream.name, int(count))
    return known


def check_not_ended(planned: Planned, metadata: MetadataStore, against: str = "") -> None:
    """Raise for a changed app that has ended (or ``against`` has): what is new in it would never run."""
    app = against or planned.plan.graph.app
    over = {
        stage.name
        for status in publication.ended(metadata, app)
        if status.state == "finished" and not status.drained
        for stage in status.stages
    }
    new = [c for c in planned.changes.of(Verdict.NEW, Verdict.GROWN, Verdict.DROPPED) if c.stage in over]
    if new:
        raise PlanError(
            f"app {app!r} has ended: all of its inputs have ended, and it has processed them. The new parts "
            f"would never run: {', '.join(change.what for change in new)}",
            hint="to run it over its inputs from the start, give it another name or another home",
        )


_PATHS = ("root", "path", "list_file", "memo")
"""The options of systems that are paths, unless they are URIs."""


def at_home(graph: Graph) -> Graph:
    """Return the app as containers get it: with absolute paths, and without the metadata store and its password."""
    settings = replace(graph.settings, home=str(Path(graph.settings.home).absolute()), metadata=None)
    streams = {}
    for id_, spec in graph.streams.items():
        options = {name: _absolute(name, value) for name, value in spec.system.options.items()}
        streams[id_] = replace(spec, system=replace(spec.system, options=options))
    return replace(graph, settings=settings, streams=streams)


def _absolute(name: str, value: Any) -> Any:
    is_path = name in _PATHS and isinstance(value, str) and "://" not in value
    return str(Path(value).absolute()) if is_path else value


def reads(plan: Plan, stream: str, stages: Sequence[str]) -> bool:
    return any(
        stream in (*stage.inputs, *stage.side_inputs) for stage in plan.stages if not stages or stage.name in stages
    )


def held_by_driver(plan: Plan, stages: Sequence[str] = ()) -> list[StreamSpec]:
    specs = [stream.spec for stream in plan.streams.values() if stream.spec.system.held is not None]
    return [spec for spec in specs if reads(plan, spec.id, stages)]


def stops_by_itself(plan: Plan, stages: Sequence[str] = ()) -> bool:
    """Whether the run of these stages (default: all) ends when it has read its inputs' present contents."""
    with closing(Connections()) as connections:
        sources = [s.spec for s in plan.streams.values() if s.spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
        found = [connections.admin(s.system).describe(s.stream.name) for s in sources if reads(plan, s.id, stages)]
        return any(info is not None and info.until_caught_up for info in found)


def prepare_streams(plan: Plan, stages: Sequence[str] = ()) -> None:
    """Create the streams that don't exist yet: intermediate ones, outputs, changelogs, and inputs with ``create=``.

    Raises for another partition count, as that would tear keys apart, and for a sealed one that these stages write.
    """
    with closing(Connections()) as connections:
        for stream in plan.streams.values():
            if stream.spec.role in (Role.INTERMEDIATE, Role.SINK):
                _create(connections, plan, stream)
            elif reads(plan, stream.spec.id, stages):
                admin, name = connections.admin(stream.spec.system), stream.spec.stream.name
                if stream.spec.create is not None and admin.describe(name) is None:
                    admin.create(name, stream.spec.create, _columns(stream.spec), stream.spec.key)
                admin.begin_run(name)
        for stage in plan.stages:
            if not stages or stage.name in stages:
                for id_ in stage.outputs:
                    _check_open(connections, stage.name, plan.streams[id_].spec)
        internal = connections.admin(plan.graph.settings.internal_system())
        for stage in plan.stages:
            name = changelog_name(plan.graph.app, stage.name, plan.graph.settings.timeline)
            info = internal.describe(name)
            if info is not None and info.partitions > len(stage.tasks):
                raise StreamExistsError(
                    f"stage {stage.name!r} had {info.partitions} tasks and should now have {len(stage.tasks)}",
                    hint="its state can't be moved: keep the partition counts, or rename the app",
                )
            if info is not None:
                internal.add_partitions(name, len(stage.tasks))
            internal.create(name, len(stage.tasks))


def prepare_outputs(plan: Plan) -> None:
    """Create the outputs that don't exist yet: all that a batch job writes."""
    with closing(Connections()) as connections:
        for stream in plan.streams.values():
            if stream.spec.role is Role.SINK:
                _create(connections, plan, stream)
                for stage in stream.writers:
                    _check_open(connections, stage, stream.spec)


def _check_open(connections: Connections, stage: str, spec: StreamSpec) -> None:
    if keeps_rows(spec.system):
        return
    if any(extent.sealed for extent in connections.admin(spec.system).extents(spec.stream.name)):
        raise StreamSealedError(
            f"{spec.role.value} stream {spec.id!r} ({spec.stream}, {spec.location}) is sealed, "
            f"and stage {stage!r} writes to it",
            hint="a seal is permanent: have the app write to a stream of another name",
        )


def ask_targets(plan: Plan) -> dict[str, Answer]:
    """Return what the start would do to each output in a foreign system, or why it would fail. Changes nothing."""
    with closing(Connections()) as connections:
        return {
            stream.spec.id: _asked(connections, plan, stream)
            for stream in plan.streams.values()
            if stream.spec.role is Role.SINK and keeps_rows(stream.spec.system)
        }


def _asked(connections: Connections, plan: Plan, stream: StreamPlan) -> Answer:
    spec = stream.spec
    place = place_of(spec)
    try:
        due = connections.admin(spec.system).would_create(spec.stream.name, stream.partitions, _written(plan, spec))
        _check_count(spec, due.partitions)
    except HeadraceError as error:
        why = f"{error.message} ({error.hint})" if error.hint else error.message
        if error.fault == "environment" and not isinstance(error, StreamNotFoundError | StreamExistsError):
            return Answer(Verdict.UNKNOWN, f"{place} can't be asked: {why}")
        return Answer(Verdict.REFUSED, why)
    if due.new:
        return Answer(Verdict.NEW, f"{place} is created")
    return Answer(Verdict.GROWN, f"{place} gains {', '.join(due.added)}") if due.added else Answer(Verdict.KEPT)


def _create(connections: Connections, plan: Plan, stream: StreamPlan) -> None:
    spec = stream.spec
    admin = connections.admin(spec.system)
    columns = _written(plan, spec)
    there = None if columns is None or keeps_rows(spec.system) else admin.describe(spec.stream.name)
    if there is not None and there.columns is None and spec.role is Role.SINK:
        admin.create(spec.stream.name, stream.partitions)  # it takes rows of any columns
    elif columns is not None and there is not None and there.columns is not None:
        admin.create(spec.stream.name, stream.partitions)
        admin.add_columns(spec.stream.name, columns)
    else:
        key = stream.key if there is None or there.key else ()
        found = admin.create(spec.stream.name, stream.partitions, columns, key)
        if keeps_rows(spec.system):
            _check_count(spec, found.partitions)


def _written(plan: Plan, spec: StreamSpec) -> dict[str, pl.DataType] | None:
    if spec.id in {s.dead_letter for s in plan.graph.streams.values()}:
        return dict(DEAD_LETTER_COLUMNS)
    return None if spec.id in plan.combined else _columns(spec)


def _check_count(spec: StreamSpec, found: int) -> None:
    if not spec.system.slots and spec.partitions not in (None, found):
        raise other_count(spec, found)


@dataclass(frozen=True, slots=True)
class Checked:
    """An app that can run, and its plan for one container. ``stages`` limits the run to these; empty means all."""

    graph: Graph
    metadata: MetadataStore
    stages: Sequence[str]
    deployment: Deployment
    planned: Planned


def check_run(
    graph: Graph, metadata: MetadataStore, stages: Sequence[str] = (), consent: Consent = NO_CONSENT
) -> Checked:
    """Plan the app, and change nothing. ``consent`` lists kept state whose loss the user accepts."""
    deployment = Deployment(graph, metadata, consent)
    planned = deployment.planned(stages=stages)
    planned.changes.check()
    check_not_ended(planned, metadata)
    check_snapshots(metadata, planned.plan)
    check_objects(graph.settings.snapshots)
    return Checked(graph, metadata, stages, deployment, planned)
