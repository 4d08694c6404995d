# must fail: join 'join-1' with table 't'
"""Seed 004, table case 1, refused: the two inputs differ."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 8}

app = hr.App("case-1")
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k")
app.input("s1", columns).send_to(table)
app.input("s2", columns).join(table).send_to(app.output("s3"))
