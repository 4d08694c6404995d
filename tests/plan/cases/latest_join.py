"""A join of the latest messages of two streams: both sides get the known partition count of one of them."""

import polars as pl

import headrace as hr

partitions = {"views": 8, "carts": 3}

app = hr.App("latest-join")
views = app.input("views", {"member": pl.String, "url": pl.String}, key="member")
carts = app.input("carts", {"member": pl.String, "items": pl.Int64}).partition_by("member", id="carts-by-member")
views.join_latest(carts, "member", ttl="30m", how="left", id="with-cart").send_to(app.output("out"))
