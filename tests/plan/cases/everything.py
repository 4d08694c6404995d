"""Merge, join, tables with and without side inputs, broadcast, a dead-letter stream and a sink, in one app."""

import polars as pl

import headrace as hr

partitions = {"web-views": 8, "app-views": 4, "orders": 8, "members": 8, "countries": 1, "rules": 1}

app = hr.App("shop", intermediate_partitions=6)
view = {"member": pl.String, "url": pl.String, "ts": pl.Int64}
web = app.input(
    "web-views", view, event_time="ts", lateness="5s", on_error="dead_letter", dead_letter=app.output("unreadable")
)
mobile = app.input("app-views", view, event_time="ts", lateness="30s", idle_timeout="1m")
orders = app.input("orders", {"member": pl.String, "amount": pl.Float64, "ts": pl.Int64}, key="member", event_time="ts")

members = app.table(
    "members-by-id",
    key="member",
    side_inputs=[app.input("members", {"member": pl.String, "country": pl.String}, key="member")],
)
countries = app.table(
    "country-names",
    key="country",
    kind="global",
    side_inputs=[app.input("countries", {"country": pl.String, "name": pl.String})],
)
blocked = app.table("blocked", key="member")
rules = app.input("rules", {"member": pl.String, "reason": pl.String}, start="oldest")
rules.filter(pl.col("reason") != "test").broadcast(id="rules-for-all").send_to(blocked)

views = web.filter(pl.col("url") != "/health").merge(mobile)
by_member = views.partition_by("member", id="by-member")
allowed = by_member.join(blocked, how="left").filter(pl.col("reason").is_null()).drop("reason")
bought = allowed.join(orders, on="member", within=("0s", "10m"), id="views-then-orders")
named = bought.join(members, how="left").join(countries, how="left")
named.send_to(app.output("purchases", partitions=2))
(
    named.partition_by("country", id="by-country")
    .window(hr.tumbling("1m"), key="country", id="revenue")
    .agg(revenue=hr.sum("amount"), orders=hr.count())
    .send_to(app.output("revenue-per-country"))
)
named.sink(print)
