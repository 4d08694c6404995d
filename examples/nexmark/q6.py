"""Nexmark 6: the average price that a seller got for the last ten auctions that were sold.

What wins an auction, and when it closes, is as in query 4. Each auction that closes gives a result, so the first nine
of a seller are averages of fewer than ten. Auctions of a seller are ordered by the time at which they expire, then by
id. After an auction has closed, one task processes everything of its seller, and keeps that order.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q6")
auctions = app.input(
    "auctions",
    {"id": pl.Int64, "seller": pl.Int64, "ts": pl.Int64, "expires": pl.Int64},
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
    .partition_by("seller", id="by-seller")
    .window(hr.tumbling("1ms"), key=["seller", "auction"], time="expires", id="winning-bids")
    .agg(pl.col("price").max())
)
(
    winning.window(hr.windows.count(10, every=1), key="seller", id="last-ten")
    .agg(auction=hr.aggregates.last("auction"), average=pl.col("price").mean())
    .send_to("q6")
)

if __name__ == "__main__":
    app.run()
