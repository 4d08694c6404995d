"""An app that a test kills: counts the rows of files in windows, in two stages. It stops when it has caught up."""

import sys

import polars as pl

import headrace as hr

home = sys.argv[1]
app = hr.App("counting", home=home, checkpoint_interval="20ms")
files = hr.io.files(f"{home}/in/*", new_files="next_run", partitions=2)
rows = app.input("rows", {"n": pl.Int64, "ts": pl.Int64}, event_time="ts", lateness="1h", system=files)
by_digit = rows.with_columns(digit=pl.col("n") % 10).partition_by("digit", id="by-digit", partitions=2)
per_second = by_digit.window(hr.tumbling("1s"), key="digit", id="per-second").agg(n=hr.count(), total=hr.sum("n"))
per_second.send_to(app.output("counts", system=hr.io.files(f"{home}/counts", format="jsonl")))
rows.send_to(app.output("copies", system=hr.io.files(f"{home}/copies", format="jsonl")))

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
