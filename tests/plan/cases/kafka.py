"""Topics of Kafka, whose names and brokers the plan shows: their ids in the app may be others."""

import polars as pl

import headrace as hr

BROKERS = "kafka-1:9092,kafka-2:9092"
app = hr.App("shop")
orders = app.input(
    "orders", {"member": pl.String, "euros": pl.Float64}, system=hr.io.kafka("eu.orders", brokers=BROKERS)
)
shipped = hr.io.kafka("eu.shipped", brokers=BROKERS, key="member")
orders.filter(pl.col("euros") > 0).send_to(app.output("shipped", system=shipped))
partitions = {"orders": 4}
