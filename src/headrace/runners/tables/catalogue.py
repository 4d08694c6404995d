"""List an app's tables from its plan: pure."""

from __future__ import annotations

from headrace.plan.model import Plan
from headrace.plan.ownership import owned_by
from headrace.plan.queryable import queryable_in, unreadable
from headrace.runners.coordination.query_messages import TableFacts, TableList
from headrace.serdes.dtypes import columns_to_json


def catalogue(plan: Plan) -> TableList:
    """Return all tables and all stores of low-level tasks, sorted by name; one entry for each stage that keeps a table.

    Remote tables are included. They can't be queried, and a client that tries should learn why.
    """
    facts = []
    for stage in plan.stages:
        for held in queryable_in(plan, stage).values():
            # A task chooses the keys of its store freely, so which task has a key isn't known.
            owners = None if held.kind == "store" else owned_by(plan, stage, held.id)
            facts.append(
                TableFacts(
                    id=held.id,
                    kind=held.kind,
                    stage=stage.name,
                    key=columns_to_json({name: held.columns[name] for name in held.key}),
                    values=columns_to_json({name: t for name, t in held.columns.items() if name not in held.key}),
                    tasks=[str(task.name) for task in stage.tasks],
                    owned_by=None if owners is None else list(owners),
                    ttl_ms=held.ttl_ms,
                    storage=held.storage,
                    versions_ms=held.versions_ms,
                )
            )
    tables = tuple(sorted(facts, key=lambda one: (one.id, one.stage)))
    return TableList(app=plan.graph.app, tables=tables, others=unreadable(plan.graph))
