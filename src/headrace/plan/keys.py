"""Check that the flows of a join or a table are partitioned by its key, which equal counts alone don't ensure.

A flow is followed from its ``partition_by`` through the steps that carry the key columns unchanged, perhaps under other
names or as copies (``OperatorSpec.carried``). Only certain mismatches are errors, because the partitioning of a source,
the effect of a user's function and the relation of a computed key to the key of the join are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.api.dataframe import DataFrameInput
from headrace.api.operators.columns import Project
from headrace.api.operators.join import StreamJoin
from headrace.api.operators.streams import Merge, PartitionBy
from headrace.api.operators.table import SendToTable, TableJoin
from headrace.api.specs import Graph, Node, Role, TableSpec
from headrace.core.errors import PlanError
from headrace.plan.traverse import topological_order


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a flow is partitioned. Each key is the set of all columns that hold its values at this point.

    ``certain``: the keys are columns as they entered the app, so a different column is certainly a different key.
    """

    stream: str
    keys: tuple[frozenset[str], ...]
    certain: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """The known facts about a flow: its partitioning, and its columns that are unchanged since they entered the app."""

    partitioning: Partitioning | None = None
    plain: frozenset[str] = frozenset()


def check_keys(graph: Graph) -> None:
    """Raise ``PlanError`` for a join or a table that gets messages of one key in several tasks."""
    known = partitionings(graph)
    for id_ in sorted(graph.nodes):
        node = graph.nodes[id_]
        if isinstance(node.operator, StreamJoin):
            _check_join(graph, node, node.operator.keys, [known.get(before) for before in node.inputs])
    for id_ in sorted(graph.tables):
        if graph.tables[id_].kind == "local":
            _check_table(graph, graph.tables[id_], known)
            _check_side_inputs(graph, graph.tables[id_])


def partitionings(graph: Graph) -> dict[str, Partitioning | None]:
    """Return by node the partitioning of its results; None where it is unknown."""
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
            f"{_step(node)} joins on {_names(on)}, but {_by(graph, left)}, and {_by(graph, right)}: "
            "messages that belong together are in different tasks",
            hint="partition both sides by the same columns, in the same order",
        )


def _check_table(graph: Graph, table: TableSpec, known: Mapping[str, Partitioning | None]) -> None:
    """Check that all steps that write or join a local table find a key in the same task."""
    first: tuple[Node, Partitioning, tuple[int, ...]] | None = None
    for node in (*graph.writers_of(table.id), *graph.joins_of(table.id)):
        flow = known.get(flow_of(graph, node))
        if flow is None or not flow.certain:
            continue
        on = node.operator.keys if isinstance(node.operator, TableJoin) else table.key
        places = _places(flow, on)
        if places is None and isinstance(node.operator, TableJoin):
            raise _apart(graph, node, on, "the flow", flow)
        if places is None:
            does, what = ("writes", "what fills") if node.operator.table_written else ("reads", "what reads")
            raise PlanError(
                f"{_step(node)} {does} table {table.id!r}, whose key is {_names(table.key)}, but {_by(graph, flow)}: "
                f"rows of one {_names(table.key)} would be in several tasks",
                hint=f"partition {what} the table by its key: {_partition_by(table.key)}",
            )
        if first is None:
            first = (node, flow, places)
        elif places != first[2]:
            raise PlanError(
                f"{_step(first[0])} and {_step(node)} use table {table.id!r}, but {_by(graph, first[1])}, "
                f"and {_by(graph, flow)}: they would look for rows of one key in different tasks",
                hint=f"partition both by the table's key, {_names(table.key)}",
            )


def _check_side_inputs(graph: Graph, table: TableSpec) -> None:
    """Check DataFrames, whose partitioning is known, unlike a stream's: by their own key, or none without a key."""
    for id_ in table.side_inputs:
        spec = graph.streams[id_]
        held = spec.system.held
        if spec.broadcast or not isinstance(held, DataFrameInput) or held.partitions == 1:
            continue
        if not held.key or not set(held.key) <= set(table.key):
            how = f"placed by {_names(held.key)}" if held.key else "in any partition"
            raise PlanError(
                f"the side input {id_!r} ({spec.location}) fills table {table.id!r}, whose key is {_names(table.key)}, "
                f"but the rows of its DataFrame are {how}: rows of one {_names(table.key)} would be in several tasks",
                hint=f"write hr.io.dataframe(df, key={list(table.key)}), or make the table global",
            )


