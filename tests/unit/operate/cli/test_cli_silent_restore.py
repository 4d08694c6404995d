"""``headrace savepoint restore --outputs silent`` of an app whose stages had come to different places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from running_shop import Shop

import headrace as hr

ORDERS = {"order": pl.Int64}


@pytest.fixture
def shop(home: Path) -> Iterator[Shop]:
    shop = Shop(home)
    for stream in ("orders", "out"):
        hr.streams.create_stream(stream, 1, ORDERS, home=home)
    shop.app = app = hr.App("shop", home=str(home), checkpoint_interval="100ms")
    app.input("orders", ORDERS).partition_by("order", id="by-order").send_to(app.output("out"))
    yield shop
    shop.close()


def test_results_that_a_stage_has_still_to_write_are_not_lost_silently(
    shop: Shop, home: Path, cli: Callable[..., Any]
) -> None:
    def order(*orders: int) -> None:
        with hr.streams.StreamWriter("orders", home=home) as writer:
            writer.write(pl.DataFrame({"order": orders}))

    def out() -> list[int]:
        return sorted(hr.streams.read_stream("out", home=home)["order"])

    def all_read() -> bool:
        return all(one.lag == 0 for one in hr.startpoints.open_startpoints("shop", home=home).offsets())

    order(1)
    with shop.running():
        shop.until(lambda: out() == [1])
        assert cli("savepoint", "create", "shop", "one", "--quiet").code == 0
    order(2)
    with shop.running("orders"):
        shop.until(all_read)
    refused = cli("savepoint", "restore", "shop", "one", "--outputs", "silent", "--quiet")
    assert (refused.code, "the app would never write their results" in refused.err) == (2, True), refused.err
    with shop.running():
        shop.until(lambda: out() == [1, 2])
    assert cli("savepoint", "restore", "shop", "one", "--outputs", "silent", "--quiet").code == 0
    order(3)
    with shop.running():
        shop.until(lambda: out() == [1, 2, 3])
