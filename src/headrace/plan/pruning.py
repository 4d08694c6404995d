"""Which columns of each step's results are still needed after it.

A filter copies the rows that it keeps, and need not copy a column that no later step reads. All columns are needed of
what leaves the app, and of what is handed to a user's function. Steps that only leave rows out hand on the columns
that they are given.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.operators.column_set import ColumnSet, union
from headrace.api.operators.streams import PartitionBy, SideOutput
from headrace.api.specs import Graph, Node


def needed_columns(graph: Graph, combined: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """For each node the columns of its results that some other node needs, in order; None: all of them.

    ``combined``: the intermediate streams that carry partial results, each with the window they belong to.
    """
    after = graph.successors()
    known: dict[str, ColumnSet] = {}

    def downstream(id_: str) -> ColumnSet:
        if id_ not in known:
            takers = [_needed_by(graph, graph.nodes[n], combined, after[n], downstream(n)) for n in after[id_]]
            known[id_] = union(*takers) if takers else None
        return known[id_]

    for id_ in reversed(list(graph.nodes)):
        downstream(id_)
    return {id_: _in_order(node, known[id_]) for id_, node in graph.nodes.items()}


def _in_order(node: Node, needed: ColumnSet) -> tuple[str, ...] | None:
    if needed is None or node.schema is None or needed >= node.schema.columns.keys():
        return None
    return tuple(name for name in node.schema.columns if name in needed)


def _needed_by(
    graph: Graph, node: Node, combined: Mapping[str, str], after: tuple[str, ...], downstream: ColumnSet
) -> ColumnSet:
    """The columns of its input that a node needs; ``downstream`` are those of its results that others need."""
    spec = node.operator
    if isinstance(spec, PartitionBy) and spec.stream in combined:
        window = graph.nodes[combined[spec.stream]].operator
        return union(window.columns_needed(None, has_side_outputs=False), frozenset(spec.keys))
    has_side_outputs = any(isinstance(graph.nodes[id_].operator, SideOutput) for id_ in after)
    return spec.columns_needed(downstream, has_side_outputs=has_side_outputs)
