# must fail: steps wait for each other: latest-of -> select-1 -> send_to-1 -> latest-of
import polars as pl

import headrace as hr

partitions = {"views": 1}

app = hr.App("waits-for-itself")
columns = {"member": pl.String, "ts": pl.Int64}
seen = app.table("seen", key="member", schema=columns, versions="1h")
views = app.input("views", columns, event_time="ts")
views.join(seen, how="left", id="latest-of").select("member", "ts").send_to(seen)
