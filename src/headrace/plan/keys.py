"""Check that all messages of a key reach one task wherever state is kept by it, which equal counts alone don't ensure.

A flow is followed from where its partitioning is known (a ``partition_by``, an input with a key) through the steps that
carry the key columns unchanged, perhaps renamed (``OperatorSpec.carried``). A step that keeps state by key is refused
unless its key contains these columns, or all messages are in one task anyway. A user's function is taken to leave a
column unchanged if its results have one of that name and type; where a step relies on that, the task checks the
results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.api.dataframe import DataFrameInput
from headrace.api.operators.join import SendToTable, TableJoin
from headrace.api.operators.steps import (
    LATE,
    BatchFunction,
    MapAsync,
    Merge,
    PartitionBy,
    Project,
    RowFunction,
    SendTo,
    SideOutput,
)
from headrace.api.operators.task import TaskStep
from headrace.api.specs import Graph, Node, Role, StreamSpec, TableSpec
from headrace.core.errors import PlanError
from headrace.plan.model import KeptKey, topological_order
from headrace.plan.partitions import Facts
from headrace.rows.hashing import hash_kind
from headrace.systems.base import StreamInfo
from headrace.systems.registry import Hash, keeps_rows

Keys = Mapping[str, tuple[str, ...]]
"""For each stream the columns that choose the partition of its messages; none if that isn't known."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a flow is partitioned. Each key is the set of all columns that hold its values at this point."""

    stream: str
    keys: tuple[frozenset[str], ...]
    hash: Hash = "headrace"

    def within(self, key: Sequence[str]) -> tuple[str, ...] | None:
        """The columns of ``key`` that it is partitioned by, in the order of hashing; None if others are hashed, too."""
        found = [next((name for name in key if name in names), None) for names in self.keys]
        present = tuple(name for name in found if name is not None)
        return present if len(present) == len(found) else None


_Together = Literal["", "one task", "every task", "some in every task"]


@dataclass(frozen=True, slots=True)
class _Flow:
    """What is known of where the messages of a flow are.

    ``together``: all are in one task, or each is in every task. ``lost`` is the node after which their partitioning
    isn't known any more. ``trusted`` are the last functions that have to leave their key unchanged.
    """

    by: Partitioning | None = None
    together: _Together = ""
    origin: str = ""
    lost: str = ""
    trusted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Placed:
    """A partitioning by columns of a key, and the places of those columns in the key."""

    by: Partitioning
    places: tuple[int, ...]


def stream_keys(graph: Graph, facts: Facts) -> dict[str, tuple[str, ...]]:
    """For each stream the columns that choose the partition of its messages; none if that isn't known."""
    return {id_: _key_of(graph, spec, facts.get(id_)) for id_, spec in graph.streams.items()}


def check_keys(graph: Graph, keys: Keys, counts: Mapping[str, int]) -> dict[str, KeptKey]:
    """Raise ``PlanError`` for a step that keeps state by key and gets messages of one key in several tasks.

    Return the functions that have to leave a key unchanged, with its columns in their results.
    """
    flows = _flows(graph, keys, counts)
    before: list[str] = []
    for id_ in sorted(graph.nodes):
        node = graph.nodes[id_]
        sides = [flows.get(before, _Flow()) for before in node.inputs]
        keyed = node.operator.keyed_inputs
        if len(keyed) > 1:
            _check_join(graph, node, keyed, sides)
            before += [] if any(side.together == "every task" for side in sides) else node.inputs
        elif keyed:
            _require(graph, node, keyed[0], sides[0], "it gets")
            before += node.inputs
    for id_ in sorted(graph.tables):
        if graph.tables[id_].kind == "local":
            _check_table(graph, graph.tables[id_], keys, flows, counts)
            before += [flow_of(graph, node) for node in (*graph.writers_of(id_), *graph.joins_of(id_))]
    trusted = {function for one in before if one in flows for function in flows[one].trusted}
    found = {id_: by for id_ in sorted(trusted) if (by := flows[id_].by) is not None}
    return {id_: KeptKey(tuple(map(min, by.keys)), by.stream) for id_, by in found.items()}


