"""An app that tests run: it reads orders from Kinesis, copies them, and sums them up by member and ten seconds.

As a program, ``kinesis_program.py HOME STREAM ENDPOINT [MASTER]``, it runs in a process of its own, or on Spark.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

import headrace as hr
from headrace.connectors.kinesis.api import KinesisApi, Put, key_hash

ORDERS = {"member": pl.String, "n": pl.Int64, "ts": pl.Datetime("ms")}
START = datetime(2026, 1, 1)
LAST = START + timedelta(days=30)
WINDOW_S = 10
REGION = "us-east-1"


def shop(home: Path, stream: str, *, partitions: int = 2, **said: Any) -> hr.App:
    """The app. ``said`` of the stream, and in how many ``partitions`` it works on members."""
    app = hr.App("shop", home=home, checkpoint_interval="100ms")
    system = hr.io.kinesis(stream, region=REGION, **said)
    orders = app.input("orders", ORDERS, event_time="ts", lateness="1s", system=system)
    by_member = orders.partition_by("member", id="by-member", partitions=partitions)
    by_member.filter(pl.col("n") >= 0).send_to(app.output("copies", partitions=2))
    (
        by_member.window(hr.tumbling(f"{WINDOW_S}s"), key="member", id="per-10s")
        .agg(orders=hr.count(), total=hr.sum("n"))
        .send_to(app.output("sums", partitions=2))
    )
    return app


def order(n: int) -> Put:
    """The order of this number: one each second."""
    member = f"member-{n % 7}"
    return Put(member, _data(member, n, START + timedelta(seconds=n)))


def put(stream: KinesisApi, numbers: Iterable[int]) -> None:
    """Write orders."""
    assert not any(result.error for result in stream.put([order(n) for n in numbers]))


def end_time(stream: KinesisApi) -> None:
    """Let event time pass in each shard that takes records, so that every window of other orders ends."""
    for shard in stream.shards():
        if not shard.closed:
            key = next(key for key in map(str, count()) if shard.first <= key_hash(key) <= shard.last)
            assert not stream.put([Put(key, _data("nobody", -1, LAST))])[0].error


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
    home, stream, endpoint, *master = sys.argv[1:]
    print("running", flush=True)
    app = shop(Path(home), stream, endpoint_url=endpoint)
    if master:
        app.run(master=master[0], containers=2, progress=False)
    else:
        app.run(local=True, progress=False)
    print("ended", flush=True)
