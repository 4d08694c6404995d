"""Find the steps with an event time: those that only inputs with event time reach.

Watermarks come from the inputs, and flow where messages flow. An input without event time has no watermark, so a step
that it reaches would wait for it until the input ends. Flows that fill a table don't count, because their time doesn't
affect the joins of the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.api.specs import Graph, Role, StreamSpec
from headrace.core.errors import PlanError
from headrace.plan.traverse import reachable


def check_event_time(graph: Graph) -> None:
    """Raise ``PlanError`` if a step needs event time and an input without one reaches it."""
    untimed = untimed_inputs(graph)
    for id_ in sorted(untimed):
        node, source = graph.nodes[id_], untimed[id_]
        if node.operator.needs_event_time:
            clock = ', or use the clock in the window: time="processing"' if node.operator.kind == "window" else ""
            raise PlanError(
                f"{node.operator.kind} {id_!r} ({node.location}: {node.location.text}) waits for event time, and "
                f"{source.role.value} {source.id!r} ({source.location}), which reaches it, has none",
                hint=f'name its event time: app.input({source.id!r}, ..., event_time="ts"){clock}',
            )


def untimed_inputs(graph: Graph) -> dict[str, StreamSpec]:
    """Return for each node that inputs without event time reach the first of these inputs by id."""
    following = {id_: list(after) for id_, after in graph.successors().items()}
    readers: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if node.operator.stream_read is not None:
            readers.setdefault(node.operator.stream_read, []).append(node.id)
    for node in graph.nodes.values():
        following[node.id] += readers.get(node.operator.stream_written or "", ())
    found: dict[str, StreamSpec] = {}
    for stream, spec in sorted(graph.streams.items()):
        if spec.role is Role.SOURCE and spec.event_time is None:
            for start in readers.get(stream, ()):
                for id_ in reachable(start, following.__getitem__):
                    found.setdefault(id_, spec)
    return found


def inputs_with_a_say(graph: Graph, nodes: Iterable[str]) -> tuple[str, ...]:
    """Return the input nodes that determine the event time of a stage's tasks, sorted.

    These are the ones with event time that feed more than tables; if none does, all with event time; if none has, all.
    """
    mine = set(nodes)
    untimed, successors = untimed_inputs(graph), graph.successors()
    inputs = tuple(sorted(id_ for id_ in mine if graph.nodes[id_].operator.stream_read is not None))
    timed = tuple(id_ for id_ in inputs if id_ not in untimed)

    def feeds_more_than_tables(start: str) -> bool:
        reached = reachable(start, lambda id_: [after for after in successors[id_] if after in mine])
        ends = (graph.nodes[id_].operator for id_ in reached if not mine & set(successors[id_]))
        return any(end.table_written is None for end in ends)

    return tuple(id_ for id_ in timed if feeds_more_than_tables(id_)) or timed or inputs
