"""The app of the README: event-time windows after a partition_by."""

import polars as pl

import headrace as hr

partitions = {"page-views": 8}

app = hr.App("page-views", intermediate_partitions=4)
views = app.input(
    "page-views",
    schema={"member": pl.String, "url": pl.String, "ts": pl.Int64},
    event_time="ts",
    lateness="5s",
)
(
    views.filter(pl.col("url") != "/health")
    .partition_by("member", id="by-member")
    .window(hr.tumbling("10s"), key="member", id="per-10s")
    .agg(views=hr.count())
    .send_to(app.output("views-per-member"))
)
