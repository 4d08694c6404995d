# must fail: side-input 's1' has 4 partitions
"""Seed 004, table case 1 with a side input, refused."""

import polars as pl

import headrace as hr

partitions = {"s1": 4, "s2": 8}

app = hr.App("side-1")
columns = {"k": pl.String, "ts": pl.Int64}
table = app.table("t", key="k", side_inputs=[app.input("s1", columns)])
app.input("s2", columns).join(table).send_to(app.output("s3"))
