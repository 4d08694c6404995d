"""Nexmark 0: pass through. Every bid as it came: what reading, carrying and writing cost.

Bids keep their order within a partition; between partitions there is none.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q0")
bids = app.input(
    "bids",
    {
        "auction": pl.Int64,
        "bidder": pl.Int64,
        "price": pl.Int64,
        "channel": pl.String,
        "url": pl.String,
        "ts": pl.Int64,
        "extra": pl.String,
    },
    system=hr.io.files(DATA / "bids-*.parquet"),
)
bids.send_to("q0")

if __name__ == "__main__":
    app.run()
