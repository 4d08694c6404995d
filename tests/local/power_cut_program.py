"""An app that a test runs repeatedly: counts a stream in windows, in two stages, and notes what it has synced.

What it notes stands for the disk.
"""

import runpy
import sys

import polars as pl

import headrace as hr

home, noting, durability, lost_results = sys.argv[1:5]
runpy.run_path(noting)

app = hr.App("counting", home=home, checkpoint_interval="100ms", durability=durability, lost_results=lost_results)
numbers = app.input("numbers", {"n": pl.Int64, "ts": pl.Int64}, event_time="ts", lateness="1h")
by_digit = numbers.with_columns(digit=pl.col("n") % 10).partition_by("digit", id="by-digit", partitions=2)
per_second = by_digit.window(hr.tumbling("1s"), key="digit", id="per-second").agg(n=hr.count(), total=hr.sum("n"))
per_second.send_to(app.output("counts"))
by_digit.select("n").send_to(app.output("copies"))

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
