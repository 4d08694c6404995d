"""Seed 004, table case 4: both are intermediate, and their result is joined with an input."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 8, "s3": 5}

app = hr.App("case-4", intermediate_partitions=16)
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k")
app.input("s1", columns).partition_by("k", id="s1-by-k").send_to(table)
by_k = app.input("s2", columns, event_time="ts").partition_by("k", id="s2-by-k")
s3 = app.input("s3", columns, key="k", event_time="ts")
by_k.join(table).join(s3, on="k", within="1m", id="later", suffix="_s3").send_to(app.output("s4"))
