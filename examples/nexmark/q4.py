"""Nexmark 4: the average price of each category, so far, from the winning bids of auctions that have closed.

An auction is won by the highest bid from its beginning until it expires, both included; the reserve is ignored, and so
is an auction without bids. It closes when the watermark has passed the time at which it expires: that is a window of
one millisecond of that time. Auctions last ten seconds at most, and none is kept longer.

The running average is emitted every ten seconds of event time, and at the end: the last result of a category counts.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q4")
auctions = app.input(
    "auctions",
    {"id": pl.Int64, "category": pl.Int64, "ts": pl.Int64, "expires": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "auctions-*.parquet"),
)
bids = app.input(
    "bids",
    {"auction": pl.Int64, "price": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "bids-*.parquet"),
)

sold = bids.partition_by("auction", id="bids-by-auction").join(
    auctions.rename({"id": "auction"}).partition_by("auction", id="auctions-by-id"),
    on="auction",
    within=("-10s", "0s"),
    id="bids-on-auctions",
)
winning = (
    sold.filter(pl.col("ts") <= pl.col("expires"))
    .window(hr.tumbling("1ms"), key=["auction", "category"], time="expires", id="winning-bids")
    .agg(pl.col("price").max())
)
(
    winning.partition_by("category", id="by-category")
    .window(hr.windows.global_(), key="category", early=hr.triggers.every("10s"), id="so-far")
    .agg(auctions=pl.len(), average=pl.col("price").mean())
    .send_to("q4")
)

if __name__ == "__main__":
    app.run()
