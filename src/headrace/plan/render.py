"""Render a plan as strings, numbers and links, once for its text, JSON, page and notebooks, so that all show the same.

The JSON has the format that Samza's plan viewer reads: one job for each stage. As in Samza: ``applicationName``,
``applicationId``; ``jobs`` with ``jobName``, ``jobId`` and ``operatorGraph`` (``inputStreams``, ``outputStreams``,
``operators`` by id with ``opCode``, ``opId``, ``sourceLocation``, ``nextOperatorIds`` and, where it applies,
``outputStreamId``, ``tableId``, ``ttlMs``); ``sourceStreams``, ``sinkStreams`` and ``intermediateStreams`` by id with
``streamSpec``, ``sourceJobs``, ``targetJobs``; ``tables`` by id with ``tableProviderFactory`` and ``config``. Side
inputs are among the source streams.

Added by Headrace, and safe to ignore:

- at the top ``guarantee`` and ``grouping``;
- in a job ``sideInputs``, ``tables`` and ``tasks``: ``name``, ``producer`` (its producer id) and ``inputs``
  (``system.stream[partition]``);
- in an operator ``kind``, ``detail``, ``expressions``, ``previousIds`` (operators, or the streams it reads),
  ``columns``, ``state`` and ``sourceText`` (all lines of the call);
- in a stream's spec ``role``, ``place``, ``isBroadcast``, ``columns``, ``eventTime``, ``latenessMs``,
  ``idleTimeoutMs``, ``onError``, ``deadLetter``, ``delivery`` (of an output), ``isTarget``, ``sourceLocation``,
  ``sourceText``;
- in a table ``kind``, ``key``, ``sideInputs``, ``jobs``, ``delivery`` (of what is written to a remote one),
  ``sourceLocation``, ``sourceText``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import PurePath
from typing import Any, Self

from typing_extensions import override

from headrace.api.checks import Location
from headrace.api.operators.spec import EventTime, OperatorSpec, call_of, signed
from headrace.api.remote import Remote
from headrace.api.specs import Graph, Node, Role, StreamSpec
from headrace.core.clock import format_ms, utc_text
from headrace.plan.model import Plan, StagePlan, StreamPlan, TaskPlan
from headrace.plan.order import order_of
from headrace.plan.passes import Delivery, delivery_of
from headrace.rows.changes import CHANGE
from headrace.rows.schema import Schema
from headrace.systems.registry import keeps_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedOperator:
    """An operator other than an input. ``before`` and ``after`` name operators of its stage."""

    id: str
    kind: str
    detail: str
    expressions: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    output: str | None
    table: str | None
    columns: tuple[tuple[str, str], ...]
    state: tuple[str, ...]
    spec: OperatorSpec
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStage:
    """A stage and its ``inputs``, each with the operators that take its messages. ``operators`` come upstream first."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    side_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tables: tuple[str, ...]
    operators: tuple[RenderedOperator, ...]
    tasks: tuple[TaskPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStream:
    """A stream. ``notes`` say how it is read. A ``target`` is an output in a foreign system."""

    id: str
    role: str
    place: str
    partitions: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    delivery: Delivery | None
    target: bool
    notes: tuple[str, ...]
    spec: StreamSpec
    source: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTable:
    """A table, the stages that use it, and what fills it; ``delivery`` only if it is remote and written."""

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
        return sum(len(stage.tasks) for stage in self.stages)


def render(plan: Plan) -> RenderedPlan:
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
            operators.append(_operator(plan.graph, nodes[id_], after[id_], slow.get(id_, ""), sources))
    return RenderedStage(
        name=stage.name,
        inputs={stream: tuple(sorted(inputs[stream])) for stream in stage.inputs},
        side_inputs=stage.side_inputs,
        outputs=stage.outputs,
        tables=stage.tables,
        operators=tuple(operators),
        tasks=stage.tasks,
    )


def _operator(graph: Graph, node: Node, after: tuple[str, ...], slow: str, sources: _Sources) -> RenderedOperator:
    operator = node.operator
    pace = f"one message at a time, because {slow}" if slow else ""
    return RenderedOperator(
        id=node.id,
        kind=operator.kind,
        detail=", ".join(words for words in (operator.detail, operator.growth, _changes(graph, node), pace) if words),
        expressions=operator.expressions,
        before=tuple(graph.nodes[id_].operator.stream_read or id_ for id_ in node.inputs),
        after=after,
        output=operator.stream_written,
        table=operator.table_used,
        spec=operator,
        columns=_columns(node.schema),
        state=tuple(_state(graph, node)),
        source=sources.of(node.location),
    )


def _changes(graph: Graph, node: Node) -> str:
    """Whether the rows of a step change, where that begins or ends."""
    before = any(_carries(graph.nodes[id_].schema) for id_ in node.inputs)
    if _carries(node.schema) and not before:
        return "its results may change or be deleted later"
    return "each change as a row" if before and node.schema is not None and not _carries(node.schema) else ""


def _carries(schema: Schema | None) -> bool:
    return schema is not None and CHANGE in schema.columns


def _columns(schema: Schema | None) -> tuple[tuple[str, str], ...]:
    return () if schema is None else tuple((name, str(dtype)) for name, dtype in schema.columns.items())


def _state(graph: Graph, node: Node) -> Iterator[str]:
    for store, meaning in graph.kept_state(node.id).items():
        words = [
            f"{name} {value}" for name, value in meaning.fixed.items() if name not in ("kind", "version") and value
        ]
        if meaning.columns:
            words.append(f"columns {', '.join(meaning.columns)}")
        yield f"{store}: {'; '.join(words)}" if words else store


def _stream(graph: Graph, stream: StreamPlan, sources: _Sources) -> RenderedStream:
    spec = stream.spec
    output = spec.role is Role.SINK
    notes = [event_time_of(spec.event_time, spec.lateness_ms, spec.idle_timeout_ms)]
    if spec.role in (Role.SOURCE, Role.SIDE_INPUT) and stream.key:
        notes.append(f"partitioned by {', '.join(stream.key)}")
    if spec.broadcast:
        notes.append("broadcast")
    if spec.create is not None:
        notes.append("created by the start if it isn't there")
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
        place=place_of(spec),
        partitions=stream.partitions,
        writers=stream.writers,
        readers=stream.readers,
        columns=_columns(spec.schema),
        delivery=delivery_of(graph, spec.id) if output else None,
        target=output and keeps_rows(spec.system),
        notes=tuple(note for note in notes if note),
        spec=spec,
        source=sources.of(spec.location),
    )


