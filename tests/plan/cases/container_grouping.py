"""Grouping by container: one task for each container."""

import polars as pl

import headrace as hr

partitions = {"s": 3}

app = hr.App("by-container", grouping="container")
app.input("s", {"k": pl.String}).partition_by("k", id="by-k").send_to(app.output("out"))
