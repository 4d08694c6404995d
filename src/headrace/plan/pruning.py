"""Find the columns of each step's results that later steps still need.

A filter copies the rows that it keeps, but needn't copy a column that no later step reads. Outputs and users' functions
need all columns. Steps that only leave rows out pass on the columns that they get.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.operators.column_set import ColumnSet, union
from headrace.api.operators.streams import PartitionBy, SideOutput
from headrace.api.specs import Graph, Node


def needed_columns(graph: Graph, combined: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """Return for each node the columns of its results that another node needs, in order; None means all.

    ``combined``: the intermediate streams with partial results, each with its window.
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
    """Return the columns of its input that a node needs; ``downstream`` are those of its results that others need."""
    spec = node.operator
    if isinstance(spec, PartitionBy) and spec.stream in combined:
        window = graph.nodes[combined[spec.stream]].operator
        return union(window.columns_needed(None, has_side_outputs=False), frozenset(spec.keys))
    has_side_outputs = any(isinstance(graph.nodes[id_].operator, SideOutput) for id_ in after)
    return spec.columns_needed(downstream, has_side_outputs=has_side_outputs)
