"""Turn a declared app into a plan, by pure passes that run in the order in which they are called here.

The same app, facts and heritage give the same plan, whatever the order of declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.api.specs import Graph
from headrace.core.errors import UsageError
from headrace.plan.inventory import NO_HERITAGE, Heritage
from headrace.plan.keys import Keys, check_keys, stream_keys
from headrace.plan.model import Plan, StagePlan, StreamPlan
from headrace.plan.partitions import check_leases, check_outer_joins, check_slots, join_groups, partition_counts
from headrace.plan.passes import check_event_time, combined_windows, needed_columns
from headrace.plan.stages import cut_stages, group_tasks, task_inputs
from headrace.plan.validate import check_facts, check_graph
from headrace.systems.base import StreamInfo


def plan(
    graph: Graph, facts: Mapping[str, StreamInfo | None], containers: int = 1, heritage: Heritage = NO_HERITAGE
) -> Plan:
    """Plan an app. ``facts`` describe each stream by id; None or no entry means that nothing is known.

    ``containers`` matters if it groups by container. The graph has adopted ``heritage``. Raises ``PlanError``.
    """
    if containers < 1:
        raise UsageError(f"an app needs at least one container, not {containers}")
    check_graph(graph)
    check_facts(graph, facts)
    check_event_time(graph)
    counts = partition_counts(graph, facts, join_groups(graph))
    check_outer_joins(graph)
    keys = stream_keys(graph, facts)
    check_slots(graph)
    kept_keys = check_keys(graph, keys, counts)
    cuts = cut_stages(graph, heritage, lambda stage: len(task_inputs(graph, stage, counts, containers)))
    stages = group_tasks(graph, cuts, counts, containers, heritage)
    combined = {
        id_: window
        for id_, window in combined_windows(graph).items()
        if heritage.carries_partials(graph.streams[id_].stream.name) is not False
    }
    streams = _streams(graph, facts, counts, keys, stages)
    check_leases(streams)
    return Plan(
        graph=graph,
        streams=streams,
        stages=stages,
        combined=combined,
        needed=needed_columns(graph, combined),
        kept_keys=kept_keys,
    )


def _streams(
    graph: Graph,
    facts: Mapping[str, StreamInfo | None],
    counts: Mapping[str, int],
    keys: Keys,
    stages: Sequence[StagePlan],
) -> dict[str, StreamPlan]:
    return {
        id_: StreamPlan(
            spec=graph.streams[id_],
            partitions=counts[id_],
            writers=tuple(stage.name for stage in stages if id_ in stage.outputs),
            readers=tuple(stage.name for stage in stages if id_ in (*stage.inputs, *stage.side_inputs)),
            key=keys[id_],
            added=frozenset() if (info := facts.get(id_)) is None else info.added,
            identity="" if info is None else info.identity,
        )
        for id_ in sorted(graph.streams)
    }
