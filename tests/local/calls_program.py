"""An app that a test runs: calls services with numbers, in two stages, and writes sums into a database.

It runs until its input ends. The services fail now and then, and answer in any order.
"""

import asyncio
import random
import sys

import polars as pl

import headrace as hr

home, url = sys.argv[1], sys.argv[2]
COLUMNS = {"n": pl.Int64, "ts": pl.Int64}
SOON = hr.calls.retry(attempts=None, first="1ms", longest="5ms")


async def doubled(row):
    """A slow call that fails one time in fifty."""
    await asyncio.sleep(random.random() / 200)
    if random.random() < 0.02:
        raise ConnectionError("down")
    return row | {"twice": row["n"] * 2}


def rest(row):
    """A plain function, so it runs in threads."""
    return {"n": row["n"], "twice": row["twice"], "third": row["third"], "rest": row["n"] % 7}


def thirds(keys):
    """A remote table: each number divided by three."""
    if random.random() < 0.02:
        raise ConnectionError("away")
    return keys.with_columns(third=pl.col("n") // 3)


app = hr.App("calls", home=home, checkpoint_interval="20ms")
numbers = app.input("numbers", COLUMNS, event_time="ts")
table = app.table(
    "thirds",
    key="n",
    schema={"n": pl.Int64, "third": pl.Int64},
    remote=hr.tables.cached(hr.tables.remote(thirds, batch=20, retry=SOON), rows=500),
)
asked = numbers.map_async(doubled, COLUMNS | {"twice": pl.Int64}, ordered=False, retry=SOON)
found = asked.partition_by("n", id="by-n", partitions=2).join(table)
full = found.map_async(rest, {"n": pl.Int64, "twice": pl.Int64, "third": pl.Int64, "rest": pl.Int64}, concurrency=8)
full.send_to(app.output("full"))
sums = (
    found.partition_by("third", id="by-third", partitions=1)
    .window(hr.tumbling("1s"), key=None, id="sums")
    .agg(n=hr.sum("n"), messages=hr.count())
)
seconds = app.table(
    "seconds",
    key="second",
    schema={"second": pl.Int64, "n": pl.Int64, "messages": pl.Int64},
    remote=hr.tables.sql_table(url, "seconds"),
)
sums.select("n", "messages", second=pl.col("window_start") // 1000).send_to(seconds)

if __name__ == "__main__":
    print("running", flush=True)
    app.run(local=True, progress=False)
    print("ended", flush=True)
