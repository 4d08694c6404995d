"""Seed 004: a group of unknown counts becomes a known one when another group decides for one of its streams."""

import polars as pl

import headrace as hr

partitions = {"a": 2, "b": 2, "c": 2, "s": 6}

app = hr.App("chain", intermediate_partitions=3)
columns = {"k": pl.String, "ts": pl.Int64}
a, b, c = (app.input(name, columns, event_time="ts").partition_by("k", id=f"{name}-by-k") for name in ("a", "b", "c"))
b.join(c, on="k", within="1m", id="b-with-c").send_to(app.output("bc"))
a.join(b, on="k", within="1m", id="a-with-b").send_to(app.output("ab"))
s = app.input("s", columns, key="k", event_time="ts")
s.join(a, on="k", within="1m", id="s-with-a").send_to(app.output("sa"))
