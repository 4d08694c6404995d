"""A low-level task with two inputs, two outputs and a store: its inputs get equal partition counts."""

import polars as pl

import headrace as hr

partitions = {"page-views": 4, "orders": 8}

COLUMNS = {"member": pl.String, "ts": pl.Int64}


class Watching(hr.tasks.Task):
    """Its methods don't matter to the plan."""

    last = hr.tasks.Store(key={"member": pl.String}, value={"at": pl.Int64}, ttl="7d")

    def process(self, message, out):
        """Never called here."""


app = hr.App("watching")
views = app.input("page-views", COLUMNS, event_time="ts")
orders = app.input("orders", COLUMNS, event_time="ts")
flows = app.task(
    Watching(),
    inputs={"views": views.partition_by("member", id="views-by-member"), "orders": orders},
    outputs={"bought": COLUMNS, "strange": {"why": pl.String}},
    id="watching",
)
flows["bought"].window(hr.tumbling("1h"), key=None, id="hourly").agg(n=hr.count()).send_to(
    app.output("bought-per-hour")
)
flows["strange"].send_to(app.output("strange-things"))
