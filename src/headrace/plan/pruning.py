"""Which columns are still needed behind each step: pure.

A filter has to copy the rows it keeps, and a column that nobody looks at any more need not be copied. What leaves the
app, and what goes through a function of the user's, keeps all its columns. Steps that only leave rows out hand on the
columns that they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from headrace.api.choosing import Sampler
from headrace.api.specs import Graph, Node
from headrace.api.steps import (
    LATE,
    Aggregate,
    BatchFunction,
    Deduplicate,
    DropLate,
    Filter,
    Merge,
    PartitionBy,
    Project,
    SideOutput,
    Window,
)


def needed_columns(graph: Graph, combined: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """For each node the columns of what it hands on that somebody looks at, in order; None: all of them.

    ``combined``: intermediate streams that carry partial results, with the window that they are of.
    """
    after = graph.successors()
    known: dict[str, frozenset[str] | None] = {}

    def behind(id_: str) -> frozenset[str] | None:
        if id_ not in known:
            known[id_] = _union([_taken(graph, graph.nodes[n], combined, behind(n)) for n in after[id_]])
        return known[id_]

    for id_ in reversed(list(graph.nodes)):
        behind(id_)
    return {id_: _in_order(node, known[id_]) for id_, node in graph.nodes.items()}


def _in_order(node: Node, needed: frozenset[str] | None) -> tuple[str, ...] | None:
    if needed is None or node.schema is None or needed >= node.schema.columns.keys():
        return None
    return tuple(name for name in node.schema.columns if name in needed)


def _union(parts: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    union: frozenset[str] = frozenset()
    nobody = True
    for part in parts:
        if part is None:
            return None
        union |= part
        nobody = False
    return None if nobody else union


def _taken(
    graph: Graph, node: Node, combined: Mapping[str, str], behind: frozenset[str] | None
) -> frozenset[str] | None:
    """The columns that a node needs of what it is given; ``behind`` are those needed of what it hands on."""
    match node.operator:
        case Filter(predicate=predicate):
            return _union([behind, _roots([predicate])])
        case Project(exprs=exprs, keep=False):
            return _roots(exprs)
        case Project(exprs=exprs):
            roots = _roots(exprs)
            if behind is None or roots is None:
                return None
            return (behind - {expr.meta.output_name() for expr in exprs}) | roots
        case Merge():
            return behind
        case Deduplicate(keys=keys, event_time=time):
            return _union([behind, frozenset({*keys, time.column})])
        case DropLate(event_time=time):
            return _union([behind, frozenset({time.column})])
        case BatchFunction(function=Sampler() as sampler):
            return _union([behind, frozenset(sampler.keys)])
        case SideOutput(name=name):
            return behind if name == LATE else frozenset()  # others aren't rows that the step before it was given
        case PartitionBy(stream=stream, keys=keys) if stream in combined:
            window = graph.nodes[combined[stream]].operator
            return _union([_of_window(window), frozenset(keys)]) if isinstance(window, Window) else None
        case Window() as window:
            readers = (n.operator for n in graph.nodes.values() if node.id in n.inputs)
            return None if any(isinstance(reader, SideOutput) for reader in readers) else _of_window(window)
        case _:
            return None


def _of_window(window: Window) -> frozenset[str] | None:
    if any(aggregate.function is not None for _, aggregate in window.aggregates):
        return None
    time = {window.event_time.column} if window.event_time is not None else set()
    return _union([frozenset(window.keys) | time, _roots(_exprs(aggregate for _, aggregate in window.aggregates))])


def _exprs(aggregates: Iterable[Aggregate]) -> list[pl.Expr]:
    return [expr for aggregate in aggregates for expr in (aggregate.expr, aggregate.by) if expr is not None]


def _roots(exprs: Iterable[pl.Expr]) -> frozenset[str] | None:
    """The columns that expressions read; None when one of them chooses its columns only when it is run."""
    names: set[str] = set()
    for expr in exprs:
        if expr.meta.has_multiple_outputs():
            return None
        names.update(expr.meta.root_names())
    return frozenset(names)
