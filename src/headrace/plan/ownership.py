"""Find the task that holds a key of a table.

Messages after a ``partition_by`` are in the partition to which their key columns hash, and task n reads partition n. If
every flow that fills a table comes from a ``partition_by``, and the hashed columns belong to the table's key, then a
key is in one known task. In all other cases (partitions filled by other apps, a computed key), the task is unknown.
"""

from __future__ import annotations

from headrace.plan.keys import Partitioning, partitionings
from headrace.plan.model import Plan, StagePlan


def owned_by(plan: Plan, stage: StagePlan, table: str) -> tuple[str, ...] | None:
    """Return the columns of a local table's key whose hash, modulo the stage's tasks, is the row's task; or None."""
    graph = plan.graph
    spec = graph.tables[table]
    if spec.kind != "local" or graph.settings.grouping != "partition":
        return None
    known = partitionings(graph)
    writers = graph.writers_of(table)
    found = {_hashed(plan, stage, known.get(before), spec.key) for node in writers for before in node.inputs}
    return found.pop() if len(found) == 1 else None


def _hashed(plan: Plan, stage: StagePlan, flow: Partitioning | None, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the columns of the key by which the flow is partitioned, in the order of hashing."""
    if flow is None or plan.streams[flow.stream].partitions != len(stage.tasks):
        return None
    names = [next((name for name in key if name in hashed), None) for hashed in flow.keys]
    found = tuple(name for name in names if name is not None)
    return found if len(found) == len(names) else None
