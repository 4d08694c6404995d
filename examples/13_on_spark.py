"""13. On Spark: the same app in two containers on local Spark, fed while it runs.

``master`` is the only difference; on a cluster it is what spark-submit says. Each container is one long-running Spark
task. Functions travel to them as Spark's own do.

It prints::

    written 20000, counted 20000
"""

import threading
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ts": pl.Int64}
BATCHES, ROWS = 20, 1_000


def declare(home: str) -> hr.App:
    app = hr.App("on-spark", home=home)
    views = app.input("views", SCHEMA, event_time="ts")
    (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling("10s"), key="member", id="per-10s")
        .agg(views=hr.count())
        .send_to(app.output("views-per-member"))
    )
    return app


def feed(home: str) -> None:
    with hr.streams.StreamWriter("views", home=home) as writer:
        for batch in range(BATCHES):
            members = [f"member-{n % 100}" for n in range(ROWS)]
            writer.write(pl.DataFrame({"member": members, "ts": [batch * 1_000 + n for n in range(ROWS)]}))
        writer.seal()


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        hr.streams.create_stream("views", partitions=2, schema=SCHEMA, home=home)
        feeder = threading.Thread(target=feed, args=(home,))
        feeder.start()
        declare(home).run(master="local[2]", progress=False)
        feeder.join()
        counted = hr.streams.read_stream("views-per-member", home=home)["views"].sum()
        print(f"written {BATCHES * ROWS}, counted {counted}")
