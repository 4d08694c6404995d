"""Cut the graph into stages, the pieces between intermediate streams, and group partitions into tasks.

A node is in the same stage as its neighbours, the nodes that read the same stream, and the nodes that use the same
table if a flow of the app writes the table, because such a table is kept in one task. Of a table that side inputs fill,
each stage that joins it keeps its own copy.

A stage that would read its own writes (for example, a source joined with its own messages, repartitioned) is split:
each part reads the source separately. If that doesn't help, the app can't be planned, because such a stage would wait
for its own end of stream.

A new stage is named after the smallest id among the intermediate streams it reads, or else among its inputs. No two
stages share the former, and no two that read none share a source, so names are unique. Checkpoints and stores depend on
the name, so a stage that an earlier version of the app had keeps its name: see ``Heritage``.

Task n of a stage reads partition n of each of its streams that has one. So messages of a key meet in one task if counts
are equal. Every task reads all partitions of broadcast streams, and of the side inputs of a global table. A stage that
reads nothing else has one task: more tasks would repeat the same work.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.api.specs import Graph, Node, Role
from headrace.core.errors import PlanError
from headrace.core.ids import SSP, TaskName
from headrace.plan.inventory import NO_HERITAGE, Heritage
from headrace.plan.model import StagePlan, TaskPlan, a_cycle, reachable, topological_order
from headrace.plan.partitions import fillers_of_versions


def cut_stages(
    graph: Graph, heritage: Heritage = NO_HERITAGE, tasks: Callable[[StagePlan], int] = lambda stage: 0
) -> tuple[StagePlan, ...]:
    """Return the stages without tasks, upstream first, then by name; ``tasks`` says how many each needs.

    Raises ``PlanError`` if one would feed itself.
    """
    stages = heritage.inherit(graph, _cut(graph), tasks)
    downstream = _downstream(stages)
    by_name = {stage.name: stage for stage in stages}
    loop = a_cycle(downstream)
    if loop:
        raise _feeds_itself(graph, [by_name[name] for name in loop])
    order, _ = topological_order(downstream)
    return tuple(by_name[name] for name in order)


def _cut(graph: Graph) -> list[StagePlan]:
    """The stages in any order; some still feed themselves if the app can't be planned."""
    flows = _flows(graph)
    stages = [_stage(graph, nodes) for nodes in _joined_by_a_node(flows)]
    after = _downstream(stages)
    in_a_loop = [s for s in stages if any(s.name in reachable(name, after.__getitem__) for name in after[s.name])]
    parts = (part for stage in in_a_loop for part in _parts(graph, stage, flows))
    return [stage for stage in stages if stage not in in_a_loop] + [_stage(graph, part) for part in parts]


def _flows(graph: Graph) -> list[frozenset[str]]:
    """The smallest pieces that could be stages: sources tie nothing, and belong to every piece that reads them."""
    neighbours = _neighbours(graph)
    reading = {id_ for id_, node in graph.nodes.items() if node.operator.stream_read is not None}
    sources = {id_ for id_ in reading if not _reads_intermediate(graph, graph.nodes[id_])}
    flows: set[frozenset[str]] = set()
    placed: set[str] = set()
    for id_ in graph.nodes.keys() - sources:
        if id_ not in placed:
            piece = reachable(id_, lambda node: neighbours[node] if node not in sources else ())
            flows.add(frozenset(piece))
            placed.update(piece)
    flows.update(frozenset([source]) for source in sources - placed)
    return sorted(flows, key=sorted)


