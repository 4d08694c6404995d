"""A planned app in the terms of the simulator: its stages, tasks and streams, as the plan has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from typing_extensions import override

from headrace.api.specs import Role
from headrace.core.ids import StreamId, TaskName
from headrace.plan.model import Plan, StagePlan, StreamPlan
from headrace.runtime.task_scope import TaskScope
from headrace.systems.registry import keeps_rows
from simulator.case import AppCase
from simulator.declared import CASES, planned
from simulator.shapes import Shape, Stage, TaskShape


@dataclass(frozen=True)
class AppStage(Stage):
    """A stage of the plan; ``reads`` names its sources, too."""

    @property
    @override
    def takes(self) -> frozenset[str]:
        return frozenset(self.reads)


@dataclass(frozen=True)
class AppShape(Shape):
    """An app and its plan."""

    plan: Plan
    case: AppCase
    scopes: Mapping[TaskName, TaskScope]
    first: tuple[Plan, Mapping[TaskName, TaskScope]] | None = None
    """What an app that changes begins with."""

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
        """What it reads from outside."""
        return tuple(s for s in self.plan.streams.values() if s.spec.role in (Role.SOURCE, Role.SIDE_INPUT))

    def plan_of(self, scope: TaskScope) -> Plan:
        """The plan that a task is of: when the app has changed, containers of the first version may still live."""
        if self.first is not None and scope is self.first[1][scope.name]:
            return self.first[0]
        return self.plan

    @override
    def id_of(self, stream: str) -> StreamId:
        return next(s.spec.stream for s in self.plan.streams.values() if s.spec.stream.name == stream)

    @override
    def tasks(self) -> list[TaskShape]:
        return [self._task(scope) for scope in self.scopes.values()]

    def _task(self, scope: TaskScope) -> TaskShape:
        return TaskShape(
            name=scope.name,
            stage=next(s for s in self.stages if s.name == scope.name.stage),
            producer=scope.producer,
            inputs={ssp: tuple(producers) for ssp, producers in scope.producers.items()},
            writers=scope.writers,
            outputs={**(self.first[1][scope.name].machine.outputs if self.first else {}), **scope.machine.outputs},
            sources=tuple(ssp for ssp in scope.specs if ssp not in scope.producers),
        )


@cache
def app_shape(name: str) -> AppShape:
    """The shape of an app by its name."""
    plans = planned(name)
    plan, first = plans.last, plans.first
    framed = [s for s in plan.streams.values() if not keeps_rows(s.spec.system) and s.writers]
    return AppShape(
        streams={s.spec.stream.name: s.partitions for s in framed},
        stages=tuple(_stage(plan, stage) for stage in plan.stages),
        plan=plan,
        case=CASES[name],
        scopes=_scopes(plan),
        first=None if first is None else (first, _scopes(first)),
    )


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
