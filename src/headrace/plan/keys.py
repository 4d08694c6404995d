"""Whether what meets at a join was partitioned by what it is joined on. Equal partition counts alone don't say so.

A flow is followed from its ``partition_by`` through the steps that leave the key as it is: its columns may get other
names, or be copied. What isn't certain is no error: how a source is partitioned, what a function of the user's does,
and whether a key that was computed follows from the one that is joined on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from headrace.api.specs import Graph, Node, Role
from headrace.api.steps import (
    Deduplicate,
    DropLate,
    Filter,
    Input,
    Join,
    LatestJoin,
    Merge,
    PartitionBy,
    Project,
    SendToTable,
    TableJoin,
    Window,
)
from headrace.core.errors import PlanError
from headrace.plan.traverse import topological_order
from headrace.serdes.schema import Schema


@dataclass(frozen=True, slots=True)
class Partitioning:
    """By what a flow is partitioned. Each key stands with all the names that it has by now.

    ``certain``: the keys are columns as they came into the app, so that nothing tells them from others.
    """

    stream: str
    keys: tuple[frozenset[str], ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a flow: its partitioning, if it is, and the columns that came into the app as they are."""

    partitioning: Partitioning | None = None
    plain: frozenset[str] = frozenset()


def check_keys(graph: Graph) -> None:
    """Raise ``PlanError`` for a join of flows whose messages of one key can't be in one task."""
    known = partitionings(graph)
    for id_ in sorted(graph.nodes):
        node = graph.nodes[id_]
        match node.operator:
            case Join(keys=on) | LatestJoin(keys=on):
                _check_join(graph, node, on, [known.get(before) for before in node.inputs])
            case TableJoin(table=table, keys=on) if graph.tables[table].kind == "local":
                _check_lookup(graph, node, on, known)
            case _:
                continue


def partitionings(graph: Graph) -> dict[str, Partitioning | None]:
    """By node what the flow behind it is partitioned by; None where that isn't known."""
    return {id_: facts.partitioning for id_, facts in _all_known(graph).items()}


# -- joins --------------------------------------------------------------------------------------------


def _check_join(graph: Graph, node: Node, on: Sequence[str], sides: Sequence[Partitioning | None]) -> None:
    places = [_places(side, on) for side in sides]
    for side, name, place in zip(sides, ("left", "right"), places, strict=True):
        if side is not None and place is None and side.certain:
            raise _apart(graph, node, on, f"its {name} side", side)
    left, right = sides
    if left is not None and right is not None and places[0] != places[1] and left.certain and right.certain:
        raise PlanError(
            f"{_join(node)} joins on {_names(on)}, but {_by(graph, left)}, and {_by(graph, right)}: "
            "messages that belong together lie in different tasks",
            hint="partition both sides by the same columns, in the same order",
        )


def _check_lookup(graph: Graph, node: Node, on: Sequence[str], known: Mapping[str, Partitioning | None]) -> None:
    table = graph.tables[node.operator.table] if isinstance(node.operator, TableJoin) else None
    if table is None:
        return
    ours = known.get(node.inputs[0])
    places = _places(ours, on)
    if ours is not None and places is None and ours.certain:
        raise _apart(graph, node, on, "the flow", ours)
    for writer in _writers(graph, table.id):
        theirs = known.get(writer.inputs[0])
        their_places = _places(theirs, table.key)
        if theirs is None or not theirs.certain:
            continue
        if their_places is None:
            raise PlanError(
                f"{_join(node)} looks up table {table.id!r} by {_names(table.key)}, but what fills it at "
                f"{writer.location} is another way: {_by(graph, theirs)}",
                hint=f"partition what fills the table by its key: {_partition_by(table.key)}",
            )
        if ours is not None and ours.certain and places != their_places:
            raise PlanError(
                f"{_join(node)} looks up table {table.id!r}, but {_by(graph, ours)}, and {_by(graph, theirs)}: "
                "messages and the rows that they ask for lie in different tasks",
                hint=f"partition both by the table's key, {_names(table.key)}",
            )


def _places(side: Partitioning | None, on: Sequence[str]) -> tuple[int, ...] | None:
    """Where the keys of the partitioning stand among ``on``; None when one doesn't."""
    if side is None:
        return None
    places = [next((place for place, name in enumerate(on) if name in key), None) for key in side.keys]
    found = tuple(place for place in places if place is not None)
    return found if len(found) == len(places) else None


def _apart(graph: Graph, node: Node, on: Sequence[str], whose: str, side: Partitioning) -> PlanError:
    names = [min(key) for key in side.keys]
    both = ", ".join(repr(name) for name in dict.fromkeys([*names, *on]))
    return PlanError(
        f"{_join(node)} joins on {_names(on)}, but {_by(graph, side)}: "
        f"{whose} has messages of one {_names(on)} in several tasks",
        hint=f"put {_partition_by(on)} before it; or, if messages that agree in {_names(on)} always agree in "
        f"{_names(names)}, join on both: on=[{both}]",
    )


