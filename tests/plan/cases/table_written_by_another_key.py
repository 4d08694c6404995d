# must fail: writes table 't', whose key is 'k', but 'by-v' is partitioned by 'v'
"""What fills a table is partitioned by a column that isn't in the table's key: rows of a key would be in many tasks."""

import polars as pl

import headrace as hr

partitions = {"put": 4}

app = hr.App("by-another-key")
table = app.table("t", key="k")
app.input("put", {"k": pl.String, "v": pl.Int64}).partition_by("v", id="by-v").send_to(table)
