"""Two flows write one table, which no flow joins: an intermediate stream takes the count of the input that it meets."""

import polars as pl

import headrace as hr

partitions = {"put": 3, "gone": 8}

app = hr.App("put-and-delete")
columns = {"k": pl.String, "v": pl.Int64}
table = app.table("t", key="k")
app.input("put", columns, key="k").send_to(table)
app.input("gone", columns).partition_by("k", id="gone-by-k").delete_from(table)
