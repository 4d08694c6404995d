"""A table that is joined and then written: the traversal has to end, and the table ties one stage."""

import polars as pl

import headrace as hr

partitions = {"s": 4}

app = hr.App("cycle")
seen = app.table("seen", key="k", schema={"k": pl.String, "ts": pl.Int64})
fresh = app.input("s", {"k": pl.String, "ts": pl.Int64}).partition_by("k", id="by-k")
fresh.join(seen, how="left").select("k", "ts").send_to(seen)
