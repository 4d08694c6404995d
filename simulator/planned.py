"""A planned app in the terms of the simulator: its stages, tasks and streams, as the plan has them.

An app that changes has a plan for each of its versions. What a run needs for all of them, logs and tasks, is the union.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from typing_extensions import override

from headrace.api.specs import Role
from headrace.app import App
from headrace.core.ids import FIRST_TIMELINE, SSP, StreamId, TaskName
from headrace.plan.changes import Changes, compare
from headrace.plan.inventory import NOTHING, Consent, Heritage, Inventory, consent_of, inventory_of
from headrace.plan.model import Plan, StagePlan, StreamPlan
from headrace.plan.planner import plan
from headrace.systems.base import StreamInfo
from headrace.systems.registry import keeps_rows
from headrace.task.scope import TaskScope
from simulator.case import COLUMNS, AppCase, Version
from simulator.declared import CASES
from simulator.shapes import Shape, Stage, TaskShape

MakeHeritage = Callable[[Inventory, Consent], Heritage]
"""The seam for mutants of the planner: the plans of an app are made once a process for each."""


@dataclass(frozen=True)
class PlannedVersion:
    """A version of an app with its plan, and what it changes in what the app keeps."""

    plan: Plan
    scopes: Mapping[TaskName, TaskScope]
    changes: Changes


@dataclass(frozen=True)
class AppStage(Stage):
    """A stage of the plan; ``reads`` names its sources, too."""

    @cached_property
    @override
    def takes(self) -> frozenset[str]:
        return frozenset(self.reads)


@dataclass(frozen=True)
class AppShape(Shape):
    """An app and its plans."""

    case: AppCase
    versions: tuple[PlannedVersion, ...]
    heritage: MakeHeritage
    """By which its versions were planned."""
    key: tuple[object, ...]
    """Tells it from others of the same heritage."""
    recorded: Inventory = NOTHING
    """What its app takes over, in a timeline that began with a savepoint."""
    timeline: int = FIRST_TIMELINE

    @property
    def plan(self) -> Plan:
        """What the app is at last."""
        return self.versions[-1].plan

    @property
    def scopes(self) -> Mapping[TaskName, TaskScope]:
        """The tasks that it has at last."""
        return self.versions[-1].scopes

    @property
    @override
    def outputs(self) -> tuple[str, ...]:
        """The framed streams that leave the app."""
        return tuple(
            s.spec.stream.name
            for s in self.plan.streams.values()
            if s.spec.role is Role.SINK and not keeps_rows(s.spec.system)
        )

    @property
    def targets(self) -> tuple[StreamId, ...]:
        """Its outputs in foreign systems."""
        return tuple(s.spec.stream for s in self.plan.streams.values() if keeps_rows(s.spec.system))

    @property
    def sources(self) -> tuple[StreamPlan, ...]:
        """What any version of it reads from outside, as the last one that does has it."""
        found = {s.spec.id: s for version in self.versions for s in version.plan.streams.values()}
        return tuple(s for s in found.values() if s.spec.role in (Role.SOURCE, Role.SIDE_INPUT))

    def plan_of(self, scope: TaskScope) -> Plan:
        """The plan that a task is of: when the app has changed, containers of earlier versions may still live."""
        first, *others = self.versions
        return next((v.plan for v in others if v.scopes.get(scope.name) is scope), first.plan)

    @override
    def id_of(self, stream: str) -> StreamId:
        return next(s.spec.stream for s in self.plan.streams.values() if s.spec.stream.name == stream)

    @override
    def tasks(self) -> list[TaskShape]:
        names = dict.fromkeys(name for version in reversed(self.versions) for name in version.scopes)
        return [self._task([v.scopes[name] for v in self.versions if name in v.scopes]) for name in names]

    def _task(self, lives: list[TaskScope]) -> TaskShape:
        """What a task is connected to in any of its versions."""
        last = lives[-1]
        inputs: dict[SSP, tuple[int, ...]] = {}
        outputs: dict[StreamId, int] = {}
        for scope in lives:
            inputs |= {ssp: tuple(producers) for ssp, producers in scope.producers.items()}
            outputs |= scope.machine.outputs
        return TaskShape(
            name=last.name,
            stage=next((s for s in self.stages if s.name == last.name.stage), AppStage(last.name.stage, "nothing", 0)),
            producer=last.producer,
            inputs=inputs,
            writers=last.writers,
            outputs=outputs,
            sources=tuple(dict.fromkeys(ssp for scope in lives for ssp in scope.specs if ssp not in inputs)),
        )


@cache
def app_shape(name: str, heritage: MakeHeritage = Heritage) -> AppShape:
    """The shape of an app by its name; ``heritage`` makes what each version takes over from."""
    versions = _planned(CASES[name], heritage)
    plan = versions[-1].plan
    framed = [s for s in plan.streams.values() if not keeps_rows(s.spec.system) and s.writers]
    return AppShape(
        streams={s.spec.stream.name: s.partitions for s in framed},
        stages=tuple(_stage(plan, stage) for stage in plan.stages),
        case=CASES[name],
        versions=versions,
        heritage=heritage,
        key=(name,),
        moved=CASES[name].moved,
    )


_TIMELINES: dict[tuple[object, ...], AppShape] = {}


def timeline_shape(before: AppShape, timeline: int, inventory: Inventory) -> AppShape:
    """The shape of an app in a timeline that begins with a savepoint of the app as it was ``before``.

    ``inventory`` is that of the new timeline.
    """
    key = (before.key[0], timeline, *(record.encode() for record in inventory.stages.values()))
    if key not in _TIMELINES:
        case = before.case
        heritage = Heritage(inventory)
        plan = _plan(case, case.versions[-1], heritage, timeline)
        version = PlannedVersion(plan, _scopes(plan), compare(inventory_of(plan), heritage))
        version.changes.check()
        framed = [s for s in plan.streams.values() if not keeps_rows(s.spec.system) and s.writers]
        _TIMELINES[key] = AppShape(
            streams={s.spec.stream.name: s.partitions for s in framed},
            stages=tuple(_stage(plan, stage) for stage in plan.stages),
            case=case,
            versions=(version,),
            heritage=before.heritage,
            key=key,
            recorded=inventory,
            timeline=timeline,
        )
    return _TIMELINES[key]


def _planned(case: AppCase, make: MakeHeritage) -> tuple[PlannedVersion, ...]:
    recorded, found = NOTHING, []
    for version in case.versions:
        heritage = make(recorded, consent_of(version.drops, {}))
        plan = _plan(case, version, heritage)
        inventory = inventory_of(plan)
        found.append(PlannedVersion(plan, _scopes(plan), compare(inventory, heritage)))
        recorded = inventory.after(recorded)
    return tuple(found)


def _plan(case: AppCase, version: Version, heritage: Heritage, timeline: int = FIRST_TIMELINE) -> Plan:
    app = App(case.name, checkpoint_interval=f"{version.interval_ms}ms", guarantee=version.guarantee)
    version.declare(app)
    counts = {**case.inputs, **version.inputs}
    facts = {stream: StreamInfo(stream, partitions, COLUMNS) for stream, partitions in counts.items()}
    declared = app.graph()
    graph = heritage.adopt(replace(declared, settings=replace(declared.settings, timeline=timeline)))
    if timeline != FIRST_TIMELINE:
        # As a deployment does: streams that don't exist yet have the counts in the inventory. The user follows.
        known = {part.kept_as: int(part.fixed.get("partitions", 0)) for _, part in heritage.inventory.parts()}
        given = {id_: known[s.stream.name] for id_, s in graph.streams.items() if s.role is Role.INTERMEDIATE}
        facts |= {id_: StreamInfo(graph.streams[id_].stream.name, count) for id_, count in given.items()}
        streams = {id_: replace(s, partitions=given.get(id_, s.partitions)) for id_, s in graph.streams.items()}
        graph = replace(graph, streams=streams)
    return plan(graph, facts, heritage=heritage)


def _scopes(plan: Plan) -> dict[TaskName, TaskScope]:
    return {task.name: TaskScope.of(plan, stage, task) for stage in plan.stages for task in stage.tasks}


def _stage(plan: Plan, stage: StagePlan) -> AppStage:
    reads = [plan.streams[id_] for id_ in stage.inputs]
    return AppStage(
        name=stage.name,
        does="operators",
        tasks=len(stage.tasks),
        writes=tuple(plan.streams[id_].spec.stream.name for id_ in stage.outputs),
        reads=tuple(s.spec.stream.name for s in reads),
        sources=sum(s.partitions for s in reads if s.spec.role is Role.SOURCE),
    )
