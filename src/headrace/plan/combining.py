"""Which windows can be aggregated in part before the shuffle.

A window directly after a ``partition_by`` whose keys it groups by has all rows of a group in one task. So partial
results of each batch can cross the stream instead of messages: they give the same windows, and there are fewer of
them. The graph stays as it was declared; only what flows through the intermediate stream differs.
"""

from __future__ import annotations

from headrace.api.operators.streams import PartitionBy, SideOutput
from headrace.api.operators.window import Window
from headrace.api.specs import Graph


def combined_windows(graph: Graph) -> dict[str, str]:
    """For each intermediate stream that carries partial results the window that they belong to."""
    if not graph.settings.combine:
        return {}
    after = graph.successors()
    nodes = graph.nodes.values()
    late_wanted = {before for node in nodes if isinstance(node.operator, SideOutput) for before in node.inputs}
    readers: dict[str, list[str]] = {}
    for node in nodes:
        if node.operator.stream_read is not None:
            readers.setdefault(node.operator.stream_read, []).append(node.id)
    found: dict[str, str] = {}
    for partition in (node.operator for node in nodes if isinstance(node.operator, PartitionBy)):
        takers = [taker for reader in readers.get(partition.stream, ()) for taker in after[reader]]
        window = graph.nodes[takers[0]].operator if len(takers) == 1 else None
        if (
            isinstance(window, Window)
            and len(readers[partition.stream]) == 1
            and window.mergeable
            and set(partition.keys) <= set(window.keys)
            and takers[0] not in late_wanted
        ):
            found[partition.stream] = takers[0]
    return found