def _by(graph: Graph, side: Partitioning) -> str:
    spec = graph.streams[side.stream]
    return f"{side.stream!r} is partitioned by {_names([min(key) for key in side.keys])} ({spec.location})"


def _join(node: Node) -> str:
    return f"join {node.id!r} ({node.location}: {node.location.text})"


def _names(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names)


def _partition_by(names: Sequence[str]) -> str:
    return f"partition_by({', '.join(repr(name) for name in names)}, id=...)"


def _writers(graph: Graph, table: str) -> Iterator[Node]:
    for id_ in sorted(graph.nodes):
        operator = graph.nodes[id_].operator
        if isinstance(operator, SendToTable) and operator.table == table:
            yield graph.nodes[id_]


# -- what is known ------------------------------------------------------------------------------------


def _all_known(graph: Graph) -> dict[str, _Known]:
    """By node what is known of the flow behind it; what lies on a circle is left out."""
    successors = {id_: list(after) for id_, after in graph.successors().items()}
    readers: dict[str, list[str]] = {}
    writers: dict[str, list[Node]] = {}
    for id_ in sorted(graph.nodes):
        operator = graph.nodes[id_].operator
        if isinstance(operator, Input):
            readers.setdefault(operator.stream, []).append(id_)
        elif isinstance(operator, PartitionBy):
            writers.setdefault(operator.stream, []).append(graph.nodes[id_])
    for stream, ends in writers.items():
        for end in ends:
            successors[end.id] += readers.get(stream, [])
    order, _ = topological_order(successors)
    known: dict[str, _Known] = {}
    for id_ in order:
        node = graph.nodes[id_]
        if isinstance(node.operator, Input):
            known[id_] = _read(graph, node.operator.stream, writers.get(node.operator.stream, []), known)
        else:
            known[id_] = _behind(graph, node, [known[before] for before in node.inputs])
    return known


def _read(graph: Graph, stream: str, writers: Sequence[Node], known: Mapping[str, _Known]) -> _Known:
    spec = graph.streams[stream]
    if spec.role is not Role.INTERMEDIATE:
        return _Known(None, frozenset(() if spec.schema is None else spec.schema.columns))
    plain = frozenset.intersection(*(known[node.inputs[0]].plain for node in writers)) if writers else frozenset[str]()
    keys = {node.operator.keys for node in writers if isinstance(node.operator, PartitionBy)}
    if len(keys) != 1:
        return _Known(None, plain)
    names = keys.pop()
    return _Known(Partitioning(stream, tuple(frozenset([name]) for name in names), plain >= set(names)), plain)


def _behind(graph: Graph, node: Node, before: Sequence[_Known]) -> _Known:
    match node.operator:
        case Filter() | Deduplicate() | DropLate() | PartitionBy() | TableJoin():
            return before[0]
        case Project() as project:
            columns = graph.nodes[node.inputs[0]].schema
            return _Known() if columns is None else _renamed(before[0], _carried(project, columns))
        case Merge():
            same = {known.partitioning for known in before}
            plain = frozenset.intersection(*(known.plain for known in before))
            return _Known(same.pop() if len(same) == 1 else None, plain)
        case Window(keys=keys):
            return _renamed(before[0], {key: [key] for key in keys})
        case Join(keys=keys, how="full") | LatestJoin(keys=keys, how="full"):
            return _renamed(before[0], {key: [key] for key in keys})
        case Join() | LatestJoin():
            return before[0]
        case _:
            return _Known()


def _carried(project: Project, columns: Schema) -> dict[str, list[str]]:
    """The names that each column has behind a projection, with its values as they were."""
    lazy = pl.LazyFrame(schema=dict(columns.columns))
    carried = {name: [name] for name in columns.columns} if project.keep else {}
    for expr in project.exprs:
        names = lazy.select(expr).collect_schema().names()
        for others in carried.values():
            others[:] = [name for name in others if name not in names]
        if expr.meta.is_column_selection(allow_aliasing=False):
            for name in names:
                carried.setdefault(name, []).append(name)
        elif len(roots := expr.meta.root_names()) == 1 and expr.meta.is_column_selection(allow_aliasing=True):
            carried.setdefault(roots[0], []).append(names[0])
    return carried


def _renamed(known: _Known, carried: Mapping[str, Sequence[str]]) -> _Known:
    plain = frozenset(new for old in known.plain for new in carried.get(old, ()))
    by = known.partitioning
    if by is None:
        return _Known(None, plain)
    keys = tuple(frozenset(new for old in key for new in carried.get(old, ())) for key in by.keys)
    return _Known(replace(by, keys=keys) if all(keys) else None, plain)
