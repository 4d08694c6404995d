"""Find the places of a stage where flows of one input meet again, and how messages pass them in the order of arrival.

A batch goes into the first branch of a flow, and then into the next. Where the branches meet again, messages have to be
put back into order, or results would depend on where batches were cut. A *meeting* is a group of steps where that
happens: a merge, a join or a low-level task with several inputs, the steps that write one output, and those that use
one table. What enters at its *entries* waits until everything before has processed the batch. Then the meeting takes it
in the order of arrival, at one of these paces:

``merged``: all entries lead to the same work, so their messages become one batch.
``paired``: a join that finds the same pairs in any order takes one entry after the other, and puts the pairs in order.
``sides``: a join of changes takes one entry after the other, as what it tells adds up to the same in any order.
``last``: the steps only write a table, so only the last message of a key counts.
``rounds``: in each round a key occurs at most once, whichever the entry; so nothing in a round affects anything else.
``runs``: consecutive messages of one entry become one batch.
``single``: each message goes through alone. This is always right, and slow.

Two flows meet only if messages of one batch can reach both: results that leave later, at a watermark or when an answer
arrives, have a place of their own between messages. Branches are taken in the order of declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from headrace.api.operators.changes import ChangesJoin
from headrace.api.operators.join import IntervalJoin, StreamJoin, TaskTable
from headrace.api.operators.spec import OperatorSpec
from headrace.api.operators.steps import Merge, SideOutput
from headrace.api.operators.task import TaskStep
from headrace.api.specs import Graph, Node

Pace = Literal["merged", "paired", "sides", "last", "rounds", "runs", "single"]
Ancestors = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A way into a meeting: from ``before`` into the n-th input of ``node``. ``keys``: if the pace goes by them."""

    before: str
    node: str
    number: int
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Steps that take messages in the order of arrival. ``why``: the reason for a slow pace, for people."""

    nodes: frozenset[str]
    entries: tuple[Entry, ...]
    pace: Pace
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The meetings of a stage, upstream first.

    ``alone``: steps before a meeting that can't say from which message their results come, so they get one at a time.
    ``branches``: the steps after each step, in the order of declaration.
    """

    meetings: tuple[Meeting, ...] = ()
    alone: frozenset[str] = frozenset()
    branches: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...] = ()

    @property
    def slow(self) -> dict[str, str]:
        found = {id_: meeting.why for meeting in self.meetings for id_ in meeting.nodes if meeting.pace == "single"}
        return found | dict.fromkeys(self.alone, "flows meet again behind it, in the order of arrival")


def order_of(graph: Graph, nodes: Sequence[str]) -> Order:
    inside = {id_: graph.nodes[id_] for id_ in nodes}
    before = _ancestors(inside)
    found = [_closed(core, before) for core in _cores(graph, inside, before)]
    cores = sorted(_united(found, before), key=lambda core: [nodes.index(id_) for id_ in sorted(core, key=nodes.index)])
    meetings = [_meeting(graph, inside, core, before) for core in _upstream_first(cores, before)]
    after = graph.successors()
    alone = frozenset(id_ for meeting in meetings for id_ in _alone(inside, meeting, before))
    meetings = [
        # Behind these its results have places again, so it must take messages in their order.
        replace(meeting, pace="runs") if meeting.pace == "sides" and meeting.nodes & alone else meeting
        for meeting in meetings
    ]
    return Order(
        meetings=tuple(meetings),
        alone=alone,
        branches={id_: tuple(next_ for next_ in after[id_] if next_ in inside) for id_ in nodes},
        inputs=tuple(id_ for id_ in graph.nodes if id_ in inside and inside[id_].operator.stream_read is not None),
    )


def _ancestors(nodes: Mapping[str, Node]) -> dict[str, frozenset[str]]:
    """For each step, what its messages have passed since they were read or became later results, and itself."""
    found: dict[str, frozenset[str]] = {}
    for id_, node in nodes.items():
        mine = frozenset([id_])
        if node.operator.stream_read is not None:
            mine |= {f"stream {node.operator.stream_read}"}
        for before in node.inputs:
            mine |= _entered(nodes, Entry(before, id_, 0), found)
        found[id_] = mine
    return found


