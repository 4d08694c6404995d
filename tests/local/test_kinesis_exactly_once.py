"""A whole app reads Kinesis from a server: shards split and merge, its process is killed. Each order counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from in_thread import Running, running
from killed import Killed
from kinesis_program import end_time, put, shop, sums, sums_in

from chaos.kinesis_server import KinesisServer
from headrace.core.errors import HeadraceError
from headrace.streams import read_stream
from servers.kinesis_streams import StreamOnServer


@pytest.fixture
def orders(kinesis_local: KinesisServer) -> Iterator[StreamOnServer]:
    stream = StreamOnServer(kinesis_local, 2)
    yield stream
    stream.delete()
    stream.close()


def check_results(run: Running, numbers: range) -> None:
    """Everything comes out, and each order has counted once."""
    run.until(lambda: run.numbers() == list(numbers))
    run.until(lambda: sums_in(run.committed("sums")) == sums(numbers))


def test_orders_count_once_while_shards_split_and_merge(
    orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path
) -> None:
    app = shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint)
    with running(app, tmp_path) as run:
        put(orders.api, range(30))
        run.until(lambda: len(run.numbers()) == 30)
        first, _ = orders.api.shards()
        orders.split(first.id, (first.first + first.last + 1) // 2)
        put(orders.api, range(30, 60))
        run.until(lambda: len(run.numbers()) == 60)
        children = [shard.id for shard in orders.api.shards() if first.id in shard.parents]
        orders.merge(*children)
        put(orders.api, range(60, 90))
        end_time(orders.api)
        check_results(run, range(90))
    assert run.errors == []


def test_nothing_is_lost_or_doubled_when_its_process_is_killed(
    orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path
) -> None:
    def copied() -> int:
        try:
            return read_stream("copies", home=tmp_path).height
        except HeadraceError:
            return 0

    put(orders.api, range(40))
    program = Killed("kinesis_program.py", tmp_path, orders.name, kinesis_local.endpoint)
    program.kill_when(lambda: copied() >= 40, lambda: None)
    shard = orders.api.shards()[0]
    orders.split(shard.id, (shard.first + shard.last + 1) // 2)
    put(orders.api, range(40, 80))
    program.kill_when(lambda: copied() > 40, lambda: None)
    put(orders.api, range(80, 100))
    end_time(orders.api)
    with running(shop(tmp_path, orders.name, endpoint_url=kinesis_local.endpoint), tmp_path) as run:
        check_results(run, range(100))
    assert run.errors == []
