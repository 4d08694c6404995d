"""Plan an app for a home in which an earlier version may have run, and record the version that is started.

The inventory of an app is in the metadata store, one entry for each stage and one for the former names. It
is written before anything runs, so a start that dies in between is no different from one that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.api.specs import Graph, Role
from headrace.core.errors import HeadraceError, PlanError, UnavailableError, UsageError
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.metadata.store import Change, Delete, MetadataStore, Put
from headrace.metadata.timelines import FIRST, current_timeline
from headrace.plan.changes import Changes, Verdict, check_consent, compare
from headrace.plan.heritage import Consent, Heritage
from headrace.plan.inventory import Inventory, StageRecord, inventory_of
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.app_systems import check_systems, record_systems
from headrace.runners.changelogs import opened_changelogs
from headrace.runners.coordination import endings
from headrace.runners.coordination.runs import find_all
from headrace.runners.facts import gather_facts
from headrace.runners.memos import with_memos
from headrace.runners.savepoints.inventories import GONE, encode_gone, read_inventory
from headrace.runtime.naming import inventory_namespace
from headrace.savepoints.founding_file import read_foundings
from headrace.systems.base import StreamInfo

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and its changes to the app's kept state."""

    plan: Plan
    changes: Changes


class Deployment:
    """The planning of one app, given what is recorded of it: an app has a new one for each start."""

    def __init__(self, graph: Graph, metadata: MetadataStore, consent: Consent, against: str = "") -> None:
        """``against`` is the app whose inventory counts; by default this one's."""
        self._metadata = metadata
        self._app = against or graph.app
        self.timeline = current_timeline(metadata, self._app)
        graph = with_memos(metadata, graph)
        self._declared = replace(graph, settings=replace(graph.settings, timeline=self.timeline))
        self._namespace = inventory_namespace(self._app, self.timeline)
        self._entries = metadata.scan(self._namespace)
        self.inventory = read_inventory(self._entries)
        self._consent = Consent(consent.drop, _still_to_rename(consent.renamed, self.inventory))
        self._facts: dict[Consent, tuple[Graph, Mapping[str, StreamInfo | None]]] = {}

    def planned(self, containers: int = 1, stages: Sequence[str] = ()) -> Planned:
        """The plan and its changes. Raises ``UsageError`` for an id that the user accepts and the app never had.

        State is dropped only where the app couldn't run otherwise. So the flags may stay in a script. An intermediate
        stream in which no message waits needs no flag: nothing is lost.
        """
        check_systems(self._metadata, self._app, self._declared.settings)
        cautious = Consent(frozenset(), self._consent.renamed)
        try:
            found = self._planned(cautious, containers, stages)
        except PlanError:
            if not self._consent.drop:
                raise
            found = self._planned(self._consent, containers, stages)
        _check_stages(found.plan, stages)
        check_consent(self._consent, inventory_of(found.plan), self.inventory)
        refused = found.changes.of(Verdict.REFUSED)
        needed = {owner for change in refused for owner in (change.id, change.owner)}
        drop = self._consent.drop & needed
        drop |= {change.id for change in refused if change.kind == "stream" and self._is_empty(change.id)}
        if drop:
            found = self._planned(Consent(drop, self._consent.renamed), containers, stages)
        return Planned(self._founded(found.plan), found.changes)

    def _founded(self, plan: Plan) -> Plan:
        """Return the plan. In a timeline that began with a savepoint, its tasks know the state that they take over."""
        if self.timeline == FIRST:
            return plan
        home, tasks = Path(plan.graph.settings.home), [task.name for stage in plan.stages for task in stage.tasks]
        found = read_foundings(home, self._app, self.timeline, tasks)
        stages = (
            replace(stage, tasks=tuple(replace(task, founding=found.get(task.name)) for task in stage.tasks))
            for stage in plan.stages
        )
        return replace(plan, stages=tuple(stages))

    def _is_empty(self, stream: str) -> bool:
        """Whether an intermediate stream certainly holds no message that its reader has still to process."""
        graph = self._declared
        home = Path(graph.settings.home)
        before = Consent(frozenset(), self._consent.renamed).before(stream, stream)
        found = next((both for both in self.inventory.parts() if both[1].id == before and both[1].reads), None)
        if found is None or find_all(self._metadata, graph.app):
            return False
        record, part = found
        readers = [TaskName(record.stage, number) for number in range(record.tasks)]
        try:
            with opened_changelogs(self._metadata, home, graph.app, self.timeline) as changelogs:
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
        """Record the names of removed stages and streams, so that new ones don't get them, and delete their records."""
        over = before.stages.keys() - new.stages.keys()
        gone = new.after(before).gone
        if gone == before.gone:
            return []
        known = self._entries.get(GONE)
        note = Put(GONE, encode_gone(gone), known.version if known else None)
        return [note, *(Delete(name, self._entries[name].version) for name in sorted(over))]


def planned_against(graph: Graph, inventory: Inventory) -> Planned:
    """The plan of an app for what an inventory lists, which may be that of a savepoint, and its changes."""
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
    """Raise ``PlanError`` for a changed app that has ended: what is new in it would never run.

    ``against`` is the app that may have ended; by default this one.
    """
    app = against or planned.plan.graph.app
    over = {
        stage.name
        for status in endings.ended(metadata, app)
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


def _still_to_rename(renamed: Mapping[str, str], inventory: Inventory) -> dict[str, str]:
    """The renames that haven't happened at an earlier start."""
    known = inventory.ids()
    return {new: old for new, old in renamed.items() if old in known or new not in known}


def _check_stages(planned: Plan, stages: Iterable[str]) -> None:
    """Raise ``UsageError`` for a stage that the plan doesn't have."""
    known = [stage.name for stage in planned.stages]
    for name in stages:
        if name not in known:
            raise UsageError(f"the app has no stage {name!r}", hint=f"its stages: {', '.join(known)}")
