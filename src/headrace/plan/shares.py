"""Decide how to divide the state of a stage among another number of tasks: by which columns of each store's rows.

A shuffle divides messages by the hash of a key. A store can be divided the same way if its rows have the values of that
key: if the key reaches the step unchanged, perhaps under another name (``keys.partitionings``), and is part of the key
under which the step stores its rows. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.api.specs import Graph, Role, TableSpec
from headrace.plan.keys import Partitioning, flow_of
from headrace.plan.model import StagePlan
from headrace.plan.traverse import reachable

Partitionings = Mapping[str, Partitioning | None]


class Dealing(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The columns that divide the rows of a store, in the order of hashing.

    ``copied``: each task keeps all rows, and gets all from any other task. ``why_not`` says why the rows can't be
    divided. If nothing is set, the store has no rows with a key, like an outbox, and one task gets all of it.
    """

    by: tuple[str, ...] = ()
    copied: bool = False
    why_not: str = ""


def step_dealing(graph: Graph, stage: StagePlan, known: Partitionings, step: str, key: Sequence[str]) -> Dealing:
    """Return how to divide a step's rows, which it stores under the columns ``key`` of its messages."""
    if not key:
        return Dealing(why_not="it has no key, so each task keeps one result for all of its messages")
    return _dealing(graph, stage, known, graph.nodes[step].inputs, key)


def table_dealing(graph: Graph, stage: StagePlan, known: Partitionings, table: TableSpec) -> Dealing:
    """Return how to divide the rows of a table."""
    if table.kind == "global":
        return Dealing(copied=True)
    if table.side_inputs:
        return Dealing(why_not=f"its rows come from {_names(table.side_inputs)}, as that is partitioned")
    return _dealing(graph, stage, known, [flow_of(graph, node) for node in graph.writers_of(table.id)], table.key)


def _dealing(graph: Graph, stage: StagePlan, known: Partitionings, flows: Sequence[str], key: Sequence[str]) -> Dealing:
    """Return how to divide rows that come from these flows and are stored under ``key``."""
    found: set[tuple[str, ...]] = set()
    for flow in flows:
        partitioning = known.get(flow)
        if partitioning is None:
            return Dealing(why_not=_unknown(graph, stage, flow))
        columns = [next((name for name in key if name in names), None) for names in partitioning.keys]
        present = tuple(name for name in columns if name is not None)
        if len(present) < len(columns):
            by = _names(min(names) for names in partitioning.keys)
            return Dealing(
                why_not=f"it keeps rows by {_names(key)}, and its messages are partitioned by {by} "
                f"({partitioning.stream})"
            )
        found.add(present)
    if len(found) != 1:
        ways = " or by ".join(sorted(_names(columns) for columns in found)) or "nothing"
        return Dealing(why_not=f"its flows are partitioned in different ways: by {ways}")
    return Dealing(by=found.pop())


def _unknown(graph: Graph, stage: StagePlan, flow: str) -> str:
    """Return why the partitioning of a flow is unknown."""
    before = reachable(flow, lambda id_: [b for b in graph.nodes[id_].inputs if b in stage.nodes])
    read = [stream for id_ in sorted({flow, *before}) if (stream := graph.nodes[id_].operator.stream_read) is not None]
    sources = [stream for stream in read if graph.streams[stream].role is not Role.INTERMEDIATE]
    if sources:
        return f"its messages come from {_names(sources)}, as that is partitioned"
    return f"the key of {_names(read)} can't be followed to it: a step between them computes other columns"


def _names(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in names)
