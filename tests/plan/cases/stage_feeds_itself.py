# must fail: stages can't feed themselves through an intermediate stream
"""An intermediate stream joined with a stream derived from it: a stage would wait for its own end."""

import polars as pl

import headrace as hr

partitions = {"views": 4}

app = hr.App("loop")
by_url = app.input("views", {"url": pl.String, "member": pl.String, "ts": pl.Int64}, event_time="ts").partition_by(
    "url", id="by-url"
)
again = by_url.filter(pl.col("member") != "").partition_by("url", id="by-url-again")
by_url.join(again, on="url", within="1m", id="both").send_to(app.output("pairs"))