def place_of(spec: StreamSpec) -> str:
    """The location of a stream in words. A URL hides its password, and paths have none."""
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
    writers = _ids(n for n in plan.graph.nodes.values() if id_ in (n.operator.table_written, n.operator.stream_written))
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
    """How event time is read, in words; empty if it isn't."""
    if time is None:
        return ""
    words = [f"event time {time.column}" + (f" {signed(time.offset_ms)}" if time.offset_ms else "")]
    if lateness_ms:
        words.append(f"late by up to {format_ms(lateness_ms)}")
    if idle_timeout_ms is not None:
        words.append(f"idle after {format_ms(idle_timeout_ms)}")
    return ", ".join(words)


def _remote_options(remote: Remote) -> dict[str, str]:
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


# -- text --------------------------------------------------------------------------------------------
Row = tuple[str, ...]
_SOURCE_CHARS_MAX = 72
"""The longest shown line of code. A line that chains a whole flow would push the table's columns out of sight."""


def to_text(plan: RenderedPlan) -> str:
    lines = [_summary(plan)]
    for title, rows in _parts(plan):
        lines += ["", title, *_aligned(rows)]
    return "\n".join(lines) + "\n"


def _summary(plan: RenderedPlan) -> str:
    by_container = ", one task for each container" if plan.grouping == "container" else ""
    stages, tasks = counted(len(plan.stages), "stage"), counted(plan.tasks(), "task")
    return f"{plan.app}: {stages}, {tasks}, {plan.guarantee}{by_container}"


