"""Nexmark 1: currency conversion. Every bid, with its price in euros instead of dollars.

A dollar is 0.908 euros; the result is a float, not rounded.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q1")
bids = app.input(
    "bids",
    {"auction": pl.Int64, "bidder": pl.Int64, "price": pl.Int64, "ts": pl.Int64, "extra": pl.String},
    system=hr.io.files(DATA / "bids-*.parquet"),
)
bids.with_columns(price=pl.col("price") * 0.908).send_to("q1")

if __name__ == "__main__":
    app.run()
