"""The result of planning (stages, tasks, and streams with their partition counts), and traversals of graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeVar

from headrace.api.specs import Graph, StreamSpec
from headrace.core.ids import SSP, TaskName
from headrace.protocol.record import Founding


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """A stream with its partition count decided, and the names of the stages that write and read it."""

    spec: StreamSpec
    partitions: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    key: tuple[str, ...] = ()
    """The columns that choose the partition of its messages; none if that isn't known."""
    added: frozenset[str] = frozenset()
    """Columns that were added to it, so that older frames lack them."""
    identity: str = ""
    """Distinguishes it from a later stream of the same name; empty if the system has no such ids."""

    def ssps(self) -> tuple[SSP, ...]:
        return tuple(SSP(self.spec.stream, p) for p in range(self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """One task: its name, its producer id (int32, the same whenever the app is planned) and the partitions it reads.

    ``founding`` is the state that it takes over from a savepoint, if the app's timeline begins with one.
    """

    name: TaskName
    producer: int
    inputs: tuple[SSP, ...]
    founding: Founding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A piece of the graph: its node ids, upstream first, the sorted ids of its streams and tables, and its tasks.

    Inherited from an earlier version of the app: ``kept_as``, the stored names of its state and positions, by the id of
    their owners; ``former`` intermediate streams that it no longer writes; ``dropped`` names of unneeded state.
    """

    name: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    side_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tables: tuple[str, ...]
    tasks: tuple[TaskPlan, ...] = ()
    kept_as: Mapping[str, str] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptKey:
    """The key that a user's function has to leave unchanged, and the stream whose partitions it chose."""

    columns: tuple[str, ...]
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole app, ready to run. Stages come in topological order (upstream first), then by name."""

    graph: Graph
    streams: Mapping[str, StreamPlan]
    stages: tuple[StagePlan, ...]
    combined: Mapping[str, str] = field(default_factory=dict)
    """The intermediate streams with partial results, each with its window. See ``passes``."""
    needed: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """The columns of each node's results that other nodes need; None or no entry means all. See ``passes``."""
    kept_keys: Mapping[str, KeptKey] = field(default_factory=dict)
    """The functions before steps that keep state by key, by node. See ``keys``."""

    def stage(self, name: str) -> StagePlan:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def successors(self, stage: StagePlan) -> dict[str, tuple[str, ...]]:
        """For each node the nodes of this stage that take its output; a source's ``Input`` may be in several stages."""
        nodes = set(stage.nodes)
        after = self.graph.successors()
        return {id_: tuple(next_ for next_ in after[id_] if next_ in nodes) for id_ in stage.nodes}


# -- traverse ----------------------------------------------------------------------------------------
Vertex = TypeVar("Vertex", bound=Hashable)


def reachable(vertex: Vertex, next_vertexes: Callable[[Vertex], Iterable[Vertex]]) -> list[Vertex]:
    """Every vertex that can be reached from ``vertex``, itself first: depth first, in the order of ``next_vertexes``.

    The caller can add edges that the app doesn't have, and cycles. Python's stack doesn't limit the length of a chain.
    """
    found = {vertex: None}
    path = [iter(next_vertexes(vertex))]
    while path:
        for following in path[-1]:
            if following not in found:
                found[following] = None
                path.append(iter(next_vertexes(following)))
                break
        else:
            path.pop()
    return list(found)


def topological_order(successors: Mapping[str, Iterable[str]]) -> tuple[list[str], list[str]]:
    """The names with each after its predecessors, smallest name first; and those on a cycle or downstream of one."""
    waiting = dict.fromkeys(successors, 0)
    for following in successors.values():
        for name in following:
            waiting[name] += 1
    ready = [name for name, count in waiting.items() if count == 0]
    heapify(ready)
    order: list[str] = []
    while ready:
        name = heappop(ready)
        order.append(name)
        for following_name in successors[name]:
            waiting[following_name] -= 1
            if waiting[following_name] == 0:
                heappush(ready, following_name)
    placed = set(order)
    return order, sorted(name for name in waiting if name not in placed)


def a_cycle(successors: Mapping[str, Iterable[str]]) -> list[str]:
    """One cycle as names in order, beginning with the smallest; empty if there is none."""
    _, unplaced = topological_order(successors)
    stuck = set(unplaced)
    for start in unplaced:
        # Breadth first, for a shortest path back to the start, because the error should show no detours.
        came_from: dict[str, str] = {}
        frontier = [start]
        while frontier and start not in came_from:
            reached: list[str] = []
            for name in frontier:
                for following in sorted(set(successors[name]) & stuck):
                    if following not in came_from:
                        came_from[following] = name
                        reached.append(following)
            frontier = reached
        if start in came_from:
            cycle = [start]
            while came_from[cycle[-1]] != start:
                cycle.append(came_from[cycle[-1]])
            return [start, *reversed(cycle[1:])]
    return []
