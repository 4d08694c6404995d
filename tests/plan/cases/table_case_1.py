"""Seed 004, table case 1: a table filled by an input and joined with an input of as many partitions."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 4}

app = hr.App("case-1")
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k")
app.input("s1", columns, key="k").send_to(table)
app.input("s2", columns, key="k").join(table).send_to(app.output("s3"))
