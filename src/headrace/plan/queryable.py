"""What of an app's state can be asked about while it runs, and what can't: pure.

Tables, and the stores that low-level tasks declare, are rows by key. What other steps keep is laid out for their work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from headrace.api.specs import Graph, TableSpec
from headrace.api.steps import Deduplicate, Join, LatestJoin, Operator, TableJoin, TaskStep, Window
from headrace.api.tasks import StoreSpec
from headrace.plan.model import Plan, StagePlan

HeldKind = Literal["local", "global", "remote", "store"]


@dataclass(frozen=True, slots=True)
class Held:
    """Rows by key that each task of a stage keeps: a table, or a store of a low-level task."""

    id: str
    kind: HeldKind
    columns: Mapping[str, pl.DataType]
    key: tuple[str, ...]
    ttl_ms: int | None = None
    storage: str = "disk"
    versions_ms: int | None = None


def held_by(plan: Plan, stage: StagePlan) -> dict[str, Held]:
    """By id what the tasks of a stage keep. Remote tables are among them: whoever asks is to be told why not."""
    found: dict[str, Held] = {}
    for id_ in stage.tables:
        table = _table(plan.graph.tables[id_])
        if table is not None:
            found[id_] = table
    for id_ in stage.nodes:
        step = plan.graph.nodes[id_].operator
        if isinstance(step, TaskStep):
            found |= {store.id: _store(store) for store in step.stores}
    return found


def unreadable(graph: Graph) -> dict[str, str]:
    """By id the steps that keep something which can't be asked about, and what they are."""
    kinds = {id_: _unreadable(node.operator) for id_, node in graph.nodes.items()}
    return {id_: kind for id_, kind in kinds.items() if kind is not None}


def _table(spec: TableSpec) -> Held | None:
    """None: nothing was ever sent there, so nothing is kept."""
    if spec.schema is None:
        return None
    storage = spec.storage if spec.remote is None else "remote"
    return Held(spec.id, spec.kind, spec.schema.columns, spec.key, spec.ttl_ms, storage, spec.versions_ms)


def _store(spec: StoreSpec) -> Held:
    columns = {**spec.key.columns, **spec.value.columns}
    return Held(spec.id, "store", columns, tuple(spec.key.columns), spec.ttl_ms)


def _unreadable(operator: Operator) -> str | None:
    match operator:
        case Window():
            return "a window"
        case Deduplicate():
            return "a deduplicate"
        case Join() | LatestJoin():
            return "a join"
        case TableJoin(time=time) if time is not None:
            return "a join"
        case TaskStep():
            return "a low-level task"
        case _:
            return None
