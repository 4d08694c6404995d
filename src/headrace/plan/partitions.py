"""Determine the partition count of each stream, and check streams that meet or have slots.

Streams need equal counts if their messages reach a node where all messages of a key must be in one task
(``OperatorSpec.gathers_keys``). A write of a table leads to the table's joins as if they were connected; if nothing
joins the table, flows that write it meet there. Streams that every task reads completely don't count.

The counts of the app's inputs are known, and so are those that the user has fixed. Then:

1. An intermediate stream that is joined with a stream of known count gets that count, and can pass it on in turn.
2. The other intermediate streams get the app's ``intermediate_partitions``.
3. Without that setting, a stream that exists keeps its count. A new one gets the largest count among the app's
   inputs and outputs, at most 256.

A new output without a declared count gets the largest count among the inputs, without a cap. Each round uses only
results of earlier rounds, so no order of declaration or of joins affects the result.

Slots: shards move between slots, and so between tasks, whenever they split, merge or are balanced. Keys move with them,
but state doesn't. ``partition_by`` brings each key to one permanent task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.api.operators.changes import ChangesJoin
from headrace.api.operators.join import StreamJoin, TableJoin
from headrace.api.specs import Graph, Node, Role, StreamSpec
from headrace.core.errors import PlanError
from headrace.core.ids import MAX_PARTITIONS
from headrace.plan.model import StreamPlan, reachable
from headrace.systems.base import StreamInfo


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """The streams, sorted by id, whose messages meet at a node, or in a table that no node joins. At least two."""

    at: str
    streams: tuple[str, ...]


def join_groups(graph: Graph) -> tuple[JoinGroup, ...]:
    """Every node or table where streams meet, sorted by id, with those streams."""
    meeting: dict[str, set[str]] = {}
    for id_, reached_by in inputs_of_meetings(graph, joins_of_table_writes(graph)).items():
        table = graph.nodes[id_].operator.table_written
        if table is None or not graph.joins_of(table):
            meeting.setdefault(table or id_, set()).update(reached_by)
    groups = (JoinGroup(at, _partitioned(graph, at, inputs)) for at, inputs in sorted(meeting.items()))
    return tuple(group for group in groups if len(group.streams) > 1)


def input_nodes(graph: Graph) -> list[str]:
    return sorted(node.id for node in graph.nodes.values() if node.operator.stream_read is not None)


def joins_of_table_writes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each writer of a local table the nodes that join it, sorted; only nodes that an input reaches."""
    successors = graph.successors()
    reached = {id_ for start in input_nodes(graph) for id_ in reachable(start, successors.__getitem__)}
    return {
        writer.id: tuple(join.id for join in graph.joins_of(table) if join.id in reached)
        for table, spec in graph.tables.items()
        if spec.kind == "local"
        for writer in graph.writers_of(table)
        if writer.id in reached
    }


def fillers_of_versions(graph: Graph) -> dict[str, tuple[str, ...]]:
    """For each join with a table of versions the writers of the table, sorted; the join waits for them."""
    return {
        join.id: tuple(writer.id for writer in writers)
        for table, spec in graph.tables.items()
        if spec.versions_ms is not None and (writers := graph.writers_of(table))
        for join in graph.joins_of(table)
    }


