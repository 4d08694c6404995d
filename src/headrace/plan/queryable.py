"""Find the state of an app that can be queried while it is running.

Tables, and the stores of low-level tasks, are rows by key. The state of other steps isn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl

from headrace.api.specs import Graph, TableSpec
from headrace.api.tasks import StoreSpec
from headrace.plan.model import Plan, StagePlan

QueryableKind = Literal["local", "global", "remote", "store"]


@dataclass(frozen=True, slots=True)
class Queryable:
    """Rows by key that each task of a stage keeps, as ``kept_as``: a table, or a store of a low-level task."""

    id: str
    kept_as: str
    kind: QueryableKind
    columns: Mapping[str, pl.DataType]
    key: tuple[str, ...]
    ttl_ms: int | None = None
    storage: str = "disk"
    versions_ms: int | None = None


def queryable_in(plan: Plan, stage: StagePlan) -> dict[str, Queryable]:
    """Return by id the tables and stores of a stage, and remote tables, so that a refused query can say why."""
    found: dict[str, Queryable] = {}
    for id_ in stage.tables:
        table = _table(plan.graph.tables[id_], stage.kept_as.get(id_, id_))
        if table is not None:
            found[id_] = table
    stores = (store for id_ in stage.nodes for store in plan.graph.nodes[id_].operator.queryable_stores)
    return found | {store.id: _store(store, stage.kept_as.get(store.id, store.id)) for store in stores}


def unreadable(graph: Graph) -> dict[str, str]:
    """Return by id the steps whose state can't be queried, with their kind: ``a window``."""
    kinds = {id_: node.operator.hidden_state for id_, node in graph.nodes.items()}
    return {id_: kind for id_, kind in kinds.items() if kind is not None}


def _table(spec: TableSpec, kept_as: str) -> Queryable | None:
    """Return the facts, or None if the table was never filled and so has no columns."""
    if spec.schema is None:
        return None
    storage = spec.storage if spec.remote is None else "remote"
    columns = spec.schema.columns
    return Queryable(spec.id, kept_as, spec.kind, columns, spec.key, spec.ttl_ms, storage, spec.versions_ms)


def _store(spec: StoreSpec, kept_as: str) -> Queryable:
    columns = {**spec.key.columns, **spec.value.columns}
    return Queryable(spec.id, kept_as, "store", columns, tuple(spec.key.columns), spec.ttl_ms)
