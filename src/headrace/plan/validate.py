"""Check the preconditions of planning: an error that names the line is better than a wrong plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.api.operators.join import SendToTable, TableJoin
from headrace.api.operators.steps import SendTo
from headrace.api.specs import Graph, Node, Role, StreamSpec, TableSpec
from headrace.core.deployment import home_of
from headrace.core.errors import DataError, PlanError
from headrace.plan.model import a_cycle, reachable
from headrace.plan.partitions import Facts, fillers_of_versions, input_nodes, streams_upstream, upstream
from headrace.rows.dtypes import written
from headrace.rows.hashing import hash_kind
from headrace.rows.schema import Schema
from headrace.rows.text import as_parsed
from headrace.systems.base import StreamInfo
from headrace.systems.shape import partitioned

Declared = TypeVar("Declared", Node, StreamSpec, TableSpec)


def check_graph(graph: Graph) -> None:
    count = graph.settings.intermediate_partitions
    if count is not None and count < 1:
        raise PlanError(
            f"app {graph.app!r} sets intermediate_partitions to {count} ({graph.location})",
            hint="give a number of at least 1, or leave it out",
        )
    for node in _sorted(graph.nodes.values()):
        _check_references(graph, node)
    if not any(spec.role is Role.SOURCE for spec in graph.streams.values()) or not input_nodes(graph):
        raise PlanError(
            f"app {graph.app!r} has no input ({graph.location})",
            hint='declare an input: app.input("name", ...), and process it',
        )
    _check_edges(graph)
    _check_intermediates(graph)
    for table in _sorted(graph.tables.values()):
        _check_table(graph, table)
    _check_waiting(graph)


def check_facts(graph: Graph, facts: Facts) -> None:
    for spec in _sorted(graph.streams.values()):
        if spec.partitions is not None and spec.partitions < 1:
            raise PlanError(
                f"{_the(spec)} is declared with {spec.partitions} partitions",
                hint="give a number of at least 1, or leave partitions= out",
            )
        info = facts.get(spec.id)
        if info is None:
            if spec.role in (Role.SOURCE, Role.SIDE_INPUT):
                raise missing(spec)
            continue
        if info.partitions < 1:
            raise PlanError(f"{_the(spec)} has {info.partitions} partitions", hint="a stream needs at least one")
        if spec.role is not Role.INTERMEDIATE and spec.partitions not in (None, info.partitions):
            raise other_count(spec, info.partitions)
        _check_columns(spec, facts)
        _check_key(graph, spec, info)


def other_count(spec: StreamSpec, found: int) -> PlanError:
    return PlanError(
        f"{_the(spec)} is declared with {spec.partitions} partitions, and has {found}",
        hint="leave partitions= out: the existing stream decides",
    )


def _sorted(things: Iterable[Declared]) -> list[Declared]:
    """By id, so that the first reported mistake doesn't depend on the order of declaration."""
    return sorted(things, key=lambda thing: thing.id)


def _check_references(graph: Graph, node: Node) -> None:
    for before in node.inputs:
        if before not in graph.nodes:
            raise PlanError(f"{node} takes the output of {before!r}, which isn't in the app")
    operator = node.operator
    stream = operator.stream_read if operator.stream_read is not None else operator.stream_written
    if stream is not None:
        spec = graph.streams.get(stream)
        if spec is None:
            raise PlanError(f"{node} names the stream {stream!r}, which isn't in the app")
        roles: tuple[Role, ...] = (Role.SINK,) if isinstance(operator, SendTo) else (Role.INTERMEDIATE,)
        if operator.stream_read is not None:
            roles = (Role.SOURCE, Role.INTERMEDIATE)
        if spec.role not in roles:
            raise PlanError(f"{node} can't use {_the(spec)}: it is declared as {spec.role.value}")
    table = operator.table_used
    if table is not None and table not in graph.tables:
        raise PlanError(f"{node} names the table {table!r}, which isn't in the app")


def _check_edges(graph: Graph) -> None:
    successors = graph.successors()
    cycle = a_cycle(successors)
    if cycle:
        raise PlanError(
            f"operators feed each other in a cycle: {' -> '.join([*cycle, cycle[0]])} "
            f"({graph.nodes[cycle[0]].location})",
            hint="messages only move forward; to feed results back, send them to a stream or a table",
        )
    reached = {id_ for start in input_nodes(graph) for id_ in reachable(start, successors.__getitem__)}
    for node in _sorted(graph.nodes.values()):
        if node.id not in reached:
            raise PlanError(f"{node} can't be reached from any input: no message would ever arrive")


def _check_intermediates(graph: Graph) -> None:
    written = {node.operator.stream_written for node in graph.nodes.values()}
    for spec in _sorted(graph.streams.values()):
        if spec.role is Role.INTERMEDIATE and spec.id not in written:
            raise PlanError(
                f"nothing writes {_the(spec)}", hint="partition_by and broadcast write intermediate streams"
            )