def flow_of(graph: Graph, user: Node) -> str:
    """Return the node before a table's join or writer; for a deletion, the node before its projection."""
    before = graph.nodes[user.inputs[0]]
    if isinstance(user.operator, SendToTable) and user.operator.deletes and isinstance(before.operator, Project):
        return before.inputs[0] if before.location == user.location else before.id
    return before.id


def _places(side: Partitioning | None, on: Sequence[str]) -> tuple[int, ...] | None:
    """Return the positions of the partitioning's keys in ``on``; None if one is missing."""
    if side is None:
        return None
    places = [next((place for place, name in enumerate(on) if name in key), None) for key in side.keys]
    found = tuple(place for place in places if place is not None)
    return found if len(found) == len(places) else None


def _apart(graph: Graph, node: Node, on: Sequence[str], whose: str, side: Partitioning) -> PlanError:
    names = [min(key) for key in side.keys]
    both = ", ".join(repr(name) for name in dict.fromkeys([*names, *on]))
    return PlanError(
        f"{_step(node)} joins on {_names(on)}, but {_by(graph, side)}: "
        f"{whose} has messages of one {_names(on)} in several tasks",
        hint=f"put {_partition_by(on)} before it; or, if messages that agree in {_names(on)} always agree in "
        f"{_names(names)}, join on both: on=[{both}]",
    )


def _by(graph: Graph, side: Partitioning) -> str:
    spec = graph.streams[side.stream]
    return f"{side.stream!r} is partitioned by {_names([min(key) for key in side.keys])} ({spec.location})"


def _step(node: Node) -> str:
    return f"{node.operator.kind} {node.id!r} ({node.location}: {node.location.text})"


def _names(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names)


def _partition_by(names: Sequence[str]) -> str:
    return f"partition_by({', '.join(repr(name) for name in names)}, id=...)"


# -- known facts --------------------------------------------------------------------------------------


def _all_known(graph: Graph) -> dict[str, _Known]:
    """Return by node the known facts about its results; nodes on a cycle are left out."""
    successors = {id_: list(after) for id_, after in graph.successors().items()}
    readers: dict[str, list[str]] = {}
    writers: dict[str, list[Node]] = {}
    for id_ in sorted(graph.nodes):
        spec = graph.nodes[id_].operator
        if spec.stream_read is not None:
            readers.setdefault(spec.stream_read, []).append(id_)
        elif isinstance(spec, PartitionBy):
            writers.setdefault(spec.stream, []).append(graph.nodes[id_])
    for stream, ends in writers.items():
        for end in ends:
            successors[end.id] += readers.get(stream, [])
    order, _ = topological_order(successors)
    known: dict[str, _Known] = {}
    for id_ in order:
        node = graph.nodes[id_]
        read = node.operator.stream_read
        if read is not None:
            known[id_] = _read(graph, read, writers.get(read, []), known)
        else:
            known[id_] = _known_after(graph, node, [known[before] for before in node.inputs])
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


def _known_after(graph: Graph, node: Node, before: Sequence[_Known]) -> _Known:
    if isinstance(node.operator, Merge):
        same = {known.partitioning for known in before}
        plain = frozenset.intersection(*(known.plain for known in before))
        return _Known(same.pop() if len(same) == 1 else None, plain)
    schema = graph.nodes[node.inputs[0]].schema
    return _Known() if schema is None else _renamed(before[0], node.operator.carried(schema))


def _renamed(known: _Known, carried: Mapping[str, Sequence[str]]) -> _Known:
    plain = frozenset(new for old in known.plain for new in carried.get(old, ()))
    by = known.partitioning
    if by is None:
        return _Known(None, plain)
    keys = tuple(frozenset(new for old in key for new in carried.get(old, ())) for key in by.keys)
    return _Known(replace(by, keys=keys) if all(keys) else None, plain)
