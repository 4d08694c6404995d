"""A real app to drive turn by turn (``seams.driven``).

Orders are dealt by member and summed up per member and second, dealt anew by region and summed up per region and
five seconds: three stages, two of them with state. ``seen`` names every order as the second stage met it. What must
come of it all Polars computes from the same orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from polars.testing import assert_frame_equal

import headrace as hr
from headrace.task.host.task_host import TaskHost
from seams.driven import INTERVAL_MS, START_MS, STEP_MS, DrivenApp, JumpingClock

__all__ = [
    "INTERVAL_MS",
    "START_MS",
    "STEP_MS",
    "DrivenApp",
    "JumpingClock",
    "Orders",
    "check",
    "orders_app",
    "stateful",
]
PARTITIONS = 2
COLUMNS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
OUTPUTS = ("seen", "member-seconds", "region-totals")


def orders_app(home: Path, on_error: Literal["fail", "skip"] = "fail", **settings: Any) -> hr.App:
    settings = {"intermediate_partitions": PARTITIONS, "checkpoint_interval": f"{INTERVAL_MS}ms"} | settings
    app = hr.App("orders", home=str(home), **settings)
    orders = app.input("orders", COLUMNS, event_time="ts", lateness="500ms", on_error=on_error)
    by_member = orders.filter(pl.col("amount") > 0).partition_by("member", id="by-member")
    by_member.select("order", "member", "amount").send_to(app.output("seen", partitions=PARTITIONS))
    per_second = by_member.window(hr.tumbling("1s"), key="member", id="per-second").agg(
        orders=hr.count(), amount=hr.sum("amount")
    )
    per_second.send_to(app.output("member-seconds", partitions=PARTITIONS))
    regions = per_second.with_columns(region=pl.col("member") % 3).partition_by("region", id="by-region")
    regions.window(hr.tumbling("5s"), key="region", id="per-region").agg(
        orders=hr.sum("orders"), amount=hr.sum("amount")
    ).send_to(app.output("region-totals", partitions=PARTITIONS))
    return app


def expected(orders: pl.DataFrame) -> dict[str, pl.DataFrame]:
    kept = orders.filter(pl.col("amount") > 0)
    seconds = (
        kept.group_by("member", window_start=pl.col("ts") // 1000 * 1000)
        .agg(orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + 1000)
    )
    regions = (
        seconds.group_by(region=pl.col("member") % 3, window_start=(pl.col("window_end") - 1) // 5000 * 5000)
        .agg(orders=pl.col("orders").sum(), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + 5000)
    )
    return {"seen": kept.select("order", "member", "amount"), "member-seconds": seconds, "region-totals": regions}


class Orders:
    """The input: orders from a seed, a little shuffled in time, never later than allowed."""

    def __init__(self, home: Path, seed: int = 0) -> None:
        hr.streams.create_stream("orders", PARTITIONS, COLUMNS, home=home)
        self._writer = hr.streams.StreamWriter("orders", home=home)
        self._random = np.random.default_rng(seed)
        self.written: list[pl.DataFrame] = []
        self.members = 50
        self._time = START_MS

    def write(self, rows: int = 40, span_ms: int = 1000) -> None:
        """The next ones, over so much event time."""
        first = sum(batch.height for batch in self.written)
        began, self._time = self._time, self._time + span_ms
        batch = pl.DataFrame(
            {
                "order": np.arange(first, first + rows),
                "member": self._random.integers(0, self.members, rows),
                "amount": self._random.integers(-2, 100, rows),
                "ts": began + np.arange(rows) * span_ms // rows - self._random.integers(0, 400, rows),
            }
        )
        self.written.append(batch)
        for part in batch.iter_slices(max(1, rows // (2 * PARTITIONS))):
            self._writer.write(part)

    def end(self) -> None:
        self._writer.seal()

    def close(self) -> None:
        self._writer.close()


def stateful(hosts: Sequence[TaskHost]) -> list[TaskHost]:
    return [host for host in hosts if host.task.chain.stores()]


def check(app: DrivenApp, orders: Orders, outputs: Sequence[str] = OUTPUTS) -> None:
    """What the app has committed is what Polars makes of the same orders, row by row."""
    wanted = expected(pl.concat(orders.written))
    for output in outputs:
        found = app.rows(output).select(wanted[output].columns)
        assert_frame_equal(found, wanted[output], check_row_order=False, check_dtypes=False)
