"""Tables on the real log, in tasks that are killed again and again: nothing lost, nothing twice, nothing older."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr

MEMBERS = 40
PRICES = {"member": pl.Int64, "price": pl.Int64}
CHANGES = {"member": pl.Int64, "level": pl.Int64}
ORDERS = {"order": pl.Int64, "member": pl.Int64, "price_then": pl.Int64}


def priced_app(home: Path) -> hr.App:
    """Orders beside the price of their member (a side input) and the level that a flow keeps of it."""
    app = hr.App("priced", home=str(home), intermediate_partitions=2, checkpoint_interval=f"{INTERVAL_MS}ms")
    prices = app.table("prices", key="member", side_inputs=app.input("prices-in", PRICES), kind="global")
    levels = app.table("levels", key="member", schema=CHANGES)
    app.input("changes", CHANGES).partition_by("member", id="changes-by-member").send_to(levels)
    orders = app.input("orders", ORDERS).partition_by("member", id="orders-by-member")
    orders.join(prices, id="with-price").join(levels, how="left", id="with-level").send_to(
        app.output("priced", partitions=2)
    )
    return app


class Inputs:
    """What is written: a price of everybody, then orders of everybody, which know the price that was there first."""

    def __init__(self, home: Path) -> None:
        streams = {"prices-in": PRICES, "changes": CHANGES, "orders": ORDERS}
        for name, columns in streams.items():
            hr.streams.create_stream(name, 2, columns, home=home)
        self.prices, self.changes, self.orders = (hr.streams.StreamWriter(name, home=home) for name in streams)
        self.price = 0
        self.written = 0

    def raise_prices(self) -> None:
        self.price += 1
        # All prices of a member in one partition: between two there is no order.
        self.prices.write(pl.DataFrame({"member": range(MEMBERS)}).with_columns(price=pl.lit(self.price)))
        self.prices.write(pl.DataFrame({"member": [-self.price], "price": [0]}))
        level = pl.DataFrame({"member": range(MEMBERS), "level": [self.price * 100] * MEMBERS})
        self.changes.write(level)
        self.changes.write(level.head(1))

    def order(self) -> None:
        orders = pl.DataFrame({"order": range(self.written, self.written + MEMBERS), "member": range(MEMBERS)})
        self.orders.write(orders.with_columns(price_then=pl.lit(self.price, pl.Int64)))
        self.written += MEMBERS

    def close(self) -> None:
        for writer in (self.prices, self.changes, self.orders):
            writer.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_tasks_go_on_with_the_tables_they_had(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    inputs = Inputs(tmp_path)
    with DrivenApp(priced_app(tmp_path)) as app:
        container = app.start()
        for _ in range(8):
            inputs.raise_prices()
            app.run(chance.choice([0, 20, 100, 3 * INTERVAL_MS]))
            if chance.random() < 0.7:
                app.kill(container)
                container = app.start()
            else:
                app.until(lambda: all(not app.host(str(h.name)).lag(s) for h in app.hosts for s in h.task.side_inputs))
            inputs.order()
            app.run(chance.choice([20, 60, 2 * INTERVAL_MS]))
        app.run(10 * INTERVAL_MS)
        app.kill(container)
        app.start()
        last = inputs.written
        inputs.order()
        inputs.orders.seal()
        inputs.changes.seal()
        app.finish()
        found = app.rows("priced").sort("order")
    inputs.close()
    assert found["order"].to_list() == list(range(inputs.written)), "each order once"
    assert found.filter(pl.col("price") < pl.col("price_then")).is_empty(), "a side input is read to its end first"
    newest = found.filter(pl.col("order") >= last)
    assert newest.select("price", "level").unique().rows() == [(inputs.price, inputs.price * 100)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": {"member": pl.Int64, "level": pl.String}}, "column 'level' was stored as Int64"),
        ({"key": ("member", "level")}, "has the key member: Int64"),
        ({"ttl": "1h"}, "was stored without a time to live"),
        ({"storage": "memory"}, "was stored in another form: a table on disk that is now in memory"),
    ],
)
def test_a_table_that_was_kept_otherwise_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    def app(**changed: Any) -> hr.App:
        declared: dict[str, Any] = {"key": "member", "schema": CHANGES} | changed
        columns = declared["schema"]
        app = hr.App("levels", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
        level = pl.col("level").cast(columns["level"])
        app.input("changes", CHANGES).with_columns(level).send_to(app.table("levels", **declared))
        return app

    hr.streams.create_stream("changes", 1, CHANGES, home=tmp_path)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer:
        writer.write([{"member": 1, "level": 2}])
        with DrivenApp(app()) as driven:
            driven.start()
            driven.run(4 * INTERVAL_MS)
        writer.write([{"member": 2, "level": 3}])
    with DrivenApp(app(**change)) as driven, pytest.raises(hr.errors.DeclarationError, match=message):
        driven.start()
        driven.run(INTERVAL_MS)


def test_tables_in_memory_and_of_versions_that_were_kept_otherwise_are_refused(tmp_path: Path) -> None:
    def app(**changed: Any) -> hr.App:
        app = hr.App("levels", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
        changes = app.input("changes", CHANGES, event_time="level")
        changes.send_to(app.table("levels", "member", CHANGES, **({"storage": "memory", "versions": "1h"} | changed)))
        return app

    hr.streams.create_stream("changes", 1, CHANGES, home=tmp_path)
    with hr.streams.StreamWriter("changes", home=tmp_path) as writer:
        writer.write([{"member": 1, "level": 2}])
    with DrivenApp(app()) as driven:
        driven.start()
        driven.run(4 * INTERVAL_MS)
    for change, message in (
        ({"storage": "disk"}, "was stored in another form"),
        ({"versions": None}, "was stored with versions, but is now declared without"),
    ):
        with DrivenApp(app(**change)) as driven, pytest.raises(hr.errors.DeclarationError, match=message):
            driven.start()
            driven.run(INTERVAL_MS)
