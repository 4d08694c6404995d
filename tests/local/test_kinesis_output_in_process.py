"""A whole app writes into a Kinesis stream in memory, is stopped, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.connectors.kinesis.memory import KinesisStream
from headrace.core.errors import DataError, DeclarationError

VIEWS = {"member": pl.String, "n": pl.Int64}


def declare(home: Path, key: str = "member") -> hr.App:
    app = hr.App("shop", home=home, checkpoint_interval="50ms")
    system = hr.io.kinesis("results", endpoint_url="memory://", key=key)
    app.input("views", VIEWS).send_to(app.output("results", system=system))
    return app


def write(home: Path, rows: pl.DataFrame) -> None:
    hr.streams.create_stream("views", partitions=1, schema=VIEWS, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write(rows)
        writer.seal()


def test_an_app_writes_json_by_key(tmp_path: Path) -> None:
    rows = pl.DataFrame({"member": [f"m{n % 9}" for n in range(500)], "n": range(500)}, VIEWS)
    write(tmp_path, rows)
    assert "results (at-least-once, because Kinesis keeps no positions of writers)" in str(declare(tmp_path).plan())
    with KinesisStream("results", shards=3) as stream:
        declare(tmp_path).run(local=True, progress=False)
        found = pl.DataFrame([json.loads(record) for record in stream.records()], VIEWS)
    by_member = [frame.group_by("member").agg("n").sort("member") for frame in (found, rows)]
    assert by_member[0].equals(by_member[1])


def test_a_key_that_rows_lack_is_refused_at_the_start(tmp_path: Path) -> None:
    write(tmp_path, pl.DataFrame({"member": ["ann"], "n": [1]}, VIEWS))
    with (
        KinesisStream("results"),
        pytest.raises(
            DeclarationError, match="the key 'page' of the Kinesis stream 'results' isn't a column of this flow"
        ),
    ):
        declare(tmp_path, key="page").run(local=True, progress=False)


def test_a_row_without_a_key_stops_the_app_before_its_commit(tmp_path: Path) -> None:
    write(tmp_path, pl.DataFrame({"member": ["ann", None], "n": [1, 2]}, VIEWS))
    with KinesisStream("results") as stream:
        with pytest.raises(DataError, match="'results' has no value in its key 'member'"):
            declare(tmp_path).run(local=True, progress=False)
        assert stream.records() == []
