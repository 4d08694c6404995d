"""Nexmark 5: hot items. Every two seconds: which auctions got the most bids in the last ten seconds?

Windows of ten seconds, a new one every two. All auctions with the highest number of bids are listed, at most the ten
oldest. The benchmark's first definition had windows of an hour, a new one every minute; later ones are as here.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q5")
bids = app.input(
    "bids",
    {"auction": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "bids-*.parquet"),
)
counts = (
    bids.partition_by("auction", id="by-auction")
    .window(hr.hopping("10s", every="2s"), key="auction", id="bids-per-auction")
    .agg(bids=pl.len())
)
# A result's event time is the last millisecond of its window. So two seconds hold the results of one window each.
most_first_then_oldest = pl.col("bids") * 2**40 - pl.col("auction")
hottest = (
    counts.partition_by(pl.col("window_end").alias("end"), id="by-end")
    .window(hr.tumbling("2s"), key="end", id="hot-items")
    .agg(
        hot=hr.aggregates.top_k(pl.struct("auction", "bids"), 10, by=most_first_then_oldest),
        bids=pl.col("bids").max(),
    )
)
equally = pl.element().filter(pl.element().struct["bids"] == pl.element().struct["bids"].max())
hottest.select("window_end", "bids", auctions=pl.col("hot").list.eval(equally.struct["auction"])).send_to(
    app.output("q5")
)

if __name__ == "__main__":
    app.run()
