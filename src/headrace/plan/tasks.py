"""Group partitions into tasks, and give every task its producer id.

Task n of a stage reads partition n of each of its streams that has one. So messages of a key meet in one task if the
streams have equal partition counts. Every task reads all partitions of a broadcast stream, and of the side inputs of a
global table. A stage that reads nothing else has one task: more tasks would repeat the same work.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.api.specs import Graph
from headrace.core.ids import SSP, TaskName
from headrace.plan.heritage import NO_HERITAGE, Heritage
from headrace.plan.model import StagePlan, TaskPlan

PRODUCER_MAX = 2**31 - 1


def group_tasks(
    graph: Graph,
    stages: Sequence[StagePlan],
    counts: Mapping[str, int],
    containers: int,
    heritage: Heritage = NO_HERITAGE,
) -> tuple[StagePlan, ...]:
    """The stages with their tasks, in the order given.

    A stage never has fewer tasks than it had in an earlier version of the app, since readers wait for all that have
    reported. A task whose partitions are gone just ends.
    """
    known = {
        TaskName(stage, n): producer
        for stage, record in heritage.inventory.stages.items()
        for n, producer in enumerate(record.producers)
    }
    readings: dict[str, list[tuple[SSP, ...]]] = {}
    for stage in stages:
        readings[stage.name] = task_inputs(graph, stage, counts, containers)
        before = heritage.record(stage.name)
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

    A new one is a hash of the app's name and the task's. So it doesn't depend on the other tasks, and apps that write
    the same stream have different ids. If two names have the same hash, the one that sorts later takes the next free
    number.
    """
    ids: dict[TaskName, int] = {}
    known = known or {}
    taken = set(known.values())
    for name in sorted(names):
        if name in known:
            ids[name] = known[name]
            continue
        number = _hash(f"{app}/{name}")
        while number in taken:
            number = number % PRODUCER_MAX + 1
        taken.add(number)
        ids[name] = number
    return ids


def _hash(name: str) -> int:
    """Never 0, which is a writer outside any app."""
    return zlib.crc32(name.encode()) % PRODUCER_MAX + 1


def task_inputs(graph: Graph, stage: StagePlan, counts: Mapping[str, int], containers: int) -> list[tuple[SSP, ...]]:
    """For each task of the stage the partitions that it reads, sorted."""
    shared = _shared_streams(graph, stage)
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


def _shared_streams(graph: Graph, stage: StagePlan) -> set[str]:
    """The streams of which every task reads all partitions."""
    shared = {stream for stream in (*stage.inputs, *stage.side_inputs) if graph.streams[stream].broadcast}
    for table in stage.tables:
        if graph.tables[table].kind == "global":
            shared.update(graph.tables[table].side_inputs)
    return shared


def _partitions(graph: Graph, wanted: Mapping[str, range]) -> tuple[SSP, ...]:
    return tuple(
        sorted(SSP(graph.streams[stream].stream, p) for stream, partitions in wanted.items() for p in partitions)
    )
