"""16. Clean up a stream: drop repetitions, split the rest, and write your own operator.

A shop's app sends each order again until it gets an answer. This example keeps one of each, sends large orders to their
own stream, and sends all orders of a tenth of the members to a stream for tests.

It prints::

    orders: 6, once: 4
    large: [(3, 900.0)]
    small: [(1, 20.0), (2, 35.0), (4, 5.0)]
    net: [(1, 16.0), (2, 28.0), (4, 4.0)]
    all orders of a member are sampled, or none: True
"""

from datetime import datetime, timedelta
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

ORDERS = {"order": pl.Int64, "member": pl.String, "euros": pl.Float64, "at": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)
SENT = [
    {"order": order, "member": member, "euros": euros, "at": NOON + timedelta(seconds=second)}
    for order, member, euros, second in (
        (1, "ann", 20.0, 1),
        (2, "bob", 35.0, 2),
        (1, "ann", 20.0, 3),
        (3, "cem", 900.0, 4),
        (3, "cem", 900.0, 9),
        (4, "ann", 5.0, 10),
    )
]


def without_tax(stream: hr.Stream, percent: int) -> hr.Stream:
    """An operator of your own: a function from a stream to a stream."""
    return stream.with_columns((pl.col("euros") / (1 + percent / 100)).round(2)).select("order", "euros")


with TemporaryDirectory() as home:
    hr.streams.create_stream("orders", partitions=1, schema=ORDERS, home=home)
    with hr.streams.StreamWriter("orders", home=home) as writer:
        writer.write(SENT)
        writer.seal()

    app = hr.App("clean-orders", home=home)
    orders = app.input("orders", ORDERS, event_time="at", lateness="1m")
    once = orders.partition_by("order").deduplicate(within="1h")
    parts = once.split({"large": "euros > 500"}, others="small")
    for name, part in parts.items():
        part.send_to(name)
    parts["small"].pipe(without_tax, 25).send_to("net")
    once.sample(0.1, key="member", seed=7).send_to("for-a-test")
    app.run(local=True, progress=False)

    large, small = (hr.streams.read_stream(name, home=home).select("order", "euros").sort("order") for name in parts)
    print(f"orders: {len(SENT)}, once: {large.height + small.height}")
    print(f"large: {large.rows()}")
    print(f"small: {small.rows()}")
    print(f"net: {hr.streams.read_stream('net', home=home).sort('order').rows()}")
    sampled = hr.streams.read_stream("for-a-test", home=home).group_by("member").len().rows()
    print(f"all orders of a member are sampled, or none: {set(sampled) <= {('ann', 2), ('bob', 1), ('cem', 1)}}")
