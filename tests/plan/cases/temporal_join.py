"""Versions that one flow puts and another deletes: the join runs after both, though it is declared before them."""

import polars as pl

import headrace as hr

partitions = {"rates-in": 2, "closed": 1, "orders": 4}

app = hr.App("temporal-join")
rate = {"currency": pl.String, "euros": pl.Float64, "ts": pl.Int64}
rates = app.table(
    "rates", key="currency", schema=rate, versions="1d", storage="memory", deleted=pl.col("euros").is_null()
)
orders = app.input("orders", {"order": pl.Int64, "paid-in": pl.String, "at": pl.Int64}, event_time="at", lateness="5s")
by_currency = orders.partition_by("paid-in", id="a-orders-by-currency")
by_currency.join(rates, on="paid-in", how="left", id="at-their-rate").send_to(app.output("converted"))
changes = app.input("rates-in", rate, event_time="ts")
changes.partition_by("currency", id="rates-by-currency").send_to(rates)
closed = app.input("closed", {"currency": pl.String, "ts": pl.Int64}, event_time="ts")
closed.partition_by("currency", id="closed-by-currency").delete_from(rates)
