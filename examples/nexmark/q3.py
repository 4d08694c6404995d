"""Nexmark 3: local item suggestion. Who in Oregon, Idaho or California sells something of category 10?

Each such auction is emitted once, with its seller, as soon as both have come, in whatever order. The benchmark keeps
sellers and auctions forever. Here an auction finds a seller who registered up to a day of event time before it, and
messages that can't find a partner any more are deleted, so that the state is bounded.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q3")
persons = app.input(
    "persons",
    {"id": pl.Int64, "name": pl.String, "city": pl.String, "state": pl.String, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "persons-*.parquet"),
)
auctions = app.input(
    "auctions",
    {"id": pl.Int64, "seller": pl.Int64, "category": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "auctions-*.parquet"),
)

local = persons.filter(pl.col("state").is_in(["OR", "ID", "CA"])).select("name", "city", "state", "ts", seller="id")
items = auctions.filter(pl.col("category") == 10).select("seller", "ts", auction="id")
(
    items.partition_by("seller", id="items-by-seller")
    .join(local.partition_by("seller", id="persons-by-id"), on="seller", within=("-1d", "0s"), id="items-of-locals")
    .select("name", "city", "state", "auction")
    .send_to("q3")
)

if __name__ == "__main__":
    app.run()
