"""14. Joins: messages of two streams with the same key, within a bound of event time.

Each view is paired with the member's orders up to ten minutes later. Both sides are partitioned by the key, so
messages of one member meet in one task. Messages that can no longer find a partner are deleted.

It prints::

    ann saw /lamp, and paid 20.0
    bob saw /desk, and paid 90.0
"""

from datetime import datetime, timedelta
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "url": pl.String, "ts": pl.Datetime("ms")}
ORDERS = {"member": pl.String, "euros": pl.Float64, "at": pl.Datetime("ms")}


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12) + timedelta(minutes=minute)


with TemporaryDirectory() as home:
    hr.streams.create_stream("views", partitions=2, schema=VIEWS, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write([{"member": "ann", "url": "/lamp", "ts": at(0)}, {"member": "bob", "url": "/desk", "ts": at(5)}])
        writer.seal()
    hr.streams.create_stream("orders", partitions=2, schema=ORDERS, home=home)
    with hr.streams.StreamWriter("orders", home=home) as writer:
        writer.write([{"member": "ann", "euros": 20.0, "at": at(1)}, {"member": "ann", "euros": 3.0, "at": at(30)}])
        writer.write([{"member": "bob", "euros": 90.0, "at": at(14)}])
        writer.seal()

    app = hr.App("view-to-order", home=home)
    views = app.input("views", VIEWS, event_time="ts").partition_by("member", id="views-by-member")
    orders = app.input("orders", ORDERS, event_time="at").partition_by("member", id="orders-by-member")
    views.join(orders, on="member", within=("0s", "10m"), id="views-then-orders").send_to("bought")
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("bought", home=home).sort("member").to_dicts():
        print(f"{row['member']} saw {row['url']}, and paid {row['euros']}")
