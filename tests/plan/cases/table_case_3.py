"""Seed 004, table case 3: an intermediate stream that fills a table takes the count of the input joined with it."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 8}

app = hr.App("case-3")
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k")
app.input("s1", columns).partition_by("k", id="s1-by-k").send_to(table)
app.input("s2", columns, key="k").join(table).send_to(app.output("s3"))
