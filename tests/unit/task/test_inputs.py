"""Of a row system only the columns are read that somebody looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.ids import SSP
from headrace.systems.base import Edge, Rows
from headrace.task.connections import Connections
from headrace.task.inputs.chooser import Chooser
from headrace.task.inputs.consumers import InputConsumers

BIDS = {"auction": [1, 2], "price": [10, 20], "extra": ["long", "longer"]}


def read(app: hr.App) -> pl.DataFrame:
    """The first rows of an app's one input of files, as they come to a task."""
    specs = {SSP(spec.stream, 0): spec for spec in app.graph().streams.values() if spec.system.kind == "files"}
    connections = Connections()
    inputs, chooser = InputConsumers(specs, connections), Chooser(list(specs), [])
    try:
        inputs.begin(dict.fromkeys(specs, Edge.OLDEST))
        inputs.poll(chooser)
        table = chooser.choose()
    finally:
        inputs.close()
        connections.close()
    assert isinstance(table, Rows)
    return table.frame


def app_of(folder: Path, columns: Any, **options: Any) -> hr.App:
    app = hr.App("sales")
    if options.get("on_error") == "dead_letter":
        options["dead_letter"] = app.output("unreadable")
    app.input("bids", columns, system=hr.io.files(folder / "bids.*"), **options).send_to(app.output("kept"))
    return app


@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_columns_that_are_not_declared_are_not_read(tmp_path: Path, format: str) -> None:
    rows, path = pl.DataFrame(BIDS), tmp_path / f"bids.{format}"
    match format:
        case "parquet":
            rows.write_parquet(path)
        case "jsonl":
            rows.write_ndjson(path)
        case _:
            rows.write_csv(path)
    declared = {"price": pl.Int64, "auction": pl.Int64}
    assert read(app_of(tmp_path, declared)).equals(rows.select("price", "auction"))


def test_a_dead_letter_keeps_the_whole_row(tmp_path: Path) -> None:
    pl.DataFrame(BIDS).write_parquet(tmp_path / "bids.parquet")
    app = app_of(tmp_path, {"price": pl.Int64}, on_error="dead_letter")
    assert read(app).columns == list(BIDS)


def test_all_columns_are_read_where_one_is_missing(tmp_path: Path) -> None:
    pl.DataFrame(BIDS).write_parquet(tmp_path / "bids.parquet")
    assert read(app_of(tmp_path, {"cost": pl.Int64})).columns == list(BIDS)
