"""13. On Spark: the same app in two containers on local Spark, fed while it runs.

Only ``master`` differs; on a cluster spark-submit sets it. Each container is one long-running Spark task. Functions are
shipped to containers as Spark ships its own.

It prints::

    written 20000, counted 20000
"""

import threading
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr

SCHEMA = {"member": pl.String, "ts": pl.Datetime("ms")}
NOON = datetime(2026, 1, 1, 12)
BATCHES, ROWS = 20, 1_000


def declare(home: str) -> hr.App:
    app = hr.App("on-spark", home=home)
    views = app.input("views", SCHEMA, event_time="ts")
    (views.partition_by("member").window(hr.tumbling("10s")).agg(views=pl.len()).send_to("views-per-member"))
    return app


def feed(home: str) -> None:
    with hr.streams.StreamWriter("views", home=home) as writer:
        for batch in range(BATCHES):
            members = [f"member-{n % 100}" for n in range(ROWS)]
            times = [NOON + timedelta(seconds=batch, milliseconds=n) for n in range(ROWS)]
            writer.write(pl.DataFrame({"member": members, "ts": times}, SCHEMA))
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