def inputs_of_meetings(graph: Graph, joins_of_writes: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """For each node that gathers keys the input nodes whose messages reach it, also through a table."""
    successors = graph.successors()
    reached_by: dict[str, set[str]] = {}
    for start in input_nodes(graph):
        for id_ in reachable(start, lambda vertex: successors[vertex] + joins_of_writes.get(vertex, ())):
            operator = graph.nodes[id_].operator
            table = operator.table_used
            if operator.gathers_keys and (table is None or graph.tables[table].kind == "local"):
                reached_by.setdefault(id_, set()).add(start)
    return reached_by


def streams_upstream(graph: Graph, node: str) -> list[str]:
    read = (graph.nodes[id_].operator.stream_read for id_ in upstream(graph, node))
    return sorted({stream for stream in read if stream is not None})


def upstream(graph: Graph, node: str) -> list[str]:
    """The nodes of its stage that a node's messages have passed, itself first."""
    return reachable(node, lambda vertex: graph.nodes[vertex].inputs)


def check_outer_joins(graph: Graph) -> None:
    """Raise ``PlanError`` for a join that would emit broadcast messages without partners in all tasks but one."""
    for id_ in sorted(graph.nodes):
        node = graph.nodes[id_]
        for flow, partners in _outer_sides(graph, node):
            to_all = [stream for stream in streams_upstream(graph, flow) if graph.streams[stream].broadcast]
            divided = [stream for stream in partners if not graph.streams[stream].broadcast]
            if to_all and divided:
                spec = graph.streams[to_all[0]]
                raise PlanError(
                    f"{node} keeps messages without a partner, and every task gets those of {spec.id!r} "
                    f"({spec.location.quoted}), but only one has the partner, because each task has its "
                    f"part of {divided[0]!r}: the others would emit the message without it",
                    hint='write how="inner", so that only the task that has the partner emits the message; or put a '
                    "partition_by before the join instead of the broadcast",
                )


def _outer_sides(graph: Graph, node: Node) -> list[tuple[str, list[str]]]:
    """The flows whose messages a join emits even without a partner, each with the streams that the partners are of."""
    match node.operator:
        case TableJoin(table=table, how="left") if graph.tables[table].kind == "local":
            writers = (writer.inputs[0] for writer in graph.writers_of(table))
            filled = [stream for flow in writers for stream in streams_upstream(graph, flow)]
            return [(node.inputs[0], [*graph.tables[table].side_inputs, *filled])]
        case StreamJoin(how=how) | ChangesJoin(how=how) if how != "inner":
            left, right = node.inputs
            sides = [(left, streams_upstream(graph, right)), (right, streams_upstream(graph, left))]
            return sides if how == "full" else sides[1:] if how == "right" else sides[:1]
        case _:
            return []


def _partitioned(graph: Graph, at: str, inputs: Iterable[str]) -> tuple[str, ...]:
    streams = {stream for id_ in inputs if (stream := graph.nodes[id_].operator.stream_read) is not None}
    table = graph.nodes[at].operator.table_joined if at in graph.nodes else None
    if table is not None and graph.tables[table].kind == "local":
        streams.update(graph.tables[table].side_inputs)
    return tuple(sorted(s for s in streams if not graph.streams[s].broadcast))


INTERMEDIATE_PARTITIONS_MAX = 256
"""The cap of rule 3. A setting or a join may ask for more."""
Facts = Mapping[str, StreamInfo | None]


def partition_counts(graph: Graph, facts: Facts, groups: Sequence[JoinGroup]) -> dict[str, int]:
    """The count of every stream by its id; raises ``PlanError`` if the streams of a join can't agree."""
    sources = [spec.id for spec in graph.streams.values() if spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
    inputs = {id_: info.partitions for id_ in sources if (info := facts.get(id_)) is not None}
    outputs = _output_counts(graph, facts)
    largest = min(max([*inputs.values(), *outputs.values()]), INTERMEDIATE_PARTITIONS_MAX)

    counts = inputs | {spec.id: spec.partitions for spec in _intermediates(graph) if spec.partitions is not None}
    _spread(graph, counts, groups)
    setting = graph.settings.intermediate_partitions
    if setting is None:
        counts = _existing_intermediate_counts(graph, facts) | counts
        _spread(graph, counts, groups)
    for spec in _intermediates(graph):
        counts.setdefault(spec.id, setting or largest)
    _verify_existing(graph, facts, counts)

    for spec in graph.streams.values():
        if spec.role is Role.SINK:
            counts[spec.id] = outputs.get(spec.id, max(inputs.values()))
    for id_, count in counts.items():
        if count > MAX_PARTITIONS:
            spec = graph.streams[id_]
            raise PlanError(
                f"{spec.role.value} {id_!r} ({spec.location.quoted}) would have {count:,} partitions, "
                f"and a stream may have at most {MAX_PARTITIONS:,}",
                hint="write partitions= at an output or partition_by; for an input, use a stream with fewer",
            )
    return counts


def _output_counts(graph: Graph, facts: Facts) -> dict[str, int]:
    counts: dict[str, int] = {}
    for spec in graph.streams.values():
        info = facts.get(spec.id)
        if spec.role is not Role.SINK:
            continue
        if spec.partitions is not None:
            counts[spec.id] = spec.partitions
        elif info is not None:
            counts[spec.id] = info.partitions
    return counts


def _intermediates(graph: Graph) -> list[StreamSpec]:
    return [spec for spec in graph.streams.values() if spec.role is Role.INTERMEDIATE]


def _existing_intermediate_counts(graph: Graph, facts: Facts) -> dict[str, int]:
    """The streams that keep their counts, so that new outputs don't conflict with state."""
    found = {spec.id: facts.get(spec.id) for spec in _intermediates(graph)}
    return {id_: info.partitions for id_, info in found.items() if info is not None}


def _spread(graph: Graph, counts: dict[str, int], groups: Sequence[JoinGroup]) -> None:
    """Give every stream that is joined with one of known count, directly or through other joins, that count."""
    given = dict(counts)
    while True:
        wanted: dict[str, set[int]] = {}
        for group in groups:
            known = {counts[stream] for stream in group.streams if stream in counts}
            for stream in group.streams:
                wanted.setdefault(stream, set()).update(known)
        if any(len(choices) > 1 for choices in wanted.values()):
            raise _disagreement(graph, given, groups)
        found = {s: choices.pop() for s, choices in wanted.items() if choices and s not in counts}
        if not found:
            return
        counts.update(found)


def _verify_existing(graph: Graph, facts: Facts, counts: Mapping[str, int]) -> None:
    for id_, existing in sorted(_existing_intermediate_counts(graph, facts).items()):
        spec = graph.streams[id_]
        if counts[id_] != existing:
            # The app's own setting may differ, or a restored savepoint may have changed this count.
            raise PlanError(
                f"stream {str(spec.stream)!r} exists with {existing} partitions, "
                f"and this app needs {counts[id_]} ({spec.location.quoted})",
                hint=f"write partitions={existing} at the step, or accept the loss of what is in the stream: "
                f"--drop-state {id_}",
            )


def _disagreement(graph: Graph, given: Mapping[str, int], groups: Sequence[JoinGroup]) -> PlanError:
    """The error shows the shortest chain of joins between two different given counts."""
    streams, joins = _shortest_conflict(given, groups)
    steps = [
        f"  {_meeting(graph, join)} brings together {left!r} and {right!r}"
        for left, join, right in zip(streams, joins, streams[1:], strict=False)
    ]
    first, last = (f"  {_stream(graph, stream, given)}" for stream in (streams[0], streams[-1]))
    names = " and ".join(repr(at) if at in graph.nodes else f"table {at!r}" for at in joins)
    return PlanError(
        f"streams that meet in {names} need equal partition counts, but can't have them:\n"
        + "\n".join([first, *steps, last]),
        hint=_remedy(graph, streams[0], streams[-1]),
    )


def _shortest_conflict(
    given: Mapping[str, int], groups: Sequence[JoinGroup]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Streams s0..sn and the joins between them; only s0 and sn have given counts, and these differ."""
    found: list[tuple[int, tuple[str, ...], tuple[str, ...]]] = []
    joined = sorted({stream for group in groups for stream in group.streams})
    for start in (stream for stream in joined if stream in given):
        frontier: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((start,), ())]
        seen = {start}
        while frontier:
            longer: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
            for streams, joins in frontier:
                for group in groups:
                    if streams[-1] not in group.streams:
                        continue
                    for stream in group.streams:
                        way = ((*streams, stream), (*joins, group.at))
                        if stream in given and given[stream] != given[start]:
                            found.append((len(way[1]), *way))
                        elif stream not in seen and stream not in given:
                            seen.add(stream)
                            longer.append(way)
            frontier = longer
    _, streams, joins = min(found)
    return streams, joins


def _meeting(graph: Graph, at: str) -> str:
    if at not in graph.nodes:
        return f"table {at!r} ({graph.tables[at].location.quoted})"
    node = graph.nodes[at]
    table = node.operator.table_joined
    name = f"{node.operator.kind} {at!r}" + ("" if table is None else f" with table {table!r}")
    return f"{name} ({node.location.quoted})"


def _stream(graph: Graph, id_: str, given: Mapping[str, int]) -> str:
    spec = graph.streams[id_]
    how = "is declared with" if spec.role is Role.INTERMEDIATE and spec.partitions is not None else "has"
    return f"{spec.role.value} {id_!r} {how} {given[id_]} partitions ({spec.location.quoted})"


def _remedy(graph: Graph, left: str, right: str) -> str:
    for id_ in (left, right):
        spec = graph.streams[id_]
        if spec.role is Role.INTERMEDIATE and spec.partitions is not None:
            return f"leave out partitions= of {id_!r}: the planner gives it the count that it needs"
        if spec.role is Role.INTERMEDIATE:
            return f"give {id_!r} another id: a stream of that name exists with another partition count"
    movable = [id_ for id_ in (left, right) if graph.streams[id_].role is Role.SOURCE]
    if not movable:
        return "fill the table by send_to instead of side_inputs=, with a partition_by before it"
    return (
        f"put a partition_by after {' or after '.join(map(repr, movable))}: "
        "an intermediate stream takes the partition count of the streams it meets"
    )


def check_slots(graph: Graph) -> None:
    slotted = {id_: spec for id_, spec in graph.streams.items() if spec.slots}
    for _, spec in sorted(slotted.items()):
        if graph.settings.grouping == "container":
            raise PlanError(
                f"{_slotted(spec)} can't be read with grouping='container': each of its slots has its own task",
                hint="leave grouping= out: any number of containers shares the slots",
            )
        if spec.role is Role.SIDE_INPUT:
            raise PlanError(
                f"{_slotted(spec)} can't be a side input of a table: one key isn't always in the same task",
                hint="read it as an input, then .partition_by(...).send_to(table)",
            )
    for id_, starts in sorted(inputs_of_meetings(graph, {}).items()):
        for start in sorted(starts):
            stream = graph.nodes[start].operator.stream_read
            if stream in slotted:
                raise PlanError(
                    f"{graph.nodes[id_]} needs all messages of a key in one task, and {_slotted(slotted[stream])} "
                    "doesn't keep them together: its shards move between tasks",
                    hint='put .partition_by("key", id="by-key") before it',
                )


def check_leases(streams: Mapping[str, StreamPlan]) -> None:
    """Raise ``PlanError`` for a lease table of two stages or two inputs, because it has only one row per shard."""
    users: dict[tuple[object, ...], StreamPlan] = {}
    for _, stream in sorted(streams.items()):
        options = stream.spec.system.options
        table = options.get("lease_table")
        if table is None:
            continue
        if len(stream.readers) > 1:
            raise PlanError(
                f"{len(stream.readers)} stages read {_slotted(stream.spec)}: {', '.join(stream.readers)}. Its lease "
                f"table {table!r} can show the progress of one",
                hint="leave lease_table= out, or have one of the stages read the stream as another input, without it",
            )
        other = users.setdefault((table, options.get("region"), options.get("endpoint_url")), stream)
        if other is not stream:
            raise PlanError(
                f"{_slotted(other.spec)} and {_slotted(stream.spec)} name the same lease table {table!r}, which can "
                "show the progress of one",
                hint="name another table for one of them, or leave lease_table= out",
            )


def _slotted(spec: StreamSpec) -> str:
    return f"{spec.system.kind} stream {spec.id!r} ({spec.location})"
