"""A Kinesis input: its partitions are slots, and state by key needs a partition_by. An output to Kinesis may repeat."""

import polars as pl

import headrace as hr

app = hr.App("shop")
orders = app.input(
    "orders",
    {"member": pl.String, "euros": pl.Float64},
    system=hr.io.kinesis("orders-eu", start="2026-01-31T12:00:00Z", record_columns={"arrived": "arrival_time"}),
    event_time="arrived",
)
totals = orders.partition_by("member", id="by-member").window(hr.tumbling("1m"), key="member", id="per-minute")
totals.agg(euros=hr.sum("euros")).send_to(app.output("totals", system=hr.io.kinesis("totals", key="member")))

partitions = {"orders": 4}
