"""The app that chaos is done to, the messages that it gets, and what must come of them.

Three stages: orders are dealt by member, summed up per member and second, dealt anew by region, and summed up per
region and five seconds. ``seen`` lists every order as the second stage met it, so that one order lost or doubled is
known by its number. As a program (``python -m headrace.testing.chaos.workload HOME MASTER``) this is the driver.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import polars as pl

from headrace.api.aggregates import count
from headrace.api.aggregates import sum as total
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.streams import create_stream

APP = "chaos"
PARTITIONS = 4
MEMBERS = 500
REGIONS = 7
SHORT_MS, LONG_MS = 1000, 5000
LATENESS_MS = 500
JITTER_MS = 400
COLUMNS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
BATCH = 200


def prepare(home: Path) -> None:
    """Create the input."""
    create_stream("orders", PARTITIONS, COLUMNS, home=home)


def build(home: str) -> App:
    """The app."""
    app = App(APP, home=home, intermediate_partitions=PARTITIONS, checkpoint_interval="500ms")
    orders = app.input("orders", COLUMNS, event_time="ts", lateness=LATENESS_MS)
    by_member = orders.filter(pl.col("amount") > 0).partition_by("member", id="by-member")
    by_member.select("order", "member", "amount").send_to(app.output("seen", partitions=PARTITIONS))
    per_second = by_member.window(
        tumbling(SHORT_MS), key="member", agg={"orders": count(), "amount": total("amount")}, id="per-second"
    )
    per_second.send_to(app.output("member-seconds", partitions=PARTITIONS))
    regions = per_second.with_columns(region=pl.col("member") % REGIONS).partition_by("region", id="by-region")
    (
        regions.map_batches(lambda rows: rows.with_columns(pl.col("amount") * 2))
        .window(
            tumbling(LONG_MS),
            key="region",
            agg={"orders": total("orders"), "doubled": total("amount"), "members": count()},
            id="per-region",
        )
        .send_to(app.output("region-totals", partitions=PARTITIONS))
    )
    return app


def expected(orders: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """What each output must hold in the end, by Polars alone."""
    kept = orders.filter(pl.col("amount") > 0)
    seconds = (
        kept.group_by("member", window_start=pl.col("ts") // SHORT_MS * SHORT_MS)
        .agg(orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + SHORT_MS)
    )
    regions = (
        seconds.group_by(
            region=pl.col("member") % REGIONS, window_start=(pl.col("window_end") - 1) // LONG_MS * LONG_MS
        )
        .agg(orders=pl.col("orders").sum(), doubled=pl.col("amount").sum() * 2, members=pl.len().cast(pl.Int64))
        .with_columns(window_end=pl.col("window_start") + LONG_MS)
    )
    return {"seen": kept.select("order", "member", "amount"), "member-seconds": seconds, "region-totals": regions}


class Orders:
    """Makes orders from a seed; their times follow the clock, a little shuffled, but never later than allowed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._next = 0

    def batch(self, rows: int = BATCH) -> pl.DataFrame:
        """The next ones."""
        numbers = np.arange(self._next, self._next + rows, dtype=np.int64)
        self._next += rows
        now = time.time_ns() // 1_000_000
        return pl.DataFrame(
            {
                "order": numbers,
                "member": self._random.zipf(1.4, rows).astype(np.int64) % MEMBERS,
                "amount": self._random.integers(-5, 100, rows),
                "ts": now - self._random.integers(0, JITTER_MS, rows),
            }
        )


if __name__ == "__main__":
    build(sys.argv[1]).run(master=sys.argv[2])