def _cores(graph: Graph, nodes: Mapping[str, Node], before: Ancestors) -> Iterator[frozenset[str]]:
    for node in nodes.values():
        if len(node.inputs) > 1 and _share([_entered(nodes, Entry(b, node.id, 0), before) for b in node.inputs]):
            yield frozenset([node.id])
    writers: dict[str, list[str]] = {}
    for node in nodes.values():
        if node.operator.stream_written is not None:
            writers.setdefault(node.operator.stream_written, []).append(node.id)
    users = (
        [node for node in nodes.values() if _uses(graph, node, table)]
        for table in graph.tables
        if any(table in _tables_written(node.operator) for node in nodes.values())
    )
    for group in (*writers.values(), *([node.id for node in using] for using in users)):
        if _share([before[id_] for id_ in group]):
            yield frozenset(group)


def _tables_written(operator: OperatorSpec) -> list[str | None]:
    if isinstance(operator, TaskStep):
        return [use.table for use in operator.tables if use.writes]
    return [] if isinstance(operator, TaskTable) else [operator.table_written]


def _uses(graph: Graph, node: Node, table: str) -> bool:
    """The order of messages at this step affects what the table has, or what is found there."""
    if isinstance(node.operator, TaskStep):
        return any(use.table == table for use in node.operator.tables)
    if isinstance(node.operator, TaskTable):
        return False  # its task reads and writes the table
    if node.operator.table_written == table:
        return True
    # Versions are found by time, whenever they were written.
    spec = graph.tables[table]
    return node.operator.table_joined == table and spec.versions_ms is None and spec.remote is None


def _entered(nodes: Mapping[str, Node], entry: Entry, before: Ancestors) -> frozenset[str]:
    later = nodes[entry.before].operator.defers and not isinstance(nodes[entry.node].operator, SideOutput)
    return frozenset([f"results of {entry.before}"]) if later else before[entry.before]


def _share(ways: Sequence[frozenset[str]]) -> bool:
    return any(one & other for one, other in combinations(ways, 2))


def _closed(core: Iterable[str], before: Ancestors) -> frozenset[str]:
    """The steps with all that lie between two of them."""
    core = frozenset(core)
    return core | {id_ for id_, passed in before.items() if passed & core and any(id_ in before[end] for end in core)}


def _united(cores: Sequence[frozenset[str]], before: Ancestors) -> list[frozenset[str]]:
    """The cores, with those united that overlap or lead to each other."""

    def leads(one: frozenset[str], other: frozenset[str]) -> bool:
        return any(before[id_] & one for id_ in other)

    apart = list(dict.fromkeys(cores))
    while True:
        pair = next(((a, b) for a, b in combinations(apart, 2) if a & b or (leads(a, b) and leads(b, a))), None)
        if pair is None:
            return apart
        apart = [core for core in apart if core not in pair]
        whole = _closed(pair[0] | pair[1], before)
        if whole not in apart:
            apart.append(whole)


def _upstream_first(cores: Sequence[frozenset[str]], before: Ancestors) -> list[frozenset[str]]:
    left, ordered = list(cores), list[frozenset[str]]()
    while left:
        # Cores that lead to each other are united, so one of those left has none of the others before it.
        first = next(c for c in left if not any(before[id_] & o for o in left if o is not c for id_ in c))
        left.remove(first)
        ordered.append(first)
    return ordered


def _meeting(graph: Graph, nodes: Mapping[str, Node], core: frozenset[str], before: Ancestors) -> Meeting:
    members = [node for node in nodes.values() if node.id in core]
    entries = [
        Entry(other, node.id, number)
        for node in sorted(members, key=lambda node: list(graph.nodes).index(node.id))
        for number, other in enumerate(node.inputs)
        if other not in core or nodes[other].operator.defers
    ]
    pace, why = _pace(graph, members)
    if pace in ("rounds", "last"):
        keyed = [_keyed(graph, nodes, core, entry) for entry in entries]
        if all(entry.keys for entry in keyed):
            return Meeting(nodes=core, entries=tuple(keyed), pace=pace)
        pace, why = "single", "the key by which they meet isn't a column that leads there unchanged"
    return Meeting(nodes=core, entries=tuple(entries), pace=pace, why=why)


