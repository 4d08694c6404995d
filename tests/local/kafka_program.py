"""An app that tests run: it reads orders from Kafka, copies them, and sums them up by member and ten seconds.

As a program, ``kafka_program.py HOME TOPIC BROKERS``, it runs in a process of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

import headrace as hr

ORDERS = {"member": pl.String, "n": pl.Int64, "ts": pl.Datetime("ms")}
START = datetime(2026, 1, 1)
LAST = START + timedelta(days=30)
WINDOW_S = 10
GROUP = "headrace.shop.orders"


def shop(home: Path, topic: str, brokers: str, *, partitions: int = 2, **said: Any) -> hr.App:
    """The app. ``said`` of the topic, and in how many ``partitions`` it works on members."""
    app = hr.App("shop", home=home, checkpoint_interval="100ms")
    system = hr.io.kafka(topic, brokers=brokers, **said)
    orders = app.input("orders", ORDERS, event_time="ts", lateness="1s", system=system)
    by_member = orders.partition_by("member", id="by-member", partitions=partitions)
    by_member.filter(pl.col("n") >= 0).send_to(app.output("copies", partitions=2))
    (
        by_member.window(hr.tumbling(f"{WINDOW_S}s"), key="member", id="per-10s")
        .agg(orders=hr.count(), total=hr.sum("n"))
        .send_to(app.output("sums", partitions=2))
    )
    return app


def order(n: int) -> bytes:
    """The order of this number: one each second."""
    return _data(f"member-{n % 7}", n, START + timedelta(seconds=n))


def last() -> bytes:
    """An order that lets event time pass, so that every window of other orders ends."""
    return _data("nobody", -1, LAST)


def sums(numbers: Iterable[int]) -> Counter[tuple[str, datetime, int, int]]:
    """What the app must make of these orders."""
    found: dict[tuple[str, datetime], list[int]] = {}
    for n in numbers:
        window = START + timedelta(seconds=n // WINDOW_S * WINDOW_S)
        found.setdefault((f"member-{n % 7}", window), []).append(n)
    return Counter((member, window, len(of), sum(of)) for (member, window), of in found.items())


def sums_in(rows: pl.DataFrame | None) -> Counter[tuple[str, datetime, int, int]]:
    """What it has made."""
    if rows is None:
        return Counter()
    return Counter(rows.select("member", "window_start", "orders", "total").rows())


def _data(member: str, n: int, ts: datetime) -> bytes:
    return msgspec.json.encode({"member": member, "n": n, "ts": ts.isoformat()})


if __name__ == "__main__":
    home, topic, brokers = sys.argv[1:]
    print("running", flush=True)
    shop(Path(home), topic, brokers).run(local=True, progress=False)
    print("ended", flush=True)
