"""Seed 004, table case 2: an intermediate stream joined with a table takes the count of the input that fills it."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 8}

app = hr.App("case-2")
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k")
app.input("s1", columns, key="k").send_to(table)
app.input("s2", columns).partition_by("k", id="s2-by-k").join(table).send_to(app.output("s3"))
