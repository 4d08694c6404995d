"""An app that a test runs repeatedly: counts its input in windows, in two stages, into topics of Kafka."""

import sys

import polars as pl

import headrace as hr

home, brokers, counts, copies = sys.argv[1:5]
app = hr.App(f"app-{counts}", home=home, checkpoint_interval="50ms")
numbers = app.input("numbers", {"n": pl.UInt32, "ts": pl.Datetime("ms")}, event_time="ts")
by_digit = numbers.with_columns(digit=pl.col("n") % 10).partition_by("digit", id="by-digit", partitions=2)
per_second = by_digit.window(hr.tumbling("1s"), key="digit", id="per-second").agg(n=hr.count(), total=hr.sum("n"))
per_second.send_to(app.output("counts", system=hr.io.kafka(counts, brokers=brokers, key="digit")))
numbers.send_to(app.output("copies", system=hr.io.kafka(copies, brokers=brokers, timestamp="ts")))

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
