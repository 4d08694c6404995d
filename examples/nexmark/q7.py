"""Nexmark 7: the highest bid of each ten seconds.

Of equal bids the first one counts. The benchmark's first definition had windows of a minute.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q7")
bids = app.input(
    "bids",
    {"auction": pl.Int64, "bidder": pl.Int64, "price": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "bids-*.parquet"),
)
highest_then_first = pl.col("price") * 10_000 - pl.col("ts") % 10_000
(
    bids.with_columns(all=0)
    .partition_by("all", id="all-bids")
    .window(hr.tumbling("10s"), key="all", id="highest")
    .agg(bid=hr.aggregates.top_k(pl.struct("auction", "bidder", "price", "ts"), 1, by=highest_then_first))
    .select("window_end", pl.col("bid").list.first().struct.unnest())
    .send_to("q7")
)

if __name__ == "__main__":
    app.run()
