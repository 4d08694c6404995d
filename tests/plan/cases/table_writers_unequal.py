# must fail: table 't' .* brings together 'a' and 'b'
"""Two flows write one table, which no flow joins: a row and its deletion would be in different tasks."""

import polars as pl

import headrace as hr

partitions = {"put": 1, "gone": 1}

app = hr.App("put-and-delete")
columns = {"k": pl.String, "v": pl.Int64}
table = app.table("t", key="k")
app.input("put", columns).partition_by("k", id="a", partitions=2).send_to(table)
app.input("gone", columns).partition_by("k", id="b", partitions=3).delete_from(table)
