"""Render a plan as strings, numbers and links, once for the text, the JSON and the page.

The three printers read nothing else, so all show the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from headrace.api.location import Location
from headrace.api.operators.spec import EventTime
from headrace.api.operators.wording import call_of, signed
from headrace.api.remote import Remote
from headrace.api.specs import Graph, Node, Role, StreamSpec
from headrace.core.duration import format_ms
from headrace.core.moment import utc_text
from headrace.plan.delivery import Delivery, delivery_of
from headrace.plan.model import Plan, StagePlan, StreamPlan, TaskPlan
from headrace.plan.order import order_of
from headrace.serdes.schema import Schema
from headrace.systems.registry import keeps_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedOperator:
    """An operator other than an input. ``before`` and ``after`` name operators of its stage.

    ``columns`` are those of its results, with their types, and ``state`` describes its state.
    """

    id: str
    code: str
    kind: str
    detail: str
    expressions: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    output: str | None
    table: str | None
    table_preposition: str
    join_bound_ms: int | None
    columns: tuple[tuple[str, str], ...]
    state: tuple[str, ...]
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStage:
    """A stage; ``operators`` come upstream first. ``before`` of an operator may name an input as a stream id.

    ``inputs`` are its streams, each with the operators that take its messages.
    """

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    side_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tables: tuple[str, ...]
    operators: tuple[RenderedOperator, ...]
    tasks: tuple[TaskPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStream:
    """A stream. ``place`` is its location, and ``notes`` say how it is read.

    ``delivery`` says how often a result arrives at an output, and ``may_repeat`` why the system of a target can't do
    better. A ``target`` is an output in a foreign system.
    """

    id: str
    role: str
    system: str
    physical: str
    place: str
    partitions: int
    broadcast: bool
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    event_time: str | None
    lateness_ms: int
    idle_timeout_ms: int | None
    on_error: str
    dead_letter: str | None
    delivery: Delivery | None
    may_repeat: str
    target: bool
    notes: tuple[str, ...]
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTable:
    """A table, the stages that use it, and the operators or side inputs that fill it.

    ``delivery`` says how often a row is written to a remote table; None if it isn't remote or isn't written.
    """

    id: str
    kind: str
    key: tuple[str, ...]
    side_inputs: tuple[str, ...]
    writers: tuple[str, ...]
    joins: tuple[str, ...]
    stages: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    delivery: Delivery | None
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPlan:
    """A whole plan: stages upstream first, streams and tables by id."""

    app: str
    guarantee: str
    grouping: str
    stages: tuple[RenderedStage, ...]
    streams: Mapping[str, RenderedStream]
    tables: Mapping[str, RenderedTable]

    def tasks(self) -> int:
        """The number of tasks of all stages."""
        return sum(len(stage.tasks) for stage in self.stages)


def render(plan: Plan) -> RenderedPlan:
    """Return everything about a plan that the printers show."""
    sources = _Sources(plan.graph)
    return RenderedPlan(
        app=plan.graph.app,
        guarantee=plan.graph.settings.guarantee.replace("_", "-"),
        grouping=plan.graph.settings.grouping,
        stages=tuple(_stage(plan, stage, sources) for stage in plan.stages),
        streams={id_: _stream(plan.graph, stream, sources) for id_, stream in plan.streams.items()},
        tables={id_: _table(plan, id_, sources) for id_ in sorted(plan.graph.tables)},
    )


class _Sources:
    """Shortens file names by leaving out their common folder."""

    def __init__(self, graph: Graph) -> None:
        locations = [graph.location]
        locations += [node.location for node in graph.nodes.values()]
        locations += [stream.location for stream in graph.streams.values()]
        locations += [table.location for table in graph.tables.values()]
        folders = {PurePath(location.file).parent for location in locations}
        first = min(folders)
        above = (folder for folder in (first, *first.parents) if all(f.is_relative_to(folder) for f in folders))
        self._folder = next(above, None)

    def of(self, location: Location) -> Location:
        """The location with a file that is relative to the common folder of the app's files."""
        file = PurePath(location.file)
        short = file if self._folder is None else file.relative_to(self._folder)
        return replace(location, file=str(short))


