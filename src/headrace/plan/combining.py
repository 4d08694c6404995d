"""Which windows can be aggregated in part before the shuffle: pure.

A window directly behind a ``partition_by`` whose keys it groups by has all rows of a group in one task. Then what
crosses the stream need not be messages: partial results of each batch give the same windows, and are fewer. The graph
stays as it was declared; only what flows through the intermediate stream differs.
"""

from __future__ import annotations

from headrace.api.specs import Graph
from headrace.api.steps import Input, PartitionBy, SideOutput, Window


def combined_windows(graph: Graph) -> dict[str, str]:
    """For each intermediate stream that carries partial results the window that they are of."""
    if not graph.settings.combine:
        return {}
    after = graph.successors()
    wants_late = {
        before for node in graph.nodes.values() if isinstance(node.operator, SideOutput) for before in node.inputs
    }
    readers: dict[str, list[str]] = {}
    for node in graph.nodes.values():
        if isinstance(node.operator, Input):
            readers.setdefault(node.operator.stream, []).append(node.id)
    found: dict[str, str] = {}
    for node in graph.nodes.values():
        match node.operator:
            case PartitionBy(stream=stream, keys=keys) if len(readers.get(stream, ())) == 1:
                behind = after[readers[stream][0]]
                operator = graph.nodes[behind[0]].operator if len(behind) == 1 else None
                if (
                    isinstance(operator, Window)
                    and operator.mergeable
                    and set(keys) <= set(operator.keys)
                    and behind[0] not in wants_late
                ):
                    found[stream] = behind[0]
            case _:
                continue
    return found
