"""The graph traversal of all analyses of the planner.

The visitor collects the facts of an analysis, and ``next_vertexes`` returns the next vertexes. So the caller can add
edges that the app doesn't have, for example from a write of a table to its joins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


def traverse(
    vertex: Vertex, visitor: Callable[[Vertex], None], next_vertexes: Callable[[Vertex], Iterable[Vertex]]
) -> None:
    """Call ``visitor`` once for every vertex that can be reached from ``vertex``, itself first.

    Depth first, in the order of ``next_vertexes``. Cycles are followed once. The walk keeps its own stack, so the
    length of a chain isn't limited by Python's.
    """
    seen = {vertex}
    visitor(vertex)
    path = [iter(next_vertexes(vertex))]
    while path:
        for following in path[-1]:
            if following not in seen:
                seen.add(following)
                visitor(following)
                path.append(iter(next_vertexes(following)))
                break
        else:
            path.pop()


def reachable(vertex: Vertex, next_vertexes: Callable[[Vertex], Iterable[Vertex]]) -> list[Vertex]:
    """Return every vertex that can be reached from ``vertex``, itself first."""
    found: list[Vertex] = []
    traverse(vertex, found.append, next_vertexes)
    return found


def topological_order(successors: Mapping[str, Iterable[str]]) -> tuple[list[str], list[str]]:
    """Return the names with each after its predecessors, smallest name first, and the names that can't be ordered.

    The second list has the names on a cycle or downstream of one; without a cycle, it is empty.
    """
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
    """Return one cycle as names in order, beginning with the smallest; empty if there is none."""
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
