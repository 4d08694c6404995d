"""Seed 004, figure 4: an intermediate stream takes the count of the input it is joined with."""

import polars as pl

import headrace as hr

partitions = {"s1": 16, "s2": 32}

app = hr.App("figure-4", intermediate_partitions=3)
columns = {"k": pl.String, "ts": pl.Int64}
s1 = app.input("s1", columns, key="k", event_time="ts")
s2 = app.input("s2", columns, event_time="ts")
repartitioned = s2.filter(pl.col("k") != "").partition_by("k", id="s2-by-k")
s1.join(repartitioned, on="k", within="1m", id="both").send_to(app.output("s3"))
