"""Containers on Spark write a Delta table: each in a process of its own, into a folder that the driver named."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark import SparkContext

import headrace as hr

ROWS = 2_000


def test_two_tasks_add_their_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_context: SparkContext
) -> None:
    monkeypatch.chdir(tmp_path)  # a path is relative to where the driver is, not to the folders of containers
    rows = pl.DataFrame({"member": [f"m{n % 7}" for n in range(ROWS)], "n": range(ROWS)})
    for number, part in enumerate(rows.iter_slices(ROWS // 2)):
        part.write_parquet(tmp_path / f"views-{number}.parquet")

    def run() -> None:
        app = hr.App("views", home=tmp_path / "home", checkpoint_interval="200ms")
        views = app.input(
            "views", dict(rows.schema), system=hr.io.files("views-*.parquet", partitions=2, new_files="next_run")
        )
        views.send_to(app.output("lake", system=hr.io.delta("lake/views", partition_by="member")))
        app.run(progress=False)

    run()
    first = DeltaTable(tmp_path / "lake/views").version()
    run()
    table = DeltaTable("lake/views")
    assert table.version() == first
    assert pl.read_delta("lake/views").sort("n").select("member", "n").equals(rows)
    assert all(table.transaction_version(f"views/views/{task}/lake") is not None for task in (0, 1))
