"""The app whose state and positions are moved under chaos, and its load.

Orders are listed as they are taken, partitioned by member, and there joined with a table of names, deduplicated, and
counted per member and phase. A phase of the load is an hour of event time, so each window closes when the next phase
has begun in every partition. From its second version on, the app also lists large orders. As a program
(``python -m chaos.moved_app HOME MASTER VERSION``) this is the driver.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
from typing_extensions import override

from chaos.steady_load import SteadyLoad
from headrace.api.aggregates import count
from headrace.api.aggregates import sum as total
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.core.clock import WallClock
from headrace.run.spark.hosting import die_with_parent
from headrace.streams import StreamWriter, create_stream

APP = "moved"
PARTITIONS = 4
MEMBERS = 300
LARGE = 90
PHASE_MS = 3_600_000
START_MS = 1_700_006_400_000
BATCH = 50
ORDERS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
NAMES = {"member": pl.Int64, "name": pl.String}
DEALT = ("by-member", "names-by-member")
"""The intermediate streams that are rescaled together."""


def prepare(home: Path) -> None:
    """Create the inputs, and write all names."""
    create_stream("orders", PARTITIONS, ORDERS, home=home)
    create_stream("names", 1, NAMES, home=home)
    members = list(range(MEMBERS))
    with StreamWriter("names", home=home) as writer:
        writer.write(pl.DataFrame({"member": members, "name": [f"member {n}" for n in members]}, schema=NAMES))
        writer.seal()


def build(home: str, version: int) -> App:
    """Declare a version of the app."""
    app = App(APP, home=home, checkpoint_interval="300ms")
    names = app.table("names-by-number", key="member", schema=NAMES)
    app.input("names", NAMES).partition_by("member", id="names-by-member").send_to(names)
    orders = app.input("orders", ORDERS, event_time="ts", lateness="1s")
    taken = orders.with_columns(version=pl.lit(version, pl.Int64))
    taken.select("order", "version").send_to(app.output("taken", partitions=PARTITIONS))
    by_member = taken.partition_by("member", id="by-member")
    by_member.join(names).select("order", "name").send_to(app.output("named", partitions=PARTITIONS))
    (
        by_member.deduplicate(["member", "order"], within="1h", id="deduplicated")
        .select("order")
        .send_to(app.output("once", partitions=PARTITIONS))
    )
    (
        by_member.window(tumbling(f"{PHASE_MS}ms"), key="member", id="per-phase")
        .agg(orders=count(), amount=total("amount"))
        .send_to(app.output("totals", partitions=PARTITIONS))
    )
    if version > 1:
        large = by_member.filter(pl.col("amount") > LARGE)
        large.select("order").send_to(app.output("large", partitions=PARTITIONS))
    return app


class PhasedLoad(SteadyLoad):
    """Writes orders at a steady rate until ``finish``, one batch to each partition in turn."""

    def __init__(self, home: Path, seed: int, rate: int) -> None:
        """Write ``rate`` orders a second."""
        super().__init__("chaos-moved-load", BATCH / rate)
        self._writer = StreamWriter("orders", home=home)
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._written: list[pl.DataFrame] = []
        self._next = 0
        self._phase_rows = 0
        self.phase = 0

    @override
    def write_batch(self) -> None:
        with self._lock:
            self._write()

    def next_phase(self) -> int:
        """Begin another phase, and return the time from which on messages are of it."""
        with self._lock:
            self.phase += 1
            self._phase_rows = 0
            return WallClock().now_ms() + 1

    def rows(self) -> pl.DataFrame:
        """All orders up to now, with the phase of each."""
        with self._lock:
            return pl.concat(self._written)

    def finish(self) -> pl.DataFrame:
        """Stop writing, seal the stream, and return everything that was written."""
        self.stop()
        self._writer.seal()
        self._writer.close()
        return pl.concat(self._written)

    def _write(self) -> None:
        numbers = np.arange(self._next, self._next + BATCH, dtype=np.int64)
        # Event time follows the order of writing, out of order by less than the lateness, and stays within the phase.
        ts = START_MS + self.phase * PHASE_MS + self._phase_rows + self._random.integers(0, 500, BATCH)
        rows = pl.DataFrame(
            {
                "order": numbers,
                "member": self._random.zipf(1.3, BATCH).astype(np.int64) % MEMBERS,
                "amount": self._random.integers(1, 100, BATCH),
                "ts": ts,
            }
        )
        self._writer.write(rows)
        self._written.append(rows.with_columns(phase=pl.lit(self.phase, pl.Int64)))
        self._next += BATCH
        self._phase_rows += 1


def main() -> None:
    """Run the app."""
    die_with_parent()  # if chaos itself is killed, the app must not keep running
    home, master, version = sys.argv[1:]
    # A drain takes a savepoint, so that nothing waits between the stages: a silent restore needs that.
    build(home, int(version)).run(master=master, containers=2, progress=False, savepoint=f"end-{time.time_ns()}")


if __name__ == "__main__":
    main()
