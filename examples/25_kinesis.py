"""25. Kinesis: orders from a stream whose shards split while the app reads it, and totals into another stream.

Shards are dealt to the input's slots, one for each task. The input is exactly-once. The output is at-least-once: after
a failure some totals may come again, with each member's in order.

Without an argument, the streams are in the memory of this process. To use a server that stands in for Kinesis::

    INITIALIZE_STREAMS=orders:2,totals:1 npx kinesis-local
    AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any python examples/25_kinesis.py http://localhost:4568

It prints::

    {'member': 'ann', 'minute': '12:00', 'euros': 10.0}
    {'member': 'ann', 'minute': '12:01', 'euros': 5.0}
    {'member': 'bob', 'minute': '12:00', 'euros': 5.0}
    {'member': 'cem', 'minute': '12:01', 'euros': 10.0}
"""

import json
import os
import signal
import sys
import threading
import time
from tempfile import TemporaryDirectory

import polars as pl

import headrace as hr
from headrace.connectors.kinesis.memory import KinesisStream

ORDERS = {"member": pl.String, "euros": pl.Float64, "ts": pl.Datetime("ms")}
PLACE = {"region": "us-east-1", "endpoint_url": sys.argv[1] if len(sys.argv) > 1 else "memory://"}


class ServerStream:
    """What `KinesisStream` does in memory, on a server."""

    def __init__(self, name: str, shards: int) -> None:
        import boto3

        self.client = boto3.client("kinesis", region_name=PLACE["region"], endpoint_url=PLACE["endpoint_url"])
        self.first = {"StreamName": name, "ShardId": f"shardId-{0:012}", "ShardIteratorType": "TRIM_HORIZON"}
        self.put = lambda key, order: self.client.put_record(StreamName=name, PartitionKey=key, Data=json.dumps(order))
        self.split = lambda: self.client.split_shard(
            StreamName=name, ShardToSplit=self.first["ShardId"], NewStartingHashKey=str(1 << 126)
        )

    def records(self) -> list[bytes]:
        place = self.client.get_shard_iterator(**self.first)["ShardIterator"]
        return [record["Data"] for record in self.client.get_records(ShardIterator=place)["Records"]]


def declare(home: str) -> hr.App:
    app = hr.App("orders", home=home, checkpoint_interval="100ms")
    source = hr.io.kinesis("orders", slots=2, **PLACE)
    orders = app.input("orders", ORDERS, event_time="ts", idle_timeout="1s", system=source)
    orders.send_to("seen")
    totals = orders.partition_by("member").window(hr.tumbling("1m"))
    minute = pl.col("window_start").dt.strftime("%H:%M").alias("minute")
    target = hr.io.kinesis("totals", key="member", **PLACE)
    totals.agg(pl.col("euros").sum()).select("member", minute, "euros").send_to(app.output("totals", system=target))
    return app


def story(home: str, orders: KinesisStream, totals: KinesisStream) -> None:
    seen = hr.streams.StreamReader("seen", home=home).follow(timeout="60s")
    for minute, members in enumerate([("ann", "bob", "ann"), ("ann", "cem", "cem"), ("zoe",)]):
        for member in members:
            orders.put(member, {"member": member, "euros": 5.0, "ts": f"2026-01-01T12:0{minute}:00"})
        left = len(members)
        while left:
            left -= next(seen).height
        if minute == 0:
            orders.split()
    for _ in range(600):
        if len(totals.records()) < 4:  # zoe's minute isn't over
            time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does


if __name__ == "__main__":
    stream = KinesisStream if len(sys.argv) == 1 else ServerStream
    orders, totals = stream("orders", 2), stream("totals", 1)
    with TemporaryDirectory() as home:
        hr.streams.create_stream("seen", partitions=2, schema=ORDERS, home=home)
        threading.Thread(target=story, args=(home, orders, totals)).start()
        declare(home).run(local=True, progress=False)
        for total in sorted(totals.records()):
            print(json.loads(total))
