"""A source joined with a table of its own counts is read by two stages; a single one would feed itself."""

import polars as pl

import headrace as hr

partitions = {"views": 4}

app = hr.App("own-counts")
views = app.input("views", {"member": pl.String, "ts": pl.Int64}, key="member", event_time="ts")
counts = app.table("counts", key="member")
(
    views.partition_by("member", id="by-member")
    .window(hr.tumbling("1m"), key="member", id="per-minute")
    .agg(views=hr.count())
    .send_to(counts)
)
views.join(counts, how="left").send_to(app.output("views-with-counts"))
