"""The part of a plan that concerns one task: what its host and everything around its operators need to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from headrace.api.operators.streams import SendTo
from headrace.api.settings import Settings
from headrace.api.specs import Role, StreamSpec, TableSpec
from headrace.checkpoint.founding import Founding
from headrace.checkpoint.table_methods import MachineConfig
from headrace.core.errors import PlanError
from headrace.core.ids import SSP, TaskName
from headrace.core.log import logger
from headrace.plan.delivery import Delivery, deliveries
from headrace.plan.model import Plan, StagePlan, StreamPlan, TaskPlan
from headrace.plan.queryable import Queryable, queryable_in
from headrace.runtime.frame_pace import commit_interval_ms
from headrace.runtime.naming import StateFolders, changelog_ssp, state_folders
from headrace.runtime.placing import Placing
from headrace.systems.registry import SystemSpec, hash_of, keeps_rows

_log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class TaskScope:
    """One task of the plan. Everything is about this task and its stage; streams and tables are named by their ids.

    ``producers`` names the tasks, by producer id, that write each intermediate input partition.
    """

    app: str
    name: TaskName
    producer: int
    task_count: int
    settings: Settings
    inputs: Mapping[SSP, StreamSpec]
    """Sources and intermediate streams, by the partitions that the task reads."""
    side_inputs: Mapping[SSP, StreamSpec] = field(default_factory=dict)
    """They keep tables: event time and the end of the app don't depend on them."""
    writers: Mapping[SSP, Mapping[str, int]] = field(default_factory=dict)
    """The stages that write each intermediate input partition, each with its number of tasks."""
    producers: Mapping[SSP, Mapping[int, TaskName]] = field(default_factory=dict)
    written_by_clock: frozenset[SSP] = frozenset()
    """The intermediate inputs whose writers read only sources, so that they commit by the clock."""
    outputs: Mapping[str, StreamPlan] = field(default_factory=dict)
    """The streams and targets that the stage writes."""
    own: frozenset[str] = frozenset()
    """Those that leave the app and that no key deals out: of their partitions the task writes its own alone."""
    output_tables: Mapping[str, TableSpec] = field(default_factory=dict)
    """The remote tables among the outputs."""
    output_writers: Mapping[str, int] = field(default_factory=dict)
    """The number of tasks that write each of those."""
    partial: frozenset[str] = frozenset()
    """The inputs that carry partial results of a window."""
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The columns that were added to inputs: older frames lack them."""
    placing: Mapping[str, Placing] = field(default_factory=dict)
    """The inputs with a key that chooses the partition."""
    kept_keys: Mapping[str, Placing] = field(default_factory=dict)
    """The functions, by node, that have to leave unchanged the key by which the task's partition was chosen."""
    deliveries: Mapping[str, Delivery] = field(default_factory=dict)
    """The guarantee of each output outside the app, and of each sink function."""
    timed: bool = True
    """Some input of the app has an event time, so watermarks mean something."""
    queryable: Mapping[str, Queryable] = field(default_factory=dict)
    """The tables of the stage that can be queried."""
    kept_as: Mapping[str, str] | None = None
    """The names under which state and positions are kept, by the ids of the tables, steps, outputs and inputs.

    None for a task without a plan: its ids are the names.
    """
    dropped: tuple[str, ...] = ()
    """The names of unneeded state that the changelog may still hold."""
    founding: Founding | None = None
    """What the task takes over from a savepoint if its changelog is empty."""
    tasks_beside: int = 0
    frames_beside: int = 0
    """The number of tasks in its container, and of the frames that they write for a commit of each."""

    @classmethod
    def of(cls, plan: Plan, stage: StagePlan, task: TaskPlan) -> TaskScope:
        """The scope of a task of this stage."""
        mine = sorted(task.inputs)
        inputs = _partitions(plan, mine, _streams_read(plan, stage))
        shuffled = {s.spec.id: s for s in plan.streams.values() if s.spec.role is Role.INTERMEDIATE}
        counts = {s.name: len(s.tasks) for s in plan.stages}
        writers = {
            ssp: {name: counts[name] for name in shuffled[spec.id].writers}
            for ssp, spec in inputs.items()
            if spec.id in shuffled
        }
        tables = {id_: plan.graph.tables[id_] for id_ in stage.outputs if id_ in plan.graph.tables}
        return cls(
            app=plan.graph.app,
            name=task.name,
            producer=task.producer,
            task_count=len(stage.tasks),
            settings=plan.graph.settings,
            inputs=inputs,
            side_inputs=_partitions(plan, mine, stage.side_inputs),
            writers=writers,
            producers={
                ssp: {task.producer: task.name for name in names for task in plan.stage(name).tasks}
                for ssp, names in writers.items()
            },
            written_by_clock=frozenset(
                ssp for ssp, names in writers.items() if not any(shuffled.keys() & plan.stage(n).inputs for n in names)
            ),
            outputs={id_: plan.streams[id_] for id_ in stage.outputs},
            own=frozenset(_own(plan, stage)),
            output_tables=tables,
            output_writers={id_: sum(len(s.tasks) for s in plan.stages if id_ in s.outputs) for id_ in tables},
            partial=frozenset(plan.combined),
            added={id_: plan.streams[id_].added for id_ in (*stage.inputs, *stage.side_inputs)},
            placing=placings(plan.streams[id_] for id_ in (*stage.inputs, *stage.side_inputs)),
            kept_keys={
                id_: Placing(kept.columns, plan.streams[kept.stream].partitions, hash_of(spec.system))
                for id_, kept in plan.kept_keys.items()
                if id_ in stage.nodes and (spec := plan.streams[kept.stream].spec)
            },
            deliveries=deliveries(plan.graph, stage),
            timed=any(stream.event_time is not None for stream in plan.graph.streams.values()),
            queryable=queryable_in(plan, stage),
            kept_as=stage.kept_as,
            dropped=stage.dropped,
            founding=task.founding,
        )

    def store_name(self, id_: str) -> str:
        """The name under which a store is kept. A store of a step has the step's id, or begins with it and a dot."""
        if self.kept_as is None:
            return id_
        owner = id_
        while owner:
            if owner in self.kept_as:
                return self.kept_as[owner] + id_.removeprefix(owner)
            owner = owner.rpartition(".")[0]
        raise PlanError(
            f"stage {self.name.stage!r} keeps state in the store {id_!r}, which no step declares",
            hint="have the step's spec declare it in kept_state: else a changed app couldn't be compared with it",
        )

    def position_name(self, ssp: SSP) -> str:
        """The name under which the position in a source is kept."""
        return (self.kept_as or {}).get(self.specs[ssp].id, str(ssp.stream))

    @cached_property
    def specs(self) -> Mapping[SSP, StreamSpec]:
        """All inputs, side inputs too."""
        return {**self.inputs, **self.side_inputs}

    @property
    def interval_ms(self) -> int:
        """The checkpoint interval: that of the app, or longer with very many tasks or a wide shuffle."""
        return commit_interval_ms(self.settings.checkpoint_interval_ms, self.tasks_beside, self.frames_beside)

    @property
    def downstream(self) -> tuple[StreamPlan, ...]:
        """The intermediate streams that the stage writes."""
        return tuple(stream for stream in self.outputs.values() if stream.spec.role is Role.INTERMEDIATE)

    @cached_property
    def machine(self) -> MachineConfig:
        """The task as the protocol sees it: who writes its inputs, which framed streams it writes."""
        framed = [stream for stream in self.outputs.values() if not keeps_rows(stream.spec.system)]
        return MachineConfig(
            task=self.name,
            task_count=self.task_count,
            producer=self.producer,
            inputs={ssp: tuple(producers) for ssp, producers in self.producers.items()},
            outputs={stream.spec.stream: stream.partitions for stream in framed},
            own={
                stream.spec.stream: self.name.number % stream.partitions
                for stream in framed
                if stream.spec.id in self.own
            },
            interval_ms=self.interval_ms,
            exactly_once=self.settings.guarantee == "exactly_once",
            founded=self.founding.record if self.founding is not None else None,
        )

    @property
    def changelog(self) -> tuple[SSP, SystemSpec]:
        """The task's changelog partition, and the system it is in."""
        return changelog_ssp(self.settings, self.app, self.name)

    @property
    def folders(self) -> StateFolders | None:
        """The task's folders; None for an app that keeps no state on disk."""
        return state_folders(self.settings, self.app, self.name)