def _stage(plan: Plan, stage: StagePlan, sources: _Sources) -> RenderedStage:
    nodes = plan.graph.nodes
    after = {id_: tuple(sorted(ids)) for id_, ids in plan.successors(stage).items()}
    inputs: dict[str, set[str]] = {}
    operators = []
    slow = order_of(plan.graph, stage.nodes).slow
    for id_ in stage.nodes:
        stream = nodes[id_].operator.stream_read
        if stream is not None:
            inputs.setdefault(stream, set()).update(after[id_])
        else:
            operators.append(_operator(nodes, nodes[id_], after[id_], slow.get(id_, ""), sources))
    return RenderedStage(
        name=stage.name,
        inputs={stream: tuple(sorted(inputs[stream])) for stream in stage.inputs},
        side_inputs=stage.side_inputs,
        outputs=stage.outputs,
        tables=stage.tables,
        operators=tuple(operators),
        tasks=stage.tasks,
    )


def _operator(
    nodes: Mapping[str, Node], node: Node, after: tuple[str, ...], slow: str, sources: _Sources
) -> RenderedOperator:
    """``slow``: why it takes one message at a time, if it does."""
    operator = node.operator
    pace = f"one message at a time, because {slow}" if slow else ""
    return RenderedOperator(
        id=node.id,
        code=operator.code,
        kind=operator.kind,
        detail=", ".join(words for words in (operator.detail, pace) if words),
        expressions=operator.expressions,
        before=tuple(_name_before(nodes[id_]) for id_ in node.inputs),
        after=after,
        output=operator.stream_written,
        table=operator.table_used,
        table_preposition=operator.table_preposition,
        join_bound_ms=operator.join_bound_ms,
        columns=_columns(node.schema),
        state=tuple(_state(nodes, node)),
        source=sources.of(node.location),
    )


def _columns(schema: Schema | None) -> tuple[tuple[str, str], ...]:
    return () if schema is None else tuple((name, str(dtype)) for name, dtype in schema.columns.items())


def _state(nodes: Mapping[str, Node], node: Node) -> Iterator[str]:
    """Yield the meaning of each store of an operator."""
    inputs = [schema for before in node.inputs if (schema := nodes[before].schema) is not None]
    for store, meaning in node.operator.kept_state(node.id, inputs).items():
        words = [
            f"{name} {value}" for name, value in meaning.fixed.items() if name not in ("kind", "version") and value
        ]
        if meaning.columns:
            words.append(f"columns {', '.join(meaning.columns)}")
        yield f"{store}: {'; '.join(words)}" if words else store


def _name_before(node: Node) -> str:
    """Return the node's id, or its stream if it is an input."""
    return node.id if node.operator.stream_read is None else node.operator.stream_read


def _stream(graph: Graph, stream: StreamPlan, sources: _Sources) -> RenderedStream:
    spec = stream.spec
    output = spec.role is Role.SINK
    notes = [event_time_of(spec.event_time, spec.lateness_ms, spec.idle_timeout_ms)]
    if spec.role in (Role.SOURCE, Role.SIDE_INPUT) and stream.key:
        notes.append(f"partitioned by {', '.join(stream.key)}")
    if spec.broadcast:
        notes.append("broadcast")
    if spec.on_error == "skip":
        notes.append("bad messages are skipped and counted")
    if spec.dead_letter is not None:
        notes.append(f"bad messages go to {spec.dead_letter}")
    if spec.slots:
        notes.append(f"slots that share the shards of {spec.system.options['stream']}")
    start = spec.system.options.get("start", spec.start) if spec.slots else spec.start
    if start != "oldest":
        notes.append(f"read from {utc_text(start) if isinstance(start, int) else start}")
    return RenderedStream(
        id=spec.id,
        role=spec.role.value,
        system=spec.stream.system,
        physical=spec.stream.name,
        place=place_of(spec),
        partitions=stream.partitions,
        broadcast=spec.broadcast,
        writers=stream.writers,
        readers=stream.readers,
        columns=_columns(spec.schema),
        event_time=None if spec.event_time is None else spec.event_time.column,
        lateness_ms=spec.lateness_ms,
        idle_timeout_ms=spec.idle_timeout_ms,
        on_error=spec.on_error,
        dead_letter=spec.dead_letter,
        delivery=delivery_of(graph, spec.id) if output else None,
        may_repeat=spec.system.may_repeat if output else "",
        target=output and keeps_rows(spec.system),
        notes=tuple(note for note in notes if note),
        source=sources.of(spec.location),
    )


