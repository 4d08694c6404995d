"""A whole app reads a Kinesis stream in memory: shards split, the app stops and goes on, streams change."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_thread import Running, running

import headrace as hr
from headrace.connectors.kinesis.api import key_hash
from headrace.connectors.kinesis.memory import KinesisStream
from headrace.core.errors import HeadraceError
from headrace.operate.cli.status_view import warnings
from simulator.kinesis import aggregate

ORDERS = {"member": pl.String, "n": pl.Int64}


@pytest.fixture
def orders() -> Iterator[KinesisStream]:
    with KinesisStream("orders", shards=2) as stream:
        yield stream


def app(home: Path, **said: Any) -> hr.App:
    mine = hr.App("shop", home=home, checkpoint_interval="50ms")
    system = hr.io.kinesis("orders", endpoint_url="memory://", **said)
    rows = mine.input("orders", ORDERS, system=system)
    rows.send_to(mine.output("copies", partitions=2))
    return mine


def put(orders: KinesisStream, first: int, count: int) -> None:
    for n in range(first, first + count):
        orders.put(f"member-{n % 7}", {"member": f"member-{n % 7}", "n": n})


def test_shards_split_and_merge_while_an_app_reads_them(orders: KinesisStream, tmp_path: Path) -> None:
    put(orders, 0, 20)
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(20)))
        first, second = orders.split()
        put(orders, 20, 20)
        run.until(lambda: run.numbers() == list(range(40)))
        orders.merge(first, second)
        put(orders, 40, 20)
        run.until(lambda: run.numbers() == list(range(60)))
    assert run.errors == []


def test_an_app_goes_on_where_it_stopped(orders: KinesisStream, tmp_path: Path) -> None:
    put(orders, 0, 20)
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: len(run.numbers()) == 20)
    put(orders, 20, 10)
    orders.split()
    put(orders, 30, 10)
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(40)))
    assert run.errors == []
    memo = json.loads((tmp_path / "kinesis/shop/orders.json").read_text(encoding="utf-8"))
    assert (memo["format"], memo["stream"], memo["slots"]) == (1, "orders", 2)


def test_an_app_that_begins_with_what_is_upcoming_misses_nothing_after_that(
    orders: KinesisStream, tmp_path: Path
) -> None:
    put(orders, 0, 20)
    threading.Event().wait(0.005)  # arrival times have milliseconds
    with running(app(tmp_path, start="upcoming"), tmp_path) as run:
        run.until((tmp_path / "kinesis/shop/orders.json").exists)
        put(orders, 100, 20)
        run.until(lambda: len(run.numbers()) >= 20)
        assert run.numbers() == list(range(100, 120))
    assert run.errors == []


def test_what_the_kpl_had_aggregated_for_another_shard_is_counted(orders: KinesisStream, tmp_path: Path) -> None:
    """1,010 records were put, and 10 come out."""
    put(orders, 0, 10)
    low, high = (next(key for key in map(str, range(99)) if key_hash(key) >> 127 == half) for half in (0, 1))
    orders.put(low, aggregate(high, [b'{"member": "x", "n": 99}'] * 1000))
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(10)))
        run.until(lambda: _misplaced(run) == {"orders/0": 1000})
        status = run.status()
    assert run.errors == []
    assert status is not None
    said = list(warnings(status, 0))
    assert "left out, because the KPL had aggregated them for another shard: 1,000 rows" in said
    assert any("kinesis-orders.orders[0]: records were left out, because the KPL" in line for line in said)


def _misplaced(run: Running) -> dict[str, int]:
    status = run.status()
    tasks = [] if status is None else status.tasks
    return {task.name: count for task in tasks if (count := task.counters.get("misplaced", 0))}


def test_a_stream_that_was_created_again_is_refused(tmp_path: Path) -> None:
    with KinesisStream("orders") as orders:
        put(orders, 0, 5)
        with running(app(tmp_path), tmp_path) as run:
            run.until(lambda: len(run.numbers()) == 5)
    threading.Event().wait(0.005)  # the time of creation tells them apart
    with KinesisStream("orders"), pytest.raises(HeadraceError, match="isn't the one that the app read before"):
        app(tmp_path).run(local=True, progress=False)
    with pytest.raises(HeadraceError, match="there is no Kinesis stream 'orders' in the memory of this process"):
        app(tmp_path).run(local=True, progress=False)


def test_the_number_of_slots_stays(orders: KinesisStream, tmp_path: Path) -> None:
    with running(app(tmp_path, slots=3), tmp_path) as run:
        run.until((tmp_path / "kinesis/shop/orders.json").exists)
    assert run.errors == []
    assert app(tmp_path, slots=3).plan().streams["orders"].partitions == 3
    assert app(tmp_path).plan().streams["orders"].partitions == 3
    with pytest.raises(
        HeadraceError, match=r"has had 3 slots since the app's first run, but is now declared with slots=4"
    ):
        app(tmp_path, slots=4).run(local=True, progress=False)


def test_a_driver_on_another_machine_remembers_the_stream(orders: KinesisStream, tmp_path: Path) -> None:
    put(orders, 0, 20)
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: len(run.numbers()) == 20)
    assert run.errors == []
    orders.split()  # now there are three open shards, and still two slots
    shutil.rmtree(tmp_path / "kinesis")
    assert app(tmp_path).plan().streams["orders"].partitions == 2
    put(orders, 20, 10)
    with running(app(tmp_path), tmp_path) as run:
        run.until(lambda: run.numbers() == list(range(30)))
    assert run.errors == []
    assert not (tmp_path / "kinesis").exists()
