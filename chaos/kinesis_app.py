"""The app that reads Kinesis under chaos, and its load.

Orders come from a stream whose shards split and merge. They are listed as they are read, partitioned by member, listed
again in the order in which each member's arrive, summed per member and second, and shipped into another stream. As a
program (``python -m chaos.kinesis_app HOME MASTER ENDPOINT``) this is the driver.
"""

from __future__ import annotations

import random
import sys

import msgspec
import polars as pl
from typing_extensions import override

from chaos.kinesis_server import REGION
from chaos.kinesis_stream import OwnedStream, key_for
from chaos.steady_load import SteadyLoad
from headrace.api.aggregates import count
from headrace.api.aggregates import sum as total
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.connectors.kinesis.descriptor import kinesis
from headrace.core.clock import WallClock
from headrace.run.spark.hosting import die_with_parent

APP = "kinesis"
ORDERS, SHIPPED = "orders", "shipped"
SLOTS = 4
MEMBERS = 300
BATCH = 50
WINDOW_MS = 1000
JITTER_MS = 300
COLUMNS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
_FAR_MS = 86_400_000


def build(home: str, endpoint: str) -> App:
    """Declare the app."""
    app = App(APP, home=home, checkpoint_interval="300ms")
    source = kinesis(ORDERS, region=REGION, endpoint_url=endpoint, slots=SLOTS)
    orders = app.input("orders", COLUMNS, event_time="ts", lateness=f"{JITTER_MS}ms", system=source)
    real = pl.col("order") >= 0
    orders.filter(real).select("order").send_to(app.output("seen", partitions=SLOTS))
    by_member = orders.partition_by("member", id="by-member", partitions=SLOTS)
    taken = by_member.filter(real)
    taken.select("order", "member").send_to(app.output("in-order", partitions=SLOTS))
    target = kinesis(SHIPPED, region=REGION, endpoint_url=endpoint, key="member")
    taken.select("order", "member").send_to(app.output("shipped", system=target))
    (
        by_member.window(tumbling(f"{WINDOW_MS}ms"), key="member", id="member-seconds")
        .agg(orders=count(), amount=total("amount"))
        .send_to(app.output("sums", partitions=SLOTS))
    )
    return app


class KinesisLoad(SteadyLoad):
    """Writes orders at a steady rate until ``finish``: of each member in the order of their numbers."""

    def __init__(self, stream: OwnedStream, seed: int, rate: int) -> None:
        super().__init__("chaos-kinesis-load", BATCH / rate)
        self._stream = stream
        self._random = random.Random(seed)
        self._written: list[dict[str, int]] = []
        self.repeated = 0

    def finish(self) -> pl.DataFrame:
        """Stop writing, and return everything that was written."""
        self.stop()
        return pl.DataFrame(self._written, COLUMNS)

    def let_time_pass(self) -> None:
        """Let event time pass in every open shard. One that moves needs it again: it begins at its new slot's time."""
        last = WallClock().now_ms() + _FAR_MS
        for number, shard in enumerate(self._stream.open_shards()):
            order = {"order": -1 - number, "member": -1, "amount": 0, "ts": last}
            self._stream.put([_record(order) | {"PartitionKey": key_for(shard)}])

    @override
    def write_batch(self) -> None:
        now_ms = WallClock().now_ms()
        orders = [
            {
                "order": len(self._written) + number,
                "member": member,
                "amount": self._random.randint(1, 100),
                "ts": now_ms - self._random.randrange(JITTER_MS),
            }
            for number, member in enumerate(self._random.sample(range(MEMBERS), BATCH))
        ]
        self.repeated += self._stream.put([_record(order) for order in orders])
        self._written += orders


def _record(order: dict[str, int]) -> dict[str, object]:
    return {"PartitionKey": str(order["member"]), "Data": msgspec.json.encode(order)}


def main() -> None:
    """Run the app."""
    die_with_parent()  # if chaos itself is killed, the app must not keep running
    home, master, endpoint = sys.argv[1:]
    build(home, endpoint).run(master=master, containers=2, progress=False)


if __name__ == "__main__":
    main()