def place_of(spec: StreamSpec) -> str:
    """Describe the location of a stream. A URL hides its password, and paths have none."""
    options = spec.system.options
    match spec.system.kind:
        case "sql":
            return f"table {options['table']} of {options['url']}"
        case "delta":
            return f"Delta table {options['path']}"
        case "kafka":
            return f"topic {options['topic']} of {options['brokers']}"
        case "kinesis":
            return f"Kinesis stream {options['stream']}"
        case _:
            return str(spec.stream)


def _table(plan: Plan, id_: str, sources: _Sources) -> RenderedTable:
    spec = plan.graph.tables[id_]
    chosen = {
        "ttl": None if spec.ttl_ms is None else format_ms(spec.ttl_ms),
        "versions": None if spec.versions_ms is None else format_ms(spec.versions_ms),
        "storage": None if spec.storage == "disk" else spec.storage,
        "deleted": None if spec.deleted is None else " ".join(str(spec.deleted).split()),
    }
    options = {**spec.options, **{name: value for name, value in chosen.items() if value is not None}}
    if spec.remote is not None:
        options |= _remote_options(spec.remote)
    # Messages to a remote table are written to an output that has the table's id.
    nodes = plan.graph.nodes.values()
    writers = _ids(n for n in nodes if id_ in (n.operator.table_written, n.operator.stream_written))
    return RenderedTable(
        id=id_,
        kind=spec.kind,
        key=spec.key,
        side_inputs=tuple(sorted(spec.side_inputs)),
        writers=writers,
        joins=_ids(plan.graph.joins_of(id_)),
        stages=tuple(stage.name for stage in plan.stages if id_ in stage.tables),
        options=tuple(sorted((name, str(value)) for name, value in options.items())),
        delivery=delivery_of(plan.graph, id_) if spec.remote is not None and writers else None,
        source=sources.of(spec.location),
    )


def _ids(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(sorted(node.id for node in nodes))


def event_time_of(time: EventTime | None, lateness_ms: int = 0, idle_timeout_ms: int | None = None) -> str:
    """Describe how event time is read; empty if it isn't."""
    if time is None:
        return ""
    words = [f"event time {time.column}" + (f" {signed(time.offset_ms)}" if time.offset_ms else "")]
    if lateness_ms:
        words.append(f"late by up to {format_ms(lateness_ms)}")
    if idle_timeout_ms is not None:
        words.append(f"idle after {format_ms(idle_timeout_ms)}")
    return ", ".join(words)


def _remote_options(remote: Remote) -> dict[str, str]:
    """Return the location of a remote table and the options of its access, by name."""
    named = {"read": remote.read, "write": remote.write, "delete": remote.delete}
    options = {name: call_of(function) for name, function in named.items() if function is not None}
    if remote.sql is not None:
        options["sql"] = f"{remote.sql.table} of {remote.sql.url}"
    if remote.readable:
        options["reads"] = f"{remote.batch} keys, {remote.calling}"
    if remote.cache is not None:
        options["cache"] = str(remote.cache)
    rates = {"reads_per_s": remote.reads_per_s, "writes_per_s": remote.writes_per_s}
    return options | {name: f"{rate:g}" for name, rate in rates.items() if rate is not None}
