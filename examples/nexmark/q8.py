"""Nexmark 8: new users. Who registered and opened an auction within the same ten seconds?

Windows of ten seconds, side by side; a person is listed once, when the window is over. The benchmark's first definition
had windows of twelve hours.
"""

import os
from pathlib import Path

import polars as pl

import headrace as hr

DATA = Path(os.environ.get("NEXMARK_DATA", "nexmark-data"))

app = hr.App("nexmark-q8")
persons = app.input(
    "persons",
    {"id": pl.Int64, "name": pl.String, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "persons-*.parquet"),
)
auctions = app.input(
    "auctions",
    {"seller": pl.Int64, "ts": pl.Int64},
    event_time="ts",
    lateness="1s",
    system=hr.io.files(DATA / "auctions-*.parquet"),
)
registered = (
    persons.partition_by("id", id="persons-by-id")
    .window(hr.tumbling("10s"), key=["id", "name"], id="registered")
    .agg(times=pl.len())
)
sellers = (
    auctions.rename({"seller": "id"})
    .partition_by("id", id="auctions-by-seller")
    .window(hr.tumbling("10s"), key="id", id="sellers")
    .agg(auctions=pl.len())
)
# Both sides emit the results of one window with one event time: its last millisecond.
(
    registered.join(sellers, on=["id", "window_start"], within="0s", id="new-sellers")
    .select("id", "name", "window_start", "auctions")
    .send_to("q8")
)

if __name__ == "__main__":
    app.run()
