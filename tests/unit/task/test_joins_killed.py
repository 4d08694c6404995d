"""Joins on the real log, in tasks that are killed again and again: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr
from drawn import seeds


def test_last_messages_survive(tmp_path: Path) -> None:
    """Views and carts of every member in turn: each pair is one of neighbours."""
    columns = {"member": pl.Int64, "n": pl.Int64}
    for name in ("views", "carts"):
        hr.streams.create_stream(name, 1, columns, home=tmp_path)
    declared = hr.App("carts-shown", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
    left, right = declared.input("views", columns), declared.input("carts", columns)
    left.join_latest(right, "member", ttl="1h", id="shown").send_to(declared.output("out"))
    members = range(20)
    with (
        hr.streams.StreamWriter("views", home=tmp_path) as views,
        hr.streams.StreamWriter("carts", home=tmp_path) as carts,
        DrivenApp(declared) as app,
    ):
        container = app.start()
        for turn in range(6):
            for writer in (views, carts):
                writer.write([{"member": member, "n": turn} for member in members])
                app.until(lambda: not any(host.lag(ssp) for host in app.hosts for ssp in host.task.specs))
            app.run(3 * INTERVAL_MS)
            if turn % 2:
                app.kill(container)
                container = app.start()
        views.seal()
        carts.seal()
        app.finish()
        found = app.rows("out").select("member", "n", "n_right")
    wanted = [(member, turn, turn) for member in members for turn in range(6)]
    wanted += [(member, turn, turn - 1) for member in members for turn in range(1, 6)]
    assert sorted(found.rows()) == sorted(wanted)


def temporal(home: Path) -> hr.App:
    """Orders, beside the rate of their time."""
    app = hr.App("temporal", home=str(home), intermediate_partitions=2, checkpoint_interval=f"{INTERVAL_MS}ms")
    rates = app.table("rates", key="currency", schema=RATES, versions="0s")
    changes = app.input("changes", RATES, event_time="ts", lateness=f"{LATENESS_MS}ms")
    changes.partition_by("currency", id="by-currency").send_to(rates)
    orders = app.input("orders", ORDERS, event_time="ts", lateness=f"{LATENESS_MS}ms")
    of_currency = orders.partition_by("currency", id="orders-by-currency")
    of_currency.join(rates, how="left", id="then").send_to(app.output("out", partitions=2))
    return app


RATES = {"currency": pl.Int64, "rate": pl.Int64, "ts": pl.Int64}
ORDERS = {"order": pl.Int64, "currency": pl.Int64, "ts": pl.Int64}
LATENESS_MS = 2_000


@pytest.mark.parametrize("seed", seeds([1, 2, 3], 1))
def test_each_order_finds_the_rate_of_its_time_however_often_tasks_are_killed(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    for name, columns in (("changes", RATES), ("orders", ORDERS)):
        hr.streams.create_stream(name, 2, columns, home=tmp_path)
    written: dict[str, list[pl.DataFrame]] = {"changes": [], "orders": []}
    with (
        hr.streams.StreamWriter("changes", home=tmp_path) as changes,
        hr.streams.StreamWriter("orders", home=tmp_path) as orders,
        DrivenApp(temporal(tmp_path)) as app,
    ):
        container = app.start()
        for turn in range(12):
            for name, writer in (("changes", changes), ("orders", orders)):
                first = turn * 30
                batch = pl.DataFrame(
                    {
                        ("rate" if name == "changes" else "order"): np.arange(first, first + 30),
                        "currency": random.integers(0, 5, 30),
                        # Shuffled over as much as may be late, no time twice.
                        "ts": (first + random.permutation(30)) * 60 + (1 if name == "changes" else 0),
                    }
                ).select(list(RATES if name == "changes" else ORDERS))
                written[name].append(batch)
                for part in batch.iter_slices(11):
                    writer.write(part)
                app.run(int(random.choice([20, 60, 2 * INTERVAL_MS])))
            if random.random() < 0.6:
                app.kill(container)
                container = app.start()
        changes.seal()
        orders.seal()
        app.finish()
        found = app.rows("out").sort("order")
        assert sum(host.metrics.counters["late"] for host in app.hosts) == 0
    rates = pl.concat(written["changes"]).sort("ts")
    wanted = pl.concat(written["orders"]).sort("ts").join_asof(rates, on="ts", by="currency", check_sortedness=False)
    assert found.select("order", "rate").rows() == wanted.sort("order").select("order", "rate").rows()
