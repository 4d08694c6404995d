# must fail: source 's2' has 16 partitions
"""Seed 004, figure 3, the right-hand side: joined inputs need equal counts."""

import polars as pl

import headrace as hr

partitions = {"s1": 8, "s2": 16}

app = hr.App("figure-3")
columns = {"k": pl.String, "ts": pl.Int64}
s1 = app.input("s1", columns, event_time="ts")
s2 = app.input("s2", columns, event_time="ts")
s1.join(s2, on="k", within="1m", id="both").send_to(app.output("s3"))
