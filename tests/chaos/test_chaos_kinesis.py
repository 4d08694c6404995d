"""Chaos with Kinesis: its verdict on order, its load, and what it does with shards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from chaos.deployment import until
from chaos.kinesis import Resharding, out_of_order
from chaos.kinesis_app import BATCH, KinesisLoad
from chaos.kinesis_server import KinesisServer
from chaos.kinesis_stream import OwnedStream, key_for
from headrace.core.errors import InfrastructureError


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServer]:
    try:
        started = KinesisServer()
    except InfrastructureError as error:
        pytest.skip(error.message)
    with started:
        yield started


def rows(*orders: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(orders, {"order": pl.Int64, "member": pl.Int64}, orient="row")


@pytest.mark.parametrize(
    ("orders", "wrong"),
    [
        ([(1, 1), (0, 2), (2, 1), (5, 2)], []),
        ([(2, 1), (0, 2), (1, 1), (5, 2)], [1]),
        ([(1, 1), (1, 1), (0, 2), (0, 2)], [1, 2]),
        ([], []),
    ],
)
def test_members_whose_orders_do_not_rise_are_named(orders: list[tuple[int, int]], wrong: list[int]) -> None:
    assert out_of_order(rows(*orders)) == wrong


def test_the_load_is_whole_and_in_order_whatever_happens_to_shards(server: KinesisServer) -> None:
    stream = OwnedStream("orders", server.endpoint, 2)
    load, resharding = KinesisLoad(stream, 1, 2000), Resharding(stream, 1)
    load.start()
    resharding.start()
    until(lambda: resharding.made.total() >= 3, "shards have split or merged", 60)
    resharding.finish()
    written = load.finish()
    load.let_time_pass()
    found = pl.DataFrame([json.loads(record["Data"]) for record in stream.read()])
    last = found.filter(pl.col("order") < 0)
    assert last.height == len(stream.open_shards())
    assert last["ts"].min() > (time.time_ns() // 1_000_000)
    got = found.filter(pl.col("order") >= 0)
    assert got.height == written.height >= BATCH
    assert got.sort("order").equals(written.select(got.columns).sort("order"))
    assert out_of_order(got) == []
    assert len(stream.shards()) > len(stream.open_shards())


def test_event_time_can_pass_in_each_shard(server: KinesisServer) -> None:
    stream = OwnedStream("keys", server.endpoint, 3)
    stream.split(stream.open_shards()[0])
    shards = stream.open_shards()
    assert stream.put([{"PartitionKey": key_for(shard), "Data": shard["ShardId"].encode()} for shard in shards]) == 0
    asked = {"StreamName": stream.name, "ShardIteratorType": "TRIM_HORIZON"}
    for shard in shards:
        place = stream.client.get_shard_iterator(ShardId=shard["ShardId"], **asked)["ShardIterator"]
        (record,) = stream.client.get_records(ShardIterator=place)["Records"]
        assert record["Data"] == shard["ShardId"].encode()


def test_there_is_no_server_without_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("chaos.kinesis_server._MODULES", tmp_path / "none")
    with pytest.raises(InfrastructureError, match="there is no kinesis-local here"):
        KinesisServer()