def partitionings(graph: Graph) -> dict[str, Partitioning | None]:
    """By node the partitioning of its results by a ``partition_by``; None where it is unknown."""
    own = {id_: _written_by(graph, id_) for id_, spec in graph.streams.items() if spec.role is Role.INTERMEDIATE}
    return {id_: None if flow.trusted else flow.by for id_, flow in _flows(graph, own, {}).items()}


def _key_of(graph: Graph, spec: StreamSpec, info: StreamInfo | None) -> tuple[str, ...]:
    if spec.role in (Role.INTERMEDIATE, Role.SINK):
        return _written_by(graph, spec.id)
    if spec.key or info is None or spec.schema is None or info.columns is None:
        return spec.key
    # A recorded key is of use where the app reads its columns with types that have the same hash.
    columns = spec.schema.columns
    known = all(name in columns and hash_kind(columns[name]) == hash_kind(info.columns[name]) for name in info.key)
    return info.key if known else ()


def _written_by(graph: Graph, stream: str) -> tuple[str, ...]:
    operators = [node.operator for node in graph.nodes.values() if node.operator.stream_written == stream]
    keys = {operator.keys if isinstance(operator, PartitionBy | SendTo) else () for operator in operators}
    return keys.pop() if len(keys) == 1 else ()


def _check_join(graph: Graph, node: Node, keyed: Sequence[tuple[str, ...]], sides: Sequence[_Flow]) -> None:
    if any(side.together == "every task" for side in sides):
        return
    left, right = (
        _require(graph, node, on, side, f"its {name} side has")
        for side, on, name in zip(sides, keyed, ("left", "right"), strict=True)
    )
    _check_alike(graph, left, right, f"{node} joins on {names_of(keyed[0])}", "messages that belong together are")


def _check_table(
    graph: Graph, table: TableSpec, keys: Keys, flows: Mapping[str, _Flow], counts: Mapping[str, int]
) -> None:
    """All that fill or join a local table must find a key in the same task."""
    found: list[_Placed | None] = []
    for id_ in table.side_inputs:
        side = f"side input {id_!r} ({graph.streams[id_].location})"
        found.append(_require_of_table(graph, table, side, _read(graph, id_, keys, counts)))
    for node in (*graph.writers_of(table.id), *graph.joins_of(table.id)):
        flow = flows.get(flow_of(graph, node), _Flow())
        if isinstance(node.operator, TableJoin):
            found.append(_require(graph, node, node.operator.keys, flow, "the flow has"))
        else:
            does = "writes" if node.operator.table_written else "reads"
            found.append(_require_of_table(graph, table, str(node), flow, does))
    placed = [one for one in found if one is not None]
    what = f"table {table.id!r} ({table.location.quoted}) has the key {names_of(table.key)}"
    for other in placed[1:]:
        _check_alike(graph, placed[0], other, what, f"rows of one {names_of(table.key)} would be looked for")


def _check_alike(graph: Graph, left: _Placed | None, right: _Placed | None, what: str, consequence: str) -> None:
    if left is None or right is None or (left.places == right.places and left.by.hash == right.by.hash):
        return
    hint = "partition both by the same columns, in the same order"
    if left.by.hash != right.by.hash:
        hint = "Kafka's hash of a key differs from Headrace's: put a partition_by after the topic"
    raise PlanError(
        f"{what}, but {_by(graph, left.by)}, and {_by(graph, right.by)}: {consequence} in different tasks", hint=hint
    )


def _require(graph: Graph, node: Node, on: Sequence[str], flow: _Flow, whose: str) -> _Placed | None:
    """How the flow is partitioned by columns of ``on``; None if all is in one task. Raises if it isn't."""
    placed = _placed(flow, on)
    joins = _joins(node)
    if placed is not None and flow.together == "some in every task" and not joins:
        raise PlanError(
            f"{node} keeps state by {names_of(on)}, and some of its messages are broadcast: every task would give "
            "a result of them",
            hint=f"put {_partition_by(on)} in the place of the broadcast",
        )
    if placed is not None or (flow.together and flow.by is None):
        return placed
    does = "joins on" if joins else "keeps state by"
    cause, hint = _why(graph, flow, on, node)
    if not on:
        ways = "put partition_by(None) before it" + (", or broadcast() before one of its sides" if joins else "")
        raise PlanError(f"{node} needs all messages in one task, but {cause}", hint=ways)
    raise PlanError(
        f"{node} {does} {names_of(on)}, but {cause}: {whose} messages of one {names_of(on)} in several tasks", hint=hint
    )


