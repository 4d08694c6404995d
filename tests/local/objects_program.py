"""An app that a test runs repeatedly, with its snapshots in an object store: counts files in windows, in two stages."""

import sys

import polars as pl

import headrace as hr
from headrace.task.state import task_state

task_state.SNAPSHOT_AFTER_BYTES = 100_000
home, snapshots, brokers = sys.argv[1:4]
log = hr.io.kafka_log(brokers, prefix="counting.") if brokers != "none" else None
app = hr.App("counting", home=home, checkpoint_interval="20ms", snapshots=snapshots, system=log)
inbox = hr.io.files(f"{home}/in/*.csv", new_files="next_run", partitions=2)
numbers = app.input("numbers", {"n": pl.Int64, "ts": pl.Int64}, event_time="ts", lateness="1h", system=inbox)
by_digit = numbers.with_columns(digit=pl.col("n") % 1000).partition_by("digit", id="by-digit", partitions=2)
per_second = by_digit.window(hr.tumbling("1s"), key="digit", id="per-second").agg(n=hr.count(), total=hr.sum("n"))
per_second.send_to(app.output("counts"))
by_digit.select("n").send_to(app.output("copies"))

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
