"""Which tables an app has, out of its plan: pure."""

from __future__ import annotations

from headrace.plan.model import Plan
from headrace.plan.ownership import owned_by
from headrace.plan.queryable import queryable_in, unreadable
from headrace.runners.coordination.query_messages import TableFacts, TableList
from headrace.serdes.dtypes import columns_to_json


def catalogue(plan: Plan) -> TableList:
    """All tables and stores of low-level tasks, by name; of a table that several stages keep one entry each.

    Remote ones are among them: they can't be asked for, and whoever tries is to be told why.
    """
    facts = []
    for stage in plan.stages:
        for held in queryable_in(plan, stage).values():
            # What a task makes keys of is its own affair, so nobody knows which one has a key of a store.
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
