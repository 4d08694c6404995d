"""Savepoints need the embedded log: an app whose own streams are elsewhere is told so before anything happens."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import UsageError
from headrace.metadata.memory import MemoryMetadata
from headrace.plan.inventory import Inventory, StageRecord
from headrace.runners.coordination.cuts import CutBook, CutOrder, CutReport
from headrace.runners.savepoints.inventories import replace_inventory
from headrace.runners.savepoints.taking import Taking, take
from headrace.savepoints.folder import Shelf

SAYS = "app 'shop' keeps its own streams in a system of kind 'kafka-log', and savepoints need the embedded log"


class Link:
    """A deployment that runs."""

    def cut(self, order: CutOrder) -> CutReport:
        return CutBook("exactly_once", 1000, 500, "kafka-log").order(order, {}, (), 0)


def test_none_is_taken_of_an_app_that_runs(tmp_path: Path) -> None:
    metadata = MemoryMetadata()
    record = StageRecord(stage="orders", producers=(1,), active=1, parts={})
    replace_inventory(metadata, "shop", 1, Inventory({"orders": record}, frozenset()))
    with pytest.raises(UsageError, match=SAYS):
        take(Taking(tmp_path, "shop", metadata, [Link()]), "monday")
    assert Shelf(tmp_path, "shop").names() == []


def test_none_is_written(tmp_path: Path) -> None:
    app = hr.App("shop", home=tmp_path, system=hr.io.kafka_log("localhost:1"))
    columns = {"article": pl.String, "euros": pl.Float64}
    app.input("changes", columns).partition_by("article", id="by-article").send_to(
        app.table("prices", "article", columns)
    )
    with pytest.raises(UsageError, match=SAYS):
        hr.write_savepoint(app, "monday", {"prices": [{"article": "lamp", "euros": 1.0}]})
