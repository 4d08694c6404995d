"""3. Windows: aggregates per key and ten seconds of event time.

Event time is a column of the message. A message may arrive up to ``lateness`` behind newer ones; one that
arrives even later is dropped and counted. The order of arrival doesn't change the results.

It prints::

    ann  12:00:00 - 12:00:10  views 2  longest 80
    bob  12:00:00 - 12:00:10  views 1  longest 30
    ann  12:00:10 - 12:00:20  views 1  longest 10
"""

from datetime import datetime
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ms": pl.Int64, "ts": pl.Datetime("ms")}
VIEWS = [
    {"member": "ann", "ms": 50, "ts": datetime(2026, 1, 1, 12, 0, 1)},
    {"member": "ann", "ms": 10, "ts": datetime(2026, 1, 1, 12, 0, 12)},
    {"member": "bob", "ms": 30, "ts": datetime(2026, 1, 1, 12, 0, 9)},  # three seconds late, which is allowed
    {"member": "ann", "ms": 80, "ts": datetime(2026, 1, 1, 12, 0, 9)},
]

with TemporaryDirectory() as home:
    hr.streams.create_stream("views", partitions=1, schema=SCHEMA, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write(VIEWS)
        writer.seal()

    app = hr.App("windows", home=home)
    views = app.input("views", SCHEMA, event_time="ts", lateness="5s")
    windows = views.window(hr.tumbling("10s"), key="member", id="per-10s")
    windows.agg(views=pl.len(), longest=pl.col("ms").max()).send_to("views-per-member")
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("views-per-member", home=home).sort("window_start", "member").to_dicts():
        bounds = f"{row['window_start']:%H:%M:%S} - {row['window_end']:%H:%M:%S}"
        print(f"{row['member']}  {bounds}  views {row['views']}  longest {row['longest']}")
