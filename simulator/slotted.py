"""Apps that read a Kinesis stream: shards split, merge and move between their tasks, and nothing of that shows.

Inputs allow for the disorder there is, so nothing is ever late, whichever slot a shard is in: event time waits for
shards that are expected, and for the children of those that are done.
"""

from __future__ import annotations

import polars as pl

from headrace.api.aggregates import count, max, sum
from headrace.api.windows import tumbling
from headrace.app import App
from headrace.systems.registry import SystemSpec
from simulator import expected
from simulator.case import AppCase, read, ticks
from simulator.expected import Outputs, Sources, columns, differ

_VIEWS = SystemSpec("kinesis-views", "kinesis", slots=True)
_ORDERS = SystemSpec("kinesis-orders", "kinesis", slots=True)


def _declare_counts(app: App) -> None:
    """Windows over windows behind the slots."""
    per_key = (
        read(app, "views", system=_VIEWS)
        .partition_by("k", id="by-k", partitions=2)
        .window(tumbling(ticks(20)), key="k", id="per-key")
        .agg(n=count(), ids=sum("id"))
    )
    (
        per_key.with_columns(g=pl.col("k") % 2)
        .partition_by("g", id="by-g", partitions=2)
        .window(tumbling(ticks(60)), key="g", id="per-group")
        .agg(n=sum("n"), ids=sum("ids"), most=max("n"))
        .send_to(app.output("counts", partitions=1))
    )


def _declare_copies(app: App) -> None:
    """One stage: what is read leaves as it is."""
    read(app, "views", system=_VIEWS).filter(pl.col("id") > 0).select("id").send_to(app.output("copies", partitions=2))


def _copies(sources: Sources, outputs: Outputs) -> str | None:
    return differ("copies", columns(outputs["copies"], "id"), [(view.id,) for view in sources["views"]])


def _declare_mixed(app: App) -> None:
    """A stage with slots and an intermediate stream, which commits on command; the slots of another before it."""
    shuffled = read(app, "views", system=_VIEWS).partition_by("k", id="by-k", partitions=2)
    (
        shuffled.merge(read(app, "orders", system=_ORDERS))
        .filter(pl.col("id") > 0)
        .partition_by("k", id="again", partitions=2)
        .window(tumbling(ticks(30)), key="k", id="together")
        .agg(n=count(), ids=sum("id"))
        .send_to(app.output("counts", partitions=1))
    )


CASES = (
    AppCase("app-slots", {"views": 3}, _declare_counts, expected.counts, slotted=True),
    AppCase("app-slots-copied", {"views": 2}, _declare_copies, _copies, slotted=True),
    AppCase("app-slots-mixed", {"views": 1, "orders": 2}, _declare_mixed, expected.together, slotted=True),
)
