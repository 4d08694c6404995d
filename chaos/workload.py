"""The app under chaos.

Orders, some of which are duplicated, are partitioned by number, deduplicated, and joined with their payments. Then they
are partitioned by member, grouped into sessions with early results, and summed per member and second. The sums are
partitioned by region, summed per region and five seconds, joined with region names from a table that a side input
fills, and sent to a stream and to a database. The output ``seen`` lists every order as the third stage received it, so
that a lost or duplicated order is known by its number. Messages that don't fit are set aside. Where its streams are is
up to the caller. As a program (``python -m chaos.workload HOME MASTER``) this is the driver.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from chaos.poison import LETTERS
from headrace.api.aggregates import count
from headrace.api.aggregates import sum as total
from headrace.api.descriptors import SystemDescriptor, sql
from headrace.api.stream import Stream
from headrace.api.windows import session, tumbling
from headrace.app import App
from headrace.run.spark.hosting import die_with_parent
from headrace.streams import StreamWriter, create_stream

APP = "chaos"
PARTITIONS = 4
REGIONS = {number: f"region-{number}" for number in range(7)}
SHORT_MS, LONG_MS = 1000, 5000
GAP_MS = 150
REPEATED_MS = 10_000
PAID_WITHIN_MS = 600
ORDERS = {"order": pl.Int64, "member": pl.Int64, "amount": pl.Int64, "ts": pl.Int64}
PAYMENTS = {"order": pl.Int64, "paid": pl.Int64, "at": pl.Int64}
NAMES = {"region": pl.Int64, "name": pl.String}
ORDERS_LATENESS_MS, PAYMENTS_LATENESS_MS = 500, 1500
INPUTS = frozenset({"orders", "payments", "region-names"})
DATABASE = "results.db"
HANG = "hang"
"""The name of a file in the home: whoever deletes it hangs."""
HUNG_AFTER = "15s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the app's streams are. None: in the embedded log."""

    log: SystemDescriptor | None = None
    orders: SystemDescriptor | None = None
    payments: SystemDescriptor | None = None
    names: SystemDescriptor | None = None
    report: SystemDescriptor
    partitions: int = PARTITIONS

    @classmethod
    def at(cls, home: str) -> Places:
        """All in a home."""
        return cls(report=sql(f"sqlite:///{home}/{DATABASE}", "report"))


def prepare(home: Path) -> None:
    """Create the inputs, and write the names of the regions."""
    create_stream("orders", PARTITIONS, ORDERS, home=home)
    create_stream("payments", PARTITIONS, PAYMENTS, home=home)
    create_stream("region-names", 1, NAMES, home=home)
    with StreamWriter("region-names", home=home) as writer:
        writer.write(names())
        writer.seal()


def names() -> pl.DataFrame:
    """The names of the regions."""
    return pl.DataFrame({"region": list(REGIONS), "name": list(REGIONS.values())}, schema=NAMES)


def build(home: str, places: Places, kind: Callable[..., App] = App) -> App:
    """Declare the app."""
    app = kind(
        APP,
        home=home,
        system=places.log,
        intermediate_partitions=places.partitions,
        checkpoint_interval="500ms",
        hung_after=HUNG_AFTER,
    )
    lateness = f"{ORDERS_LATENESS_MS}ms"
    orders = app.input(
        "orders",
        ORDERS,
        event_time="ts",
        lateness=lateness,
        system=places.orders,
        on_error="dead_letter",
        dead_letter=app.output(LETTERS, partitions=places.partitions),
    )
    once = (
        orders.filter(pl.col("amount") > 0)
        .partition_by("order", id="by-order")
        .deduplicate("order", within=f"{REPEATED_MS}ms", id="once")
    )
    lateness = f"{PAYMENTS_LATENESS_MS}ms"
    payments = app.input("payments", PAYMENTS, event_time="at", lateness=lateness, system=places.payments)
    (
        once.join(
            payments.partition_by("order", id="payments-by-order"),
            on="order",
            how="left",
            within=("0s", f"{PAID_WITHIN_MS}ms"),
            id="with-payment",
        )
        .select("order", "amount", "paid")
        .send_to(app.output("paid", partitions=places.partitions))
    )
    by_member = once.partition_by("member", id="by-member")
    by_member.select("order", "member", "amount").send_to(app.output("seen", partitions=places.partitions))
    (
        by_member.window(session(f"{GAP_MS}ms"), key="member", id="per-session", early=5)
        .agg(orders=count(), amount=total("amount"))
        .filter(pl.col("pane") == "on_time")  # the number of early panes depends on timing
        .drop("pane", "pane_index")
        .send_to(app.output("sessions", partitions=places.partitions))
    )
    _sums(app, by_member, places, Path(home, HANG).absolute())
    return app


def doubled(rows: pl.DataFrame, hang: Path) -> pl.DataFrame:
    """Double the amounts. The one that finds the file ``hang`` never returns."""
    with suppress(FileNotFoundError):
        hang.unlink()
        threading.Event().wait()
    return rows.with_columns(pl.col("amount") * 2)


def _sums(app: App, by_member: Stream, places: Places, hang: Path) -> None:
    per_second = by_member.window(tumbling(f"{SHORT_MS}ms"), key="member", id="per-second").agg(
        orders=count(), amount=total("amount")
    )
    per_second.send_to(app.output("member-seconds", partitions=places.partitions))
    names = app.table(
        "region-names-by-number",
        key="region",
        kind="global",
        side_inputs=app.input("region-names", NAMES, broadcast=True, system=places.names),
    )
    regions = (
        per_second.with_columns(region=pl.col("member") % len(REGIONS))
        .partition_by("region", id="by-region")
        .map_batches(partial(doubled, hang=hang))
        .window(tumbling(f"{LONG_MS}ms"), key="region", id="per-region")
        .agg(orders=total("orders"), doubled=total("amount"), members=count())
        .join(names)
    )
    regions.send_to(app.output("region-totals", partitions=places.partitions))
    regions.send_to(app.output("region-report", system=places.report))


if __name__ == "__main__":
    die_with_parent()  # if chaos itself is killed, the app must not keep running
    build(sys.argv[1], Places.at(sys.argv[1])).run(master=sys.argv[2])
