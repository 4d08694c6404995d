"""An app's inputs with their partitions and the tasks that read them, from its plan or as its last start recorded them.

The record has one entry per stage, so that commands can name inputs without the app's program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import msgspec

from headrace.api.specs import Role
from headrace.core.errors import UnavailableError, UsageError
from headrace.core.files import decode_record
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.life.apps import latest_systems
from headrace.life.metadata import Change, Delete, MetadataStore, Put
from headrace.plan.model import Plan, StagePlan
from headrace.systems.positions import Customs
from headrace.systems.registry import SystemSpec
from headrace.task.naming import changelog_name

_MOST_ATTEMPTS = 10
INPUTS_FORMAT = 2


class AppInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An input of a stage. Its tasks keep positions under ``kept_as``. ``tasks`` None: task n reads partition n."""

    id: str
    stage: str
    kept_as: str
    stream: str
    partitions: int
    tasks: tuple[int, ...] | None
    side: bool
    start: str

    def readers(self, partition: int) -> tuple[str, ...]:
        numbers = (partition,) if self.tasks is None else self.tasks
        return tuple(str(TaskName(self.stage, number)) for number in numbers)

    def ssp(self, partition: int) -> SSP:
        return SSP(StreamId.parse(self.stream), partition)


class _StageInputs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``inner`` are the stage's intermediate streams and changelogs. ``customs`` are kinds of startpoint."""

    format: int = INPUTS_FORMAT
    inputs: tuple[AppInput, ...]
    inner: tuple[str, ...]
    outputs: tuple[str, ...]
    timed: bool
    customs: tuple[str, ...] = ()


_INPUTS_DECODER = msgspec.json.Decoder(_StageInputs)


@dataclass(frozen=True, slots=True)
class AppInputs:
    """All inputs of an app. ``systems`` can be opened here; ``customs`` are known only of an app declared here."""

    app: str
    inputs: tuple[AppInput, ...]
    inner: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    timed: bool = False
    kinds: frozenset[str] = frozenset()
    systems: Mapping[str, SystemSpec] = field(default_factory=dict)
    customs: Customs = ()
    declared: bool = False

    @property
    def partitions(self) -> dict[tuple[str, int], tuple[str, ...]]:
        found: dict[tuple[str, int], tuple[str, ...]] = {}
        for one in self.inputs:
            for partition in range(one.partitions):
                key = one.kept_as, partition
                found[key] = (*found.get(key, ()), *one.readers(partition))
        return found

    def named(self, name: str) -> list[AppInput]:
        for matches in (lambda one: one.id == name, lambda one: name in (one.stream, StreamId.parse(one.stream).name)):
            found = [one for one in self.inputs if matches(one)]
            if found:
                return found
        meant = {name, name.partition(".")[2]}  # with the name of its system, or without
        ids = sorted({one.id for one in self.inputs})
        if meant & self.inner or name.endswith("-changelog"):
            kind = "changelog" if name.endswith("-changelog") else "intermediate stream"
            raise UsageError(
                f"{name!r} is {'a' if kind == 'changelog' else 'an'} {kind} of app {self.app!r}: its positions belong "
                "to the exactly-once protocol and can't be moved",
                hint=f"move an input instead: {', '.join(ids)}; to go back with all state, restore a savepoint",
            )
        if meant & self.outputs:
            hint = f"its inputs: {', '.join(ids)}"
            raise UsageError(f"{name!r} is an output of app {self.app!r}: the app doesn't read it", hint=hint)
        close = get_close_matches(name, ids, n=1)
        raise UsageError(
            f"app {self.app!r} has no input {name!r}",
            hint=f"did you mean {close[0]!r}?" if close else f"its inputs: {', '.join(ids)}",
        )

    def system(self, one: AppInput) -> SystemSpec | None:
        return self.systems.get(StreamId.parse(one.stream).system)


