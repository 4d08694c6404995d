"""12. The plan: what will run, as data. ``print(app.explain())`` shows it as text, as ``headrace plan`` does.

It prints::

    stage orders: 2 tasks, reads ['orders'], writes ['by-member']
    stage by-member: 4 tasks, reads ['by-member'], writes ['totals']
    stream by-member: 4 partitions
    stream orders: 2 partitions
    stream totals: 2 partitions
    refused: PlanError
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "euros": pl.Float64, "ts": pl.Datetime("ms")}


def declare(home: str, source: str) -> hr.App:
    app = hr.App("orders", home=home, intermediate_partitions=4)
    orders = app.input(source, SCHEMA, event_time="ts")
    (
        orders.filter(pl.col("euros") > 0)
        .partition_by("member")
        .window(hr.tumbling("1d"))
        .agg(pl.col("euros").sum())
        .send_to("totals")
    )
    return app


with TemporaryDirectory() as home:
    hr.streams.create_stream("orders", partitions=2, schema=SCHEMA, home=home)

    plan = declare(home, "orders").plan()
    for stage in plan.stages:
        print(f"stage {stage.name}: {len(stage.tasks)} tasks, reads {list(stage.inputs)}, writes {list(stage.outputs)}")
    for name, stream in sorted(plan.streams.items()):
        print(f"stream {name}: {stream.partitions} partitions")

    try:
        declare(home, "odrers").plan()
    except hr.errors.HeadraceError as error:
        print("refused:", type(error).__name__)