def _pace(graph: Graph, members: Sequence[Node]) -> tuple[Pace, str]:
    first = members[0].operator
    if len(members) == 1:
        if isinstance(first, Merge):
            return "merged", ""
        if isinstance(first, IntervalJoin):
            return "paired", ""
        if isinstance(first, ChangesJoin):
            return "sides", ""
        return ("rounds", "") if isinstance(first, StreamJoin) else ("runs", "")
    if all(node.operator.stream_written is not None for node in members):
        same = all(node.operator == first for node in members)
        schemas = [graph.nodes[node.inputs[0]].schema for node in members]
        return ("merged", "") if same and all(schema == schemas[0] for schema in schemas) else ("runs", "")
    tables = {node.operator.table_used for node in members if node.operator.table_used is not None}
    written = {table for node in members if (table := node.operator.table_written) is not None}
    if all(node.operator.table_written is not None for node in members) and len(tables) == 1:
        return ("last", "") if graph.tables[next(iter(tables))].versions_ms is None else ("runs", "")
    users = [node for node in members if node.operator.table_used in written]
    others = [node for node in members if node not in users]
    if len(written) > 1:
        return "single", f"they use the tables {', '.join(sorted(written))}, each by a key of its own"
    stateful = [node.id for node in others if not node.operator.row_by_row]
    if stateful:
        return "single", f"the result of step {stateful[0]!r} depends on earlier messages, or has several rows"
    return "rounds", ""


def _keyed(graph: Graph, nodes: Mapping[str, Node], core: frozenset[str], entry: Entry) -> Entry:
    """The entry with the columns of its messages that are the key where the meeting's steps use it; or without."""
    join = nodes[entry.node].operator
    if isinstance(join, StreamJoin):
        return Entry(entry.before, entry.node, entry.number, join.keys)
    schema = nodes[entry.before].schema if not isinstance(join, TaskStep) else None
    if schema is None:
        return entry
    arrives: dict[str, dict[str, frozenset[str]]] = {entry.node: {c: frozenset([c]) for c in schema.columns}}
    found: list[tuple[frozenset[str], ...]] = []
    for id_, node in nodes.items():
        if id_ not in core:
            continue
        ways = [leaving for other in node.inputs if (leaving := arrives.get(f"after {other}")) is not None]
        if id_ == entry.node:
            ways.append(arrives[id_])
        if not ways:
            continue
        names = {
            c: frozenset[str].intersection(*(way.get(c, frozenset[str]()) for way in ways)) for c in schema.columns
        }
        if (key := _key_of(graph, node)) is not None:
            found.append(tuple(frozenset(c for c, now in names.items() if column in now) for column in key))
        taken = nodes[node.inputs[0]].schema
        carried = {} if taken is None else node.operator.carried(taken)
        arrives[f"after {id_}"] = {
            c: frozenset(new for old in now for new in carried.get(old, ())) for c, now in names.items()
        }
    keys = tuple(sorted(frozenset[str].intersection(*same)) for same in zip(*found, strict=True))
    if not keys or not all(keys):
        return entry
    return Entry(entry.before, entry.node, entry.number, tuple(columns[0] for columns in keys))


def _key_of(graph: Graph, node: Node) -> tuple[str, ...] | None:
    table = node.operator.table_used
    if table is None or not graph.writers_of(table):
        return None
    return node.operator.table_key(graph.tables[table].key)


def _alone(nodes: Mapping[str, Node], meeting: Meeting, before: Ancestors) -> Iterator[str]:
    """The steps that get one message at a time, so that the place of their results at this meeting is known."""
    ways = [_entered(nodes, entry, before) for entry in meeting.entries]
    for id_, node in nodes.items():
        if node.operator.places_results or id_ in meeting.nodes:
            continue
        earlier = before[id_] - {id_}
        through = [way for way in ways if id_ in way]
        branches_off = any(isinstance(other.operator, SideOutput) and id_ in other.inputs for other in nodes.values())
        if (len(through) > 1 and branches_off) or (through and any(earlier & way for way in ways if id_ not in way)):
            yield id_