def _joins(node: Node) -> bool:
    return len(node.operator.keyed_inputs) > 1 or isinstance(node.operator, TableJoin)


def _require_of_table(graph: Graph, table: TableSpec, who: str, flow: _Flow, does: str = "writes") -> _Placed | None:
    placed = _placed(flow, table.key)
    if placed is not None or (flow.together and flow.by is None):
        return placed
    cause, hint = _why(graph, flow, table.key, None)
    if table.side_inputs:
        ways = (_claim(graph.streams[flow.origin], table.key), "make the table global", "or fill it by send_to(table)")
        hint = "; ".join(way for way in ways if way)
    raise PlanError(
        f"{who} {does} table {table.id!r}, whose key is {names_of(table.key)}, but {cause}: "
        f"rows of one {names_of(table.key)} would be in several tasks",
        hint=hint,
    )


def _placed(flow: _Flow, on: Sequence[str]) -> _Placed | None:
    columns = None if flow.by is None else flow.by.within(on)
    if flow.by is None or columns is None:
        return None
    return _Placed(flow.by, tuple(map(on.index, columns)))


def flow_of(graph: Graph, user: Node) -> str:
    """The node before a table's join or writer; for a deletion, the node before its projection."""
    before = graph.nodes[user.inputs[0]]
    if isinstance(user.operator, SendToTable) and user.operator.deletes and isinstance(before.operator, Project):
        return before.inputs[0] if before.location == user.location else before.id
    return before.id


def _why(graph: Graph, flow: _Flow, on: Sequence[str], node: Node | None) -> tuple[str, str]:
    shuffle = f"put {_partition_by(on)} before it"
    if flow.by is not None:
        by = [min(key) for key in flow.by.keys]
        both = ", ".join(repr(name) for name in dict.fromkeys([*by, *on]))
        name = "on" if node is not None and _joins(node) else "key"
        if node is None:
            return _by(graph, flow.by), f"partition what uses the table by its key: {_partition_by(on)}"
        return (
            _by(graph, flow.by),
            f"{shuffle}; or, if messages that agree in {names_of(on)} always agree in {names_of(by)}, "
            f"use both: {name}=[{both}]",
        )
    if flow.lost:
        lost = graph.nodes[flow.lost]
        how = "brings together flows that are partitioned in different ways, or not by a known key"
        if not isinstance(lost.operator, Merge):
            how = f"comes after the partitioning of {flow.origin!r}, and its results don't have that key unchanged"
        return f"{lost} {how}", f"{shuffle}, after {lost.id!r}"
    spec = graph.streams[flow.origin]
    cause = f"nothing says by which key {flow.origin!r} ({spec.location}) is partitioned"
    claim = "" if spec.role is Role.INTERMEDIATE or spec.slots else _claim(spec, on)
    return cause, f"{shuffle}; or {claim}" if claim else shuffle


def _claim(spec: StreamSpec, on: Sequence[str]) -> str:
    key = repr(on[0]) if len(on) == 1 else repr(list(on))
    if isinstance(spec.system.held, DataFrameInput):
        return f"place its rows by key: hr.io.dataframe(df, key={key})"
    if spec.system.kind == "kafka":
        return (
            f"if {names_of(on)} is the key of its records, say so: app.input({spec.id!r}, ..., key={key}), "
            f'with record_columns={{{on[0]!r}: "key"}}'
        )
    if keeps_rows(spec.system):
        return ""
    return f"if its writers partition it by {names_of(on)}, say so: app.input({spec.id!r}, ..., key={key})"


def _by(graph: Graph, side: Partitioning) -> str:
    spec = graph.streams[side.stream]
    return f"{side.stream!r} is partitioned by {names_of([min(key) for key in side.keys])} ({spec.location})"


def names_of(names: Iterable[str]) -> str:
    return " and ".join(repr(name) for name in names)


def _partition_by(names: Sequence[str]) -> str:
    return f"partition_by({', '.join(repr(name) for name in names)}, id=...)" if names else "partition_by(None)"


