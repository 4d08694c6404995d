"""What the list of an app's tables contains."""

from __future__ import annotations

import polars as pl

import headrace as hr
from headrace.plan.planner import plan
from headrace.run.table_routing import catalogue
from headrace.systems.base import StreamInfo


def test_all_tables_with_their_columns_and_tasks() -> None:
    app = hr.App("shop")
    rates = app.input("rates", {"currency": pl.String, "euros": pl.Float64})
    now = app.table("rates-now", key="currency", side_inputs=rates, kind="global")
    prices = app.table("prices", key="article", ttl="1m")
    changes = app.input("changes", {"article": pl.String, "amount": pl.Decimal(10, 2)})
    changes.partition_by("article", id="by-article", partitions=2).send_to(prices)
    app.input("sales", {"currency": pl.String}).join(now).send_to(app.output("worth"))
    infos = {name: StreamInfo(name, 3, None) for name in ("rates", "changes", "sales")}
    told = catalogue(plan(app.graph(), infos))
    assert told.app == "shop"
    one, other = told.tables
    assert (one.id, one.kind, one.tasks, one.owned_by, one.ttl_ms) == (
        *("prices", "local", ["by-article/0", "by-article/1"], ["article"], 60_000),
    )
    assert (one.stage, one.key) == ("by-article", {"article": "String"})
    assert one.values == {"amount": {"Decimal": {"precision": 10, "scale": 2}}}
    assert (other.id, other.kind, len(other.tasks), other.owned_by) == ("rates-now", "global", 3, None)
