"""An app that a test runs repeatedly, with all its streams in Kafka: counts files in windows, in two stages."""

import sys

import polars as pl

import headrace as hr

home, brokers = sys.argv[1:3]
app = hr.App("counting", home=home, checkpoint_interval="20ms", system=hr.io.kafka_log(brokers, prefix="counting."))
inbox = hr.io.files(f"{home}/in/*.csv", new_files="next_run", partitions=2)
numbers = app.input("numbers", {"n": pl.Int64, "ts": pl.Int64}, event_time="ts", lateness="1h", system=inbox)
by_digit = numbers.with_columns(digit=pl.col("n") % 10).partition_by("digit", id="by-digit", partitions=2)
per_second = by_digit.window(hr.tumbling("1s"), key="digit", id="per-second").agg(n=hr.count(), total=hr.sum("n"))
per_second.send_to(app.output("counts"))
by_digit.select("n").send_to(app.output("copies"))

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
