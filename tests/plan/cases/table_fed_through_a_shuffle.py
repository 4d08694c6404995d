# must fail: table 'rank' ties what joins it to what writes it
"""Messages look up a table, and change the rows of other keys: the stage would wait for its own end."""

import polars as pl

import headrace as hr

partitions = {"links": 4}

app = hr.App("ranks")
rank = app.table("rank", key="page", schema={"page": pl.String, "rank": pl.Float64})
links = app.input("links", {"page": pl.String, "to": pl.String}).partition_by("page", id="by-page")
linked = links.join(rank, how="left").select(page="to", rank=pl.col("rank").fill_null(1.0) / 2)
linked.partition_by("page", id="by-linked-page").send_to(rank)