def _parts(plan: RenderedPlan) -> Iterator[tuple[str, list[Row]]]:
    for stage in plan.stages:
        yield f"stage {stage.name}: {counted(len(stage.tasks), 'task')}", list(_stage_rows(plan, stage))
    yield "streams", [_stream_row(stream) for stream in plan.streams.values()]
    if plan.tables:
        yield "tables", [_table_row(table) for table in plan.tables.values()]


def _stage_rows(plan: RenderedPlan, stage: RenderedStage) -> Iterable[Row]:
    for id_ in stage.inputs:
        stream = plan.streams[id_]
        yield "input", stream.id, _reading(stream), *_place(stream.source)
    for id_ in stage.side_inputs:
        stream = plan.streams[id_]
        tables = [t for t in stage.tables if id_ in plan.tables[t].side_inputs]
        reading = f"{_reading(stream)}, keeps {', '.join(tables)}"
        yield "side input", id_, reading, *_place(stream.source)
    for operator in stage.operators:
        yield operator.kind, operator.id, _doing(plan, operator), *_place(operator.source)
    if not stage.operators and not stage.inputs:
        yield (f"gone; tells the readers of {', '.join(stage.outputs)} that it has ended",)


def _place(source: Location) -> Row:
    text = source.text
    return str(source), text if len(text) <= _SOURCE_CHARS_MAX else text[: _SOURCE_CHARS_MAX - 1] + "…"


def _reading(stream: RenderedStream) -> str:
    return ", ".join([counted(stream.partitions, "partition"), *stream.notes])


def _doing(plan: RenderedPlan, operator: RenderedOperator) -> str:
    words = [f"from {' and '.join(operator.before)}"]
    if operator.output is not None and operator.detail:
        words.append(operator.detail)
    if operator.table is not None:
        words.append(f"{operator.spec.table_preposition} table {operator.table}")
    if operator.output is not None:
        stream = plan.streams[operator.output]
        repeats = stream.spec.system.may_repeat if stream.delivery is not None else ""
        why = f", because {repeats}" if repeats else ""
        words.append(f"into {stream.id} ({_extent(stream)}{why})")
    elif operator.detail:
        words.append(operator.detail)
    return ", ".join(words)


def _extent(stream: RenderedStream) -> str:
    return str(stream.delivery) if stream.target else counted(stream.partitions, "partition")


def _stream_row(stream: RenderedStream) -> Row:
    return (
        stream.id,
        stream.role,
        stream.place,
        _extent(stream),
        f"{', '.join(stream.writers) or 'outside'} -> {', '.join(stream.readers) or 'outside'}",
        str(stream.source),
    )


