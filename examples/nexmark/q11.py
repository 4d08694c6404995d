"""Nexmark 11: user sessions. How many bids does a bidder make before a pause of ten seconds?

A session's result is emitted when the watermark is ten seconds past its last bid.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q11")
bids = app.input(
    "bids",
    {"bidder": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "bids-*.parquet"),
)
(
    bids.partition_by("bidder", id="by-bidder")
    .window(hr.session("10s"), key="bidder", id="sessions")
    .agg(bids=pl.len())
    .send_to("q11")
)

if __name__ == "__main__":
    app.run()