def _check_table(graph: Graph, table: TableSpec) -> None:
    where = f"table {table.id!r} ({table.location})"
    if table.remote is not None:
        return
    writers = graph.writers_of(table.id)
    fillers = [node for node in writers if node.operator.table_filled is not None]
    for stream in table.side_inputs:
        spec = graph.streams.get(stream)
        if spec is None or spec.role not in (Role.SOURCE, Role.SIDE_INPUT):
            raise PlanError(f"{where} has the side input {stream!r}, which isn't an input of the app")
    if table.side_inputs and writers:
        raise PlanError(
            f"{where} is filled by side inputs, but {writers[0]} writes it too",
            hint="a table has only one source: leave out side_inputs= or the send_to",
        )
    if not table.side_inputs and not fillers:
        joins = [str(node) for node in graph.joins_of(table.id)]
        joined = f", and {joins[0]} joins it" if joins else ""
        raise PlanError(
            f"nothing ever fills {where}{joined}",
            hint=f"send a stream to it (stream.send_to({table.id})), give it side_inputs=[...], or remove it",
        )
    if table.kind == "global":
        for writer in writers:
            _check_global_writer(graph, table, writer)
    else:
        _check_local_writers(graph, table, writers)
    if table.versions_ms is not None:
        _check_versions(graph, table)


def _check_versions(graph: Graph, table: TableSpec) -> None:
    where = f"table {table.id!r} ({table.location})"
    for node in (*graph.writers_of(table.id), *graph.joins_of(table.id)):
        if isinstance(node.operator, SendToTable | TableJoin) and node.operator.time is None:
            raise PlanError(
                f"{where} has versions, and {node} has no event time",
                hint='give its input an event time: app.input("...", event_time="ts")',
            )
    for id_ in table.side_inputs:
        if graph.streams[id_].event_time is None:
            raise PlanError(
                f"{where} has versions, and its {_the(graph.streams[id_])} has no event time",
                hint=f'give it one: app.input("{id_}", ..., event_time="ts")',
            )


def _check_waiting(graph: Graph) -> None:
    """The writers of a table of versions mustn't wait for a join that waits for them."""
    successors = {id_: list(after) for id_, after in graph.successors().items()}
    for join, fillers in fillers_of_versions(graph).items():
        for filler in fillers:
            successors[filler].append(join)
    cycle = a_cycle(successors)
    if cycle:
        steps = " -> ".join([*cycle, cycle[0]])
        raise PlanError(
            f"steps wait for each other: {steps}. A join with a table of versions waits for what fills it "
            f"({graph.nodes[cycle[0]]})",
            hint="fill the table from a flow that doesn't come from this join, or leave versions= out",
        )


def _check_global_writer(graph: Graph, table: TableSpec, writer: Node) -> None:
    """Flows that fill a global table must reach every task, because every task has all rows."""
    for start in streams_upstream(graph, writer.id):
        spec = graph.streams[start]
        if not spec.broadcast:
            raise PlanError(
                f"global table {table.id!r} ({table.location}) would hold only some rows in each task: "
                f"{writer} fills it from {_the(spec)}, of which each task reads its own partition",
                hint=f'put .broadcast(id="...") before the {writer.operator.kind}, or make it a local table',
            )
    for id_ in upstream(graph, writer.id):
        other = graph.nodes[id_].operator.table_joined
        if other is not None and graph.tables[other].kind == "local":
            raise PlanError(
                f"global table {table.id!r} ({table.location}) would hold different rows in each task: {writer} "
                f"fills it with what {graph.nodes[id_]} finds in the local table {other!r}, "
                "of which each task has only a part",
                hint="put the broadcast after that join, or make that table global too",
            )


def _check_local_writers(graph: Graph, table: TableSpec, writers: Sequence[Node]) -> None:
    """Refuse a mix of broadcast flows, which write a row in every task, and other flows, which write it only in one.

    A low-level task may write its own keys whatever message it gets.
    """
    writers = [node for node in writers if isinstance(node.operator, SendToTable)]
    whole = [node for node in writers if all(graph.streams[id_].broadcast for id_ in streams_upstream(graph, node.id))]
    parts = [node for node in writers if node not in whole]
    if whole and parts:
        raise PlanError(
            f"local table {table.id!r} ({table.location}): {whole[0]} writes its rows in every task, "
            f"but {parts[0]} only in the task of its partition, so the tasks would disagree",
            hint='partition every flow that writes it by its key; or make it kind="global" and broadcast '
            "every flow that writes it",
        )