def inputs_of(plan: Plan) -> AppInputs:
    records = {stage.name: _record(plan, stage) for stage in plan.stages}
    sources = [spec for spec in plan.graph.streams.values() if spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
    return replace(
        _together(plan.graph.app, records.values()),
        systems={spec.system.name: spec.system for spec in sources},
        customs=plan.graph.settings.startpoints,
        declared=True,
    )


def record_inputs(metadata: MetadataStore, plan: Plan, stages: Sequence[str] = ()) -> None:
    namespace = _namespace(plan.graph.app)
    data = {s.name: msgspec.json.encode(_record(plan, s)) for s in plan.stages if not stages or s.name in stages}
    for _ in range(_MOST_ATTEMPTS):
        known = metadata.scan(namespace)
        changes: list[Change] = [
            Put(stage, value, known[stage].version if stage in known else None)
            for stage, value in data.items()
            if stage not in known or known[stage].value != value
        ]
        if not stages:
            changes += [Delete(stage, entry.version) for stage, entry in known.items() if stage not in data]
        if not changes or metadata.write(namespace, changes) is not None:
            return
    hint = "start it again, unless another one is running"
    raise UnavailableError(f"other starts of app {plan.graph.app!r} recorded its inputs at the same time", hint=hint)


def recorded_inputs(metadata: MetadataStore, app: str, home: Path) -> AppInputs | None:
    entries = metadata.scan(_namespace(app))
    records = []
    for stage, entry in entries.items():
        what = f"the record of the inputs of stage {stage!r} of app {app!r}"
        records.append(decode_record(_INPUTS_DECODER, entry.value, what, INPUTS_FORMAT))
    used = latest_systems(metadata, app)
    return replace(_together(app, records), systems={} if used is None else used.specs(home)) if records else None


def _namespace(app: str) -> str:
    return f"inputs/{app}"


def _together(app: str, records: Iterable[_StageInputs]) -> AppInputs:
    records = list(records)
    return AppInputs(
        app=app,
        inputs=tuple(one for record in records for one in record.inputs),
        inner=frozenset(name for record in records for name in record.inner),
        outputs=frozenset(name for record in records for name in record.outputs),
        timed=any(record.timed for record in records),
        kinds=frozenset(kind for record in records for kind in record.customs),
    )


def _record(plan: Plan, stage: StagePlan) -> _StageInputs:
    streams = {id_: plan.streams[id_] for id_ in (*stage.inputs, *stage.side_inputs, *stage.outputs)}
    inner = {id_: stream for id_, stream in streams.items() if stream.spec.role is Role.INTERMEDIATE}
    names = {name for id_, stream in inner.items() for name in (id_, stream.spec.stream.name)}
    return _StageInputs(
        inputs=tuple(_input(plan, stage, id_) for id_ in (*stage.inputs, *stage.side_inputs) if id_ not in inner),
        inner=(*sorted(names), changelog_name(plan.graph.app, stage.name)),
        outputs=tuple(id_ for id_ in stage.outputs if id_ not in inner),
        timed=any(stream.event_time is not None for stream in plan.graph.streams.values()),
        customs=tuple(sorted(kind.kind for kind in plan.graph.settings.startpoints)),
    )


def _input(plan: Plan, stage: StagePlan, id_: str) -> AppInput:
    stream = plan.streams[id_]
    ssps = set(stream.ssps())
    reading = {task.name.number: ssps & set(task.inputs) for task in stage.tasks}
    one_each = all(reading[n] <= {SSP(stream.spec.stream, n)} for n in reading)
    return AppInput(
        id=id_,
        stage=stage.name,
        kept_as=stage.kept_as.get(id_, str(stream.spec.stream)),
        stream=str(stream.spec.stream),
        partitions=stream.partitions,
        tasks=None if one_each else tuple(n for n in sorted(reading) if reading[n]),
        side=id_ in stage.side_inputs,
        start=stream.spec.start,
    )
