"""Before an app runs: create the streams that it owns. The planner has checked that the others exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api.specs import DEAD_LETTER_COLUMNS, Graph, Role, StreamSpec
from headrace.core.errors import HeadraceError, StreamExistsError, StreamNotFoundError, StreamSealedError
from headrace.plan.changes import Answer, Verdict
from headrace.plan.model import Plan, StreamPlan
from headrace.plan.render import place_of
from headrace.plan.validate import other_count
from headrace.runtime.connections import Connections
from headrace.runtime.naming import changelog_name
from headrace.systems.registry import has_slots, keeps_rows

if TYPE_CHECKING:
    import polars as pl

_PATHS = ("root", "path", "list_file", "memo")
"""The options of systems that are paths, unless they are URIs."""


def at_home(graph: Graph) -> Graph:
    """The app as containers get it: paths are absolute, as their working folders are others.

    The metadata store is the driver's business, so containers don't get its password.
    """
    settings = replace(graph.settings, home=str(Path(graph.settings.home).absolute()), metadata=None)
    streams = {
        id_: replace(spec, system=replace(spec.system, options=_absolute(spec.system.options)))
        for id_, spec in graph.streams.items()
    }
    return replace(graph, settings=settings, streams=streams)


def _absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(Path(value).absolute()) if _is_path(name, value) else value for name, value in options.items()}


def _is_path(name: str, value: object) -> bool:
    return name in _PATHS and isinstance(value, str) and "://" not in value


def reads(plan: Plan, stream: str, stages: Sequence[str]) -> bool:
    """Whether one of these stages (default: all) reads the stream."""
    return any(
        stream in (*stage.inputs, *stage.side_inputs) for stage in plan.stages if not stages or stage.name in stages
    )


def held_by_driver(plan: Plan, stages: Sequence[str] = ()) -> list[StreamSpec]:
    """The inputs of these stages (default: all) whose rows only the driver can get at, so that they must be copied."""
    specs = [stream.spec for stream in plan.streams.values() if stream.spec.system.held is not None]
    return [spec for spec in specs if reads(plan, spec.id, stages)]


def stops_by_itself(plan: Plan, stages: Sequence[str] = ()) -> bool:
    """Return whether the run of these stages (default: all) ends when it has read its inputs' present contents."""
    connections = Connections()
    try:
        sources = [s.spec for s in plan.streams.values() if s.spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
        found = [connections.admin(s.system).describe(s.stream.name) for s in sources if reads(plan, s.id, stages)]
        return any(info is not None and info.until_caught_up for info in found)
    finally:
        connections.close()


def prepare_streams(plan: Plan, stages: Sequence[str] = ()) -> None:
    """Create the intermediate streams, outputs and changelogs that don't exist yet.

    Raises ``StreamExistsError`` if one exists with another partition count: its contents were partitioned otherwise,
    so going on would tear keys apart. Raises ``StreamSealedError`` if these stages (default: all) write a sealed one.
    """
    connections = Connections()
    try:
        for stream in plan.streams.values():
            if stream.spec.role in (Role.INTERMEDIATE, Role.SINK):
                _create(connections, plan, stream)
            elif reads(plan, stream.spec.id, stages):
                connections.admin(stream.spec.system).begin_run(stream.spec.stream.name)
        _check_unsealed(connections, plan, stages)
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
    finally:
        connections.close()


def prepare_outputs(plan: Plan) -> None:
    """Create the outputs that don't exist yet: all that a batch job writes."""
    connections = Connections()
    try:
        for stream in plan.streams.values():
            if stream.spec.role is Role.SINK:
                _create(connections, plan, stream)
                for stage in stream.writers:
                    _check_open(connections, stage, stream.spec)
    finally:
        connections.close()


def _check_unsealed(connections: Connections, plan: Plan, stages: Sequence[str]) -> None:
    for stage in plan.stages:
        if stages and stage.name not in stages:
            continue
        for id_ in stage.outputs:
            _check_open(connections, stage.name, plan.streams[id_].spec)


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
    """Return what the start would do to each output in a foreign system, or why it would fail. Changes nothing.

    A system that can't be asked from here is no reason to refuse: the app may run where it can.
    """
    connections = Connections()
    try:
        return {
            stream.spec.id: _asked(connections, plan, stream)
            for stream in plan.streams.values()
            if stream.spec.role is Role.SINK and keeps_rows(stream.spec.system)
        }
    finally:
        connections.close()


def _asked(connections: Connections, plan: Plan, stream: StreamPlan) -> Answer:
    spec = stream.spec
    place = place_of(spec)
    try:
        admin = connections.admin(spec.system)
        due = admin.would_create(spec.stream.name, stream.partitions, _written(plan, spec))
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
    """Return the columns that are written to a stream; None if they aren't known."""
    if spec.id in {s.dead_letter for s in plan.graph.streams.values()}:
        return dict(DEAD_LETTER_COLUMNS)
    return dict(spec.schema.columns) if spec.schema is not None and spec.id not in plan.combined else None


def _check_count(spec: StreamSpec, found: int) -> None:
    """Raise ``PlanError`` if an output was declared with another number of partitions than it has."""
    if not has_slots(spec.system) and spec.partitions not in (None, found):
        raise other_count(spec, found)