def _table_row(table: RenderedTable) -> Row:
    if table.side_inputs:
        origin = f"kept by {', '.join(table.side_inputs)}"
    elif table.kind == "remote":
        origin = f"written by {', '.join(table.writers)}, {table.delivery}" if table.writers else "read alone"
    else:
        origin = f"filled by {', '.join(table.writers)}"
    joined = f"joined by {', '.join(table.joins)}" if table.joins else "joined by none"
    kind = ", ".join([table.kind, *(f"{name} {value}" for name, value in table.options)])
    return table.id, kind, f"key {', '.join(table.key)}", origin, joined, str(table.source)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _aligned(rows: Iterable[Row]) -> list[str]:
    """The rows as lines with aligned columns; only the last column isn't padded."""
    table: Sequence[Row] = list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadablePlan(Plan):
    """A plan whose ``str`` is the text of ``App.explain``, and which a notebook shows as tables."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(**{each.name: getattr(plan, each.name) for each in fields(plan)})

    @override
    def __str__(self) -> str:
        return to_text(render(self)).rstrip("\n")

    def _repr_html_(self) -> str:
        plan = render(self)
        pieces = [f"<p><b>{escape(_summary(plan))}</b></p>"]
        for title, rows in _parts(plan):
            pieces += [f"<p>{escape(title)}</p>", '<table style="text-align: left">']
            pieces += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
            pieces.append("</table>")
        return f"<div>{''.join(pieces)}</div>"


# -- document ----------------------------------------------------------------------------------------
_ID = "1"
"""Samza numbers the instances of apps and jobs; here each has one."""
_ROLES = {"sourceStreams": ("source", "side-input"), "sinkStreams": ("sink",), "intermediateStreams": ("intermediate",)}


def to_json(plan: RenderedPlan) -> dict[str, Any]:
    streams = {
        group: {id_: _stream_document(stream) for id_, stream in plan.streams.items() if stream.role in roles}
        for group, roles in _ROLES.items()
    }
    return {
        "applicationName": plan.app,
        "applicationId": _ID,
        "guarantee": plan.guarantee,
        "grouping": plan.grouping,
        "jobs": [_job(stage) for stage in plan.stages],
        **streams,
        "tables": {id_: _table_document(table) for id_, table in plan.tables.items()},
    }


def _job(stage: RenderedStage) -> dict[str, Any]:
    return {
        "jobName": stage.name,
        "jobId": _ID,
        "operatorGraph": {
            "inputStreams": [{"streamId": id_, "nextOperatorIds": list(after)} for id_, after in stage.inputs.items()],
            "outputStreams": [{"streamId": stream, "nextOperatorIds": []} for stream in stage.outputs],
            "operators": {operator.id: _operator_document(operator) for operator in stage.operators},
        },
        "sideInputs": list(stage.side_inputs),
        "tables": list(stage.tables),
        "tasks": [
            {"name": str(task.name), "producer": task.producer, "inputs": [str(ssp) for ssp in task.inputs]}
            for task in stage.tasks
        ],
    }


def _operator_document(operator: RenderedOperator) -> dict[str, Any]:
    optional = {"outputStreamId": operator.output, "tableId": operator.table, "ttlMs": operator.spec.join_bound_ms}
    return {
        "opCode": operator.spec.code,
        "opId": operator.id,
        "sourceLocation": str(operator.source),
        "nextOperatorIds": list(operator.after),
        **{name: value for name, value in optional.items() if value is not None},
        "kind": operator.kind,
        "detail": operator.detail,
        "expressions": list(operator.expressions),
        "previousIds": list(operator.before),
        "columns": dict(operator.columns),
        "state": list(operator.state),
        "sourceText": operator.source.whole,
    }


def _stream_document(stream: RenderedStream) -> dict[str, Any]:
    spec = stream.spec
    return {
        "streamSpec": {
            "id": stream.id,
            "systemName": spec.stream.system,
            "physicalName": spec.stream.name,
            "partitionCount": stream.partitions,
            "isBroadcast": spec.broadcast,
            "role": stream.role,
            "place": stream.place,
            "columns": dict(stream.columns),
            "eventTime": None if spec.event_time is None else spec.event_time.column,
            "latenessMs": spec.lateness_ms,
            "idleTimeoutMs": spec.idle_timeout_ms,
            "onError": spec.on_error,
            "deadLetter": spec.dead_letter,
            "delivery": stream.delivery,
            "isTarget": stream.target,
            "sourceLocation": str(stream.source),
            "sourceText": stream.source.text,
        },
        "sourceJobs": list(stream.writers),
        "targetJobs": list(stream.readers),
    }


def _table_document(table: RenderedTable) -> dict[str, Any]:
    return {
        "id": table.id,
        "tableProviderFactory": f"headrace.{table.kind}",
        "config": dict(table.options),
        "kind": table.kind,
        "key": list(table.key),
        "sideInputs": list(table.side_inputs),
        "jobs": list(table.stages),
        "delivery": table.delivery,
        "sourceLocation": str(table.source),
        "sourceText": table.source.text,
    }