def _flows(graph: Graph, keys: Keys, counts: Mapping[str, int]) -> dict[str, _Flow]:
    """By node what is known about its results; nodes on a cycle are left out."""
    successors = {id_: list(after) for id_, after in graph.successors().items()}
    order, _ = topological_order(successors)
    flows: dict[str, _Flow] = {}
    for id_ in order:
        node = graph.nodes[id_]
        read = node.operator.stream_read
        if read is not None:
            flows[id_] = _read(graph, read, keys, counts)
        else:
            found = _after(graph, node, flows)
            before = [flows[one] for one in node.inputs]
            is_lost = found.by is None and not found.together and any(one.by or one.together for one in before)
            flows[id_] = replace(found, lost=id_) if is_lost else found
    return flows


def _read(graph: Graph, stream: str, keys: Keys, counts: Mapping[str, int]) -> _Flow:
    spec = graph.streams[stream]
    if spec.broadcast:
        return _Flow(together="every task", origin=stream)
    single: _Together = "one task" if counts.get(stream) == 1 else ""
    if spec.slots or (single and spec.role is not Role.INTERMEDIATE):
        return _Flow(together=single, origin=stream)
    # A partition_by into one partition could have more, so another key than that of its steps is a mistake even there.
    key = keys.get(stream, ())
    by = Partitioning(stream, tuple(frozenset([name]) for name in key), spec.system.key_hash) if key else None
    return _Flow(by, single, stream)


def _after(graph: Graph, node: Node, flows: Mapping[str, _Flow]) -> _Flow:
    before = [flows[one] for one in node.inputs]
    if isinstance(node.operator, SideOutput) and node.operator.name == LATE:
        # Late messages are rows that the step before it was given.
        return flows[graph.nodes[node.inputs[0]].inputs[0]]
    if isinstance(node.operator, Merge | TaskStep):
        return _merged(before)
    keyed = node.operator.keyed_inputs
    if len(keyed) > 1 and before[0].together == "every task":
        return _renamed(before[1], {theirs: (ours,) for ours, theirs in zip(*keyed, strict=True)})
    source = graph.nodes[node.inputs[0]]
    of_task = isinstance(node.operator, SideOutput) and isinstance(source.operator, TaskStep)
    schema = graph.nodes[source.inputs[0]].schema if of_task else source.schema
    if schema is None:
        return _renamed(before[0], {})
    carried = node.operator.carried(schema)
    is_function = of_task or isinstance(node.operator, RowFunction | BatchFunction | MapAsync)
    # With other groupings, tasks have no partition of their own to check results by.
    if carried or not is_function or node.schema is None or graph.settings.grouping != "partition":
        return _renamed(before[0], carried)
    results = node.schema.columns
    found = _renamed(before[0], {name: (name,) for name, dtype in schema.columns.items() if results.get(name) == dtype})
    return found if found.by is None else replace(found, trusted=frozenset([node.id]))


def _merged(before: Sequence[_Flow]) -> _Flow:
    first, divided = before[0], [flow for flow in before if flow.together != "every task"]
    together: _Together = "" if len(divided) == len(before) else "some in every task" if divided else "every task"
    if divided and all(flow.together == "one task" for flow in divided):
        together = "one task"
    known = [flow.by for flow in divided if flow.by is not None]
    alike = len(known) == len(divided) and len({(len(by.keys), by.hash) for by in known}) == 1
    keys = (
        tuple(frozenset.intersection(*same) for same in zip(*(by.keys for by in known), strict=True)) if alike else ()
    )
    if not keys or not all(keys):
        return _Flow(None, "" if together == "some in every task" else together, first.origin, first.lost)
    trusted = frozenset[str]().union(*(flow.trusted for flow in before))
    return _Flow(replace(known[0], keys=keys), together, first.origin, trusted=trusted)


def _renamed(flow: _Flow, carried: Mapping[str, Sequence[str]]) -> _Flow:
    if flow.by is None:
        return flow
    keys = tuple(frozenset(new for old in key for new in carried.get(old, ())) for key in flow.by.keys)
    return replace(flow, by=replace(flow.by, keys=keys) if all(keys) else None)
