"""Nexmark 2: selection. The bids on every 123rd auction, with their price.

The benchmark also has a form with five given auctions; this is the one without an end.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q2")
bids = app.input("bids", {"auction": pl.Int64, "price": pl.Int64}, system=hr.io.files(DATA / "bids-*.parquet"))
bids.filter(pl.col("auction") % 123 == 0).send_to("q2")

if __name__ == "__main__":
    app.run()
