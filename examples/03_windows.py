"""3. Windows: aggregates per key and ten seconds of event time.

Event time is a column of the message, here milliseconds. Messages may come up to ``lateness`` after later ones;
what comes later still is left out and counted. The order of arrival doesn't change the results.

It prints::

    ann      0 -  10000  views 2  longest 80
    bob      0 -  10000  views 1  longest 30
    ann  10000 -  20000  views 1  longest 10
"""

from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}
VIEWS = [
    {"member": "ann", "ms": 50, "ts": 1_000},
    {"member": "ann", "ms": 10, "ts": 12_000},
    {"member": "bob", "ms": 30, "ts": 9_000},  # three seconds late, which is allowed
    {"member": "ann", "ms": 80, "ts": 9_500},
]

with TemporaryDirectory() as home:
    hr.streams.create_stream("views", partitions=1, schema=SCHEMA, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write(VIEWS)
        writer.seal()

    app = hr.App("windows", home=home)
    views = app.input("views", SCHEMA, event_time="ts", lateness="5s")
    views.window(hr.tumbling("10s"), key="member", id="per-10s").agg(
        views=hr.count(), longest=hr.aggregates.max("ms")
    ).send_to(app.output("views-per-member"))
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("views-per-member", home=home).sort("window_start", "member").to_dicts():
        bounds = f"{row['window_start']:6} - {row['window_end']:6}"
        print(f"{row['member']} {bounds}  views {row['views']}  longest {row['longest']}")
