"""4. Two stages: bring the messages of one key together before counting them.

The input has three partitions, and each member's views are in all of them. ``partition_by`` writes each message to the
partition of its key in a durable stream between two stages. After it, one task sees all views of a member.

It prints::

    stages: views, by-member
    ann 30
    bob 30
    cid 30
"""

from datetime import datetime
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ts": pl.Datetime("ms")}

with TemporaryDirectory() as home:
    hr.streams.create_stream("views", partitions=3, schema=SCHEMA, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        for second in range(30):  # each write goes to the next partition
            ts = datetime(2026, 1, 1, 12, 0, second)
            writer.write([{"member": member, "ts": ts} for member in ("ann", "bob", "cid")])
        writer.seal()

    app = hr.App("two-stages", home=home)
    views = app.input("views", SCHEMA, event_time="ts")
    counts = views.partition_by("member", partitions=2).window(hr.tumbling("1m")).agg(views=pl.len())
    counts.send_to("views-per-member")

    print("stages:", ", ".join(stage.name for stage in app.plan().stages))
    app.run(local=True, progress=False)

    for row in hr.streams.read_stream("views-per-member", home=home).sort("member").to_dicts():
        print(row["member"], row["views"])