def missing(spec: StreamSpec, meant: str | None = None) -> PlanError:
    """The error for an input stream that doesn't exist. ``meant`` is a stream with a similar name."""
    if spec.system.kind == "kinesis":
        name, region = (spec.system.options.get(option) for option in ("stream", "region"))
        hint = (
            f"check the name {name!r}, the region{f' {region}' if region else ''} and the account, or create it: "
            "Headrace creates none, since a stream costs money"
        )
    elif spec.system.kind in ("log", "memory", "kafka"):
        name = spec.stream.name if spec.stream.system == "log" else str(spec.stream)
        create = f"create it: headrace stream create {name} --partitions {spec.partitions or 'N'}{_home_option(spec)}"
        if spec.system.kind != "kafka":
            own = "WITH ('partitions' = 'N')" if spec.location.text.startswith("CREATE TABLE") else "create=N"
            create += f", or let the start do it: {own}"
        hint = f"did you mean {meant!r}? Otherwise {create}" if meant else create
    else:
        hint = f"check the location that the system {spec.system.name!r} names, and the stream's name"
    name = f"{spec.id!r}" if spec.id == spec.stream.name else f"{spec.id!r} ({spec.stream})"
    return PlanError(f"{spec.role.value} {name} doesn't exist\n  at {spec.location.quoted}", hint=hint)


def _home_option(spec: StreamSpec) -> str:
    """The option that names the home of a stream of the log, unless it is the default."""
    root = Path(str(spec.system.options.get("root", "")))
    if root.name != "streams" or root.parent.absolute() == home_of().absolute():
        return ""
    return f" --home {root.parent}"


def _check_columns(spec: StreamSpec, facts: Facts) -> None:
    """A reader needs columns that can be cast to the declared ones, a writer the stream's, but not added ones.

    If a writer has all of them and more, the additional ones are added when the app starts.
    """
    info = facts.get(spec.id)
    if info is None or info.columns is None or spec.schema is None or spec.role is Role.INTERMEDIATE:
        return
    if spec.role is Role.SINK:
        _check_written(spec, spec.schema, info)
        return
    try:
        there = as_parsed(info.columns, spec.schema.columns) if info.parsed else info.columns
        spec.schema.conform(Schema(there).empty())
    except DataError as error:
        missing = [name for name in spec.schema.columns if name not in info.columns]
        hint = error.hint or ""
        if missing:
            dtype = written(spec.schema.columns[missing[0]])
            hint += " or " if hint else ""
            hint += f"add it to the stream: headrace stream add-column {spec.stream.name} '{missing[0]}:{dtype}'"
        raise PlanError(
            f"{_the(spec)} doesn't match what the app declares: {error.message}", hint=hint or None
        ) from error


def _check_written(spec: StreamSpec, schema: Schema, info: StreamInfo) -> None:
    sent, there = schema.columns, info.columns or {}
    retyped = [name for name in sent if name in there and there[name] != sent[name]]
    missing = [name for name in there if name not in sent and name not in info.added]
    new = [name for name in sent if name not in there]
    if not retyped and not missing:
        return
    hint = "select the columns it holds, or send to another stream"
    if missing and not retyped and not new:
        hint = f"send null: .with_columns({missing[0]}=pl.lit(None, pl.{there[missing[0]]})), or send to another stream"
    differences = [f"{name!r} is {written(there[name])} there and {written(sent[name])} here" for name in retyped]
    differences += [f"{name!r} is only there" for name in missing] + [f"{name!r} is only here" for name in new]
    raise PlanError(
        f"{_the(spec)} has different columns from those that the app would write: {'; '.join(differences)}", hint=hint
    )


def _check_key(graph: Graph, spec: StreamSpec, info: StreamInfo) -> None:
    if not info.key or spec.role is Role.INTERMEDIATE:
        return
    if spec.role is Role.SINK:
        for node in _sorted(graph.nodes.values()):
            operator = node.operator
            if isinstance(operator, SendTo) and operator.stream == spec.id and operator.keys != info.key:
                raise PlanError(
                    f"{node} writes {_the(spec)}, which is {partitioned(info.key)}: readers would miss messages",
                    hint=f"write send_to({spec.id}, key={list(info.key)}), or send to another stream",
                )
        return
    if not spec.key:
        return
    if spec.key != info.key:
        raise PlanError(
            f"{_the(spec)} is declared with key={list(spec.key)}, and is {partitioned(info.key)}",
            hint="leave key= out: the stream's own key counts",
        )
    declared_there = (spec.schema.columns if spec.schema else {}, info.columns or {})
    for name in spec.key:
        declared, there = (columns.get(name) for columns in declared_there)
        if declared is not None and there is not None and hash_kind(declared) != hash_kind(there):
            raise PlanError(
                f"{_the(spec)} declares its key {name!r} as {declared}, and its writers choose partitions by {there}",
                hint=f"declare it as {there}, and cast it in a step; or leave key= out, and use partition_by",
            )


def _the(spec: StreamSpec) -> str:
    name = f"{spec.id!r}" if spec.id == spec.stream.name else f"{spec.id!r} ({spec.stream})"
    return f"{spec.role.value} {name} ({spec.location.quoted})"