def _joined_by_a_node(pieces: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    joined: list[frozenset[str]] = []
    for piece in pieces:
        apart = [other for other in joined if not other & piece]
        joined = [*apart, piece.union(*(other for other in joined if other & piece))]
    return joined


def _parts(graph: Graph, stage: StagePlan, flows: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The flows of a stage; only those that read nothing but sources are united."""
    mine = [flow for flow in flows if flow <= set(stage.nodes)]
    further = [flow for flow in mine if any(_reads_intermediate(graph, graph.nodes[id_]) for id_ in flow)]
    return [*further, *_joined_by_a_node(flow for flow in mine if flow not in further)]


def _reads_intermediate(graph: Graph, node: Node) -> bool:
    stream = node.operator.stream_read
    return stream is not None and graph.streams[stream].role is Role.INTERMEDIATE


def _downstream(stages: Iterable[StagePlan]) -> dict[str, list[str]]:
    stages = list(stages)
    return {
        stage.name: sorted(after.name for after in stages if set(stage.outputs) & set(after.inputs)) for stage in stages
    }


def _neighbours(graph: Graph) -> dict[str, set[str]]:
    neighbours: dict[str, set[str]] = {id_: set() for id_ in graph.nodes}
    shared: dict[tuple[str, str], list[str]] = {}
    for node in graph.nodes.values():
        for before in node.inputs:
            neighbours[node.id].add(before)
            neighbours[before].add(node.id)
        if node.operator.stream_read is not None:
            shared.setdefault(("stream", node.operator.stream_read), []).append(node.id)
        table = node.operator.table_used
        if table is not None and _ties(graph, table):
            shared.setdefault(("table", table), []).append(node.id)
    for first, *others in shared.values():
        neighbours[first].update(others)
        for other in others:
            neighbours[other].add(first)
    return neighbours


def _ties(graph: Graph, table: str) -> bool:
    spec = graph.tables[table]
    return not spec.side_inputs and spec.kind != "remote"


def _stage(graph: Graph, piece: Iterable[str]) -> StagePlan:
    nodes = set(piece)
    successors = {id_: list(after) for id_, after in graph.successors().items()}
    for join, fillers in fillers_of_versions(graph).items():
        for filler in fillers:
            successors[filler].append(join)
    order, _ = topological_order({id_: [after for after in successors[id_] if after in nodes] for id_ in nodes})
    operators = [graph.nodes[id_].operator for id_ in nodes]
    inputs = {stream for operator in operators if (stream := operator.stream_read) is not None}
    outputs = {stream for operator in operators if (stream := operator.stream_written) is not None}
    tables = {table for operator in operators if (table := operator.table_used) is not None}
    side_inputs = {stream for table in tables for stream in graph.tables[table].side_inputs}
    outputs.update(
        dead_letter for stream in inputs | side_inputs if (dead_letter := graph.streams[stream].dead_letter) is not None
    )
    _check_one_reader_of_each_stream(graph, inputs, side_inputs)
    return StagePlan(
        name=min(inputs, key=lambda id_: (graph.streams[id_].role is not Role.INTERMEDIATE, id_)),
        nodes=tuple(order),
        inputs=tuple(sorted(inputs)),
        side_inputs=tuple(sorted(side_inputs)),
        outputs=tuple(sorted(outputs)),
        tables=tuple(sorted(tables)),
    )


def _check_one_reader_of_each_stream(graph: Graph, inputs: Iterable[str], side_inputs: Iterable[str]) -> None:
    """A task keeps one position for each partition, so a stage can read a stream only once."""
    read_by: dict[str, str] = {}
    for id_ in [*sorted(inputs), *sorted(side_inputs)]:
        spec = graph.streams[id_]
        name = str(spec.stream)
        if name in read_by:
            other = graph.streams[read_by[name]]
            raise PlanError(
                f"one stage would read stream {name!r} twice: as {other.role.value} {other.id!r} "
                f"({other.location}) and as {spec.role.value} {id_!r} ({spec.location})",
                hint="use one input: its messages can go to many operators, and to a table by send_to",
            )
        read_by[name] = id_


def _feeds_itself(graph: Graph, loop: list[StagePlan]) -> PlanError:
    lines = []
    for stage, after in zip(loop, [*loop[1:], loop[0]], strict=True):
        for stream in sorted(set(stage.outputs) & set(after.inputs)):
            spec = graph.streams[stream]
            lines.append(
                f"  stage {stage.name!r} writes {stream!r} ({spec.location.quoted}), which stage {after.name!r} reads"
            )
    table = _table_in_the_way(graph, loop)
    return PlanError(
        "stages can't feed themselves through an intermediate stream:\n" + "\n".join(lines),
        hint="a join, a merge or a task ties both sides of that stream together: write a second intermediate stream "
        "for one of the sides"
        if table is None
        else f"table {table!r} ties what joins it to what writes it. If messages keep the table's key after the join, "
        "leave out the partition_by that follows. If not, you need two apps: fill the table from an input here, and "
        "send the changes to an output; the other app partitions them by the table's key, into the stream of that "
        "input",
    )


def _table_in_the_way(graph: Graph, loop: Iterable[StagePlan]) -> str | None:
    for id_ in sorted({table for stage in loop for table in stage.tables if _ties(graph, table)}):
        untied = replace(graph.tables[id_], kind="remote")
        if not a_cycle(_downstream(_cut(replace(graph, tables={**graph.tables, id_: untied})))):
            return id_
    return None


PRODUCER_MAX = 2**31 - 1


def group_tasks(
    graph: Graph,
    stages: Sequence[StagePlan],
    counts: Mapping[str, int],
    containers: int,
    heritage: Heritage = NO_HERITAGE,
) -> tuple[StagePlan, ...]:
    """The stages with their tasks, in the order given.

    A stage never has fewer tasks than before, since readers wait for all that have reported. Some only end.
    """
    known = {
        TaskName(stage, n): producer
        for stage, record in heritage.inventory.stages.items()
        for n, producer in enumerate(record.producers)
    }
    readings: dict[str, list[tuple[SSP, ...]]] = {}
    for stage in stages:
        readings[stage.name] = task_inputs(graph, stage, counts, containers)
        before = heritage.inventory.stages.get(stage.name)
        if before is not None and graph.settings.grouping == "partition":
            readings[stage.name] += [()] * (before.tasks - len(readings[stage.name]))
    names = [TaskName(name, n) for name, inputs in readings.items() for n in range(len(inputs))]
    producers = producer_ids(graph.app, names, known)
    return tuple(
        replace(
            stage,
            tasks=tuple(
                TaskPlan(name=name, producer=producers[name], inputs=inputs)
                for n, inputs in enumerate(readings[stage.name])
                for name in [TaskName(stage.name, n)]
            ),
        )
        for stage in stages
    )


def producer_ids(
    app: str, names: Iterable[TaskName], known: Mapping[TaskName, int] | None = None
) -> dict[TaskName, int]:
    """A distinct number from 1 to 2^31-1 for each task; ``known`` are those that were given out before.

    A new one is a hash of the app's name and the task's, so it doesn't depend on the other tasks, and differs between
    apps that write the same stream. Of two names with the same hash, the later one in order takes the next free number.
    """
    ids: dict[TaskName, int] = {}
    known = known or {}
    taken = set(known.values())
    for name in sorted(names):
        if name in known:
            ids[name] = known[name]
            continue
        number = zlib.crc32(f"{app}/{name}".encode()) % PRODUCER_MAX + 1  # 0 is a writer outside any app
        while number in taken:
            number = number % PRODUCER_MAX + 1
        taken.add(number)
        ids[name] = number
    return ids


def task_inputs(graph: Graph, stage: StagePlan, counts: Mapping[str, int], containers: int) -> list[tuple[SSP, ...]]:
    shared = {stream for stream in (*stage.inputs, *stage.side_inputs) if graph.streams[stream].broadcast}
    for table in stage.tables:
        if graph.tables[table].kind == "global":
            shared.update(graph.tables[table].side_inputs)
    streams = sorted({*stage.inputs, *stage.side_inputs})
    if graph.settings.grouping == "container":
        # Here containers divide the partitions among themselves.
        return [_partitions(graph, {stream: range(counts[stream]) for stream in streams})] * containers
    task_count = max([counts[stream] for stream in streams if stream not in shared], default=1)
    return [
        _partitions(
            graph,
            {
                stream: range(counts[stream]) if stream in shared else range(n, min(n + 1, counts[stream]))
                for stream in streams
            },
        )
        for n in range(task_count)
    ]


def _partitions(graph: Graph, wanted: Mapping[str, range]) -> tuple[SSP, ...]:
    return tuple(
        sorted(SSP(graph.streams[stream].stream, p) for stream, partitions in wanted.items() for p in partitions)
    )
