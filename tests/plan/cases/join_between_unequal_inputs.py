# must fail: streams that meet in 'with-s1' and 'with-s4' need equal partition counts
"""Seed 004, figure 5: an intermediate stream can't follow two inputs of different counts."""

import polars as pl

import headrace as hr

partitions = {"s1": 16, "s2": 64, "s4": 32}

app = hr.App("figure-5")
columns = {"k": pl.String, "ts": pl.Int64}
s1 = app.input("s1", columns, event_time="ts")
s4 = app.input("s4", columns, event_time="ts")
by_k = app.input("s2", columns, event_time="ts").partition_by("k", id="s2-by-k")
by_k.join(s1, on="k", within="1m", id="with-s1").send_to(app.output("s3"))
by_k.join(s4, on="k", within="1m", id="with-s4").send_to(app.output("s5"))
