"""Which task has a key of a table: pure.

Messages behind a ``partition_by`` lie where their key columns hash to, and task n reads partition n. If every flow that
fills a table comes from one, and the columns it hashed are columns of the table's key, then a key is in one known
task. Of anything else (partitions that others filled, a key that was computed on the way) nothing is claimed.
"""

from __future__ import annotations

from headrace.api.steps import SendToTable
from headrace.plan.keys import Partitioning, partitionings
from headrace.plan.model import Plan, StagePlan


def owned_by(plan: Plan, stage: StagePlan, table: str) -> tuple[str, ...] | None:
    """The columns of a local table's key whose hash, modulo the stage's tasks, is the task that has a row; or None."""
    graph = plan.graph
    spec = graph.tables[table]
    if spec.kind != "local" or graph.settings.grouping != "partition":
        return None
    known = partitionings(graph)
    writers = [n for n in graph.nodes.values() if isinstance(n.operator, SendToTable) and n.operator.table == table]
    found = {_hashed(plan, stage, known.get(before), spec.key) for node in writers for before in node.inputs}
    return found.pop() if len(found) == 1 else None


def _hashed(plan: Plan, stage: StagePlan, flow: Partitioning | None, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns of the key that the flow is partitioned by, in the order in which they are hashed."""
    if flow is None or plan.streams[flow.stream].partitions != len(stage.tasks):
        return None
    names = [next((name for name in key if name in hashed), None) for hashed in flow.keys]
    found = tuple(name for name in names if name is not None)
    return found if len(found) == len(names) else None
