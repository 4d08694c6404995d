"""Find windows that can be partly aggregated before the shuffle.

A window directly after a ``partition_by`` whose keys it groups by has all rows of a group in one task. So partial
results of each batch can cross the stream instead of messages: they give the same windows, but are fewer. The graph
stays as declared; only the contents of the intermediate stream differ.
"""

from __future__ import annotations

from headrace.api.operators.streams import PartitionBy, SideOutput
from headrace.api.operators.window import Window
from headrace.api.specs import Graph


def combined_windows(graph: Graph) -> dict[str, str]:
    """Return for each intermediate stream with partial results the window to which they belong."""
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
