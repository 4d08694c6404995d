"""Which tables an app has, out of its plan: pure."""

from __future__ import annotations

from headrace.plan.model import Plan
from headrace.plan.ownership import owned_by
from headrace.runners.coordination.query_messages import TableFacts, TableList
from headrace.serdes.dtypes import columns_to_json


def catalogue(plan: Plan) -> TableList:
    """All tables of the app, by name; of a table that several stages keep one entry each.

    Remote ones are among them: they can't be asked for, and whoever tries is to be told why.
    """
    facts = []
    for stage in plan.stages:
        for id_ in stage.tables:
            spec = plan.graph.tables[id_]
            if spec.schema is None:
                continue  # nothing was ever sent there, so nothing is kept
            columns = spec.schema.columns
            owners = owned_by(plan, stage, id_)
            facts.append(
                TableFacts(
                    id=id_,
                    kind=spec.kind,
                    stage=stage.name,
                    key=columns_to_json({name: columns[name] for name in spec.key}),
                    values=columns_to_json({name: dtype for name, dtype in columns.items() if name not in spec.key}),
                    tasks=[str(task.name) for task in stage.tasks],
                    owned_by=None if owners is None else list(owners),
                    ttl_ms=spec.ttl_ms,
                    storage=spec.storage if spec.remote is None else "remote",
                )
            )
    return TableList(app=plan.graph.app, tables=tuple(sorted(facts, key=lambda one: (one.id, one.stage))))