def _streams_read(plan: Plan, stage: StagePlan) -> Iterable[str]:
    """The streams that the stage's operators read."""
    read = (plan.graph.nodes[id_].operator.stream_read for id_ in stage.nodes)
    return dict.fromkeys(stream for stream in read if stream is not None)


def _own(plan: Plan, stage: StagePlan) -> Iterable[str]:
    """The outputs that no operator of the stage deals out to all partitions."""
    operators = [plan.graph.nodes[id_].operator for id_ in stage.nodes]
    dealt = {operator.stream for operator in operators if isinstance(operator, SendTo) and operator.keys}
    leave = (id_ for id_ in stage.outputs if plan.streams[id_].spec.role is not Role.INTERMEDIATE)
    return (id_ for id_ in leave if id_ not in dealt)


def _partitions(plan: Plan, mine: Iterable[SSP], streams: Iterable[str]) -> dict[SSP, StreamSpec]:
    """This task's partitions of these streams. Of thousands of partitions it looks at its own alone."""
    specs = [plan.streams[id_].spec for id_ in streams]
    return {ssp: spec for spec in specs for ssp in mine if ssp.stream == spec.stream}


def placings(inputs: Iterable[StreamPlan]) -> dict[str, Placing]:
    """The inputs from outside whose rows must be in the partition that their key chooses, by id."""
    return {
        stream.spec.id: Placing(stream.key, stream.partitions, hash_of(stream.spec.system))
        for stream in inputs
        if stream.key and stream.partitions > 1 and stream.spec.role is not Role.INTERMEDIATE
    }


def beside(scopes: Mapping[TaskName, TaskScope]) -> dict[TaskName, TaskScope]:
    """Return the scopes of all tasks of a container, which know how many these are and how much they write."""
    frames = sum(stream.partitions for scope in scopes.values() for stream in scope.downstream)
    found = {name: replace(scope, tasks_beside=len(scopes), frames_beside=frames) for name, scope in scopes.items()}
    for scope in islice(found.values(), 1):
        if (wanted_ms := scope.settings.checkpoint_interval_ms) != scope.interval_ms:
            _log.warning(
                "the checkpoint interval is longer than the app's, because this container has many tasks, or they write"
                " many partitions: have fewer partitions, or more containers",
                tasks=len(scopes),
                frames=frames,
                wanted_ms=wanted_ms,
                interval_ms=scope.interval_ms,
            )
    return found
