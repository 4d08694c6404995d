"""Check that no step keeps state by key right after an input of slots, and that no two readers share a lease table.

Shards move between slots, and so between tasks, whenever they split, merge or are balanced. Keys move with them, but
state doesn't. ``partition_by`` brings each key to one permanent task.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.specs import Graph, Node, Role, StreamSpec
from headrace.core.errors import PlanError
from headrace.plan.joins import inputs_of_meetings
from headrace.plan.model import StreamPlan


def check_slots(graph: Graph) -> None:
    """Raise ``PlanError`` for a step that needs all messages of a key in one task but doesn't get them."""
    slotted = {id_: spec for id_, spec in graph.streams.items() if spec.slots}
    for _, spec in sorted(slotted.items()):
        if graph.settings.grouping == "container":
            raise PlanError(
                f"{_stream(spec)} can't be read with grouping='container': each of its slots has its own task",
                hint="leave grouping= out: any number of containers shares the slots",
            )
        if spec.role is Role.SIDE_INPUT:
            raise PlanError(
                f"{_stream(spec)} can't be a side input of a table: one key isn't always in the same task",
                hint="read it as an input, then .partition_by(...).send_to(table)",
            )
    for id_, starts in sorted(inputs_of_meetings(graph, {}).items()):
        for start in sorted(starts):
            stream = graph.nodes[start].operator.stream_read
            if stream in slotted:
                raise _apart(graph.nodes[id_], slotted[stream])


def check_leases(streams: Mapping[str, StreamPlan]) -> None:
    """Raise ``PlanError`` for a lease table of two stages or two inputs, because it has only one row per shard."""
    users: dict[tuple[object, ...], StreamPlan] = {}
    for _, stream in sorted(streams.items()):
        options = stream.spec.system.options
        table = options.get("lease_table")
        if table is None:
            continue
        if len(stream.readers) > 1:
            raise PlanError(
                f"{len(stream.readers)} stages read {_stream(stream.spec)}: {', '.join(stream.readers)}. Its lease "
                f"table {table!r} can show the progress of one",
                hint="leave lease_table= out, or have one of the stages read the stream as another input, without it",
            )
        other = users.setdefault((table, options.get("region"), options.get("endpoint_url")), stream)
        if other is not stream:
            raise PlanError(
                f"{_stream(other.spec)} and {_stream(stream.spec)} name the same lease table {table!r}, which can show "
                "the progress of one",
                hint="name another table for one of them, or leave lease_table= out",
            )


def _apart(node: Node, spec: StreamSpec) -> PlanError:
    return PlanError(
        f"{node.operator.kind} {node.id!r} ({node.location}: {node.location.text}) needs all messages of a key in one "
        f"task, and {_stream(spec)} doesn't keep them together: its shards move between tasks",
        hint='put .partition_by("key", id="by-key") before it',
    )


def _stream(spec: StreamSpec) -> str:
    return f"{spec.system.kind} stream {spec.id!r} ({spec.location})"
