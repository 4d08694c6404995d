"""Apps in which users move positions in sources, so that messages are read again, or never.

What comes out follows from the messages that the commits say were read, each as often as they say: the inputs allow so
much lateness that event time closes nothing before the end.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from headrace.api.aggregates import count, max, sum
from headrace.api.descriptors import files
from headrace.api.windows import tumbling
from headrace.app import App
from simulator import counted, expected
from simulator.case import AppCase, read, ticks

_LATENESS = 100_000
"""In ticks: no message is late, however often it is read again."""


def _declare_counts(app: App) -> None:
    """Windows over windows: two shuffles, both of partial results."""
    per_key = (
        read(app, "views", _LATENESS)
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


def _declare_inner(app: App) -> None:
    """A message that is read again meets what it has met before, again."""
    left = read(app, "views", _LATENESS).partition_by("k", id="left", partitions=2)
    right = read(app, "orders", _LATENESS).partition_by("k", id="right", partitions=2)
    joined = left.join(right, on="k", how="inner", within=(ticks(-15), ticks(25)), id="paired")
    joined.send_to(app.output("pairs", partitions=2))


def _declare_table(app: App) -> None:
    """A table goes back with its input, and what is looked up finds what it has then."""
    profiles = app.table("profiles", key="k", schema={"k": pl.Int64, "profile": pl.Int64})
    filling = read(app, "changes").partition_by("k", id="changes-by-k", partitions=2)
    filling.select("k", profile="id").send_to(profiles)
    looking = read(app, "views").partition_by("k", id="views-by-k", partitions=2)
    looking.join(profiles, how="left").send_to(app.output("found", partitions=1))


def _declare_outbox(app: App) -> None:
    """Results go into a foreign system, at once and from windows."""
    views = read(app, "views", _LATENESS).partition_by("k", id="by-k", partitions=2)
    views.select("id", "k").send_to(app.output("seen", system=files("seen", format="parquet")))
    views.window(tumbling(ticks(20)), key="k", id="per-key").agg(n=count(), ids=sum("id")).send_to(
        app.output("report", system=files("report", format="parquet"))
    )


CASES = (
    AppCase("app-moved-counts", {"views": 2}, _declare_counts, expected.counts, moved=True),
    AppCase("app-moved-inner", {"views": 2, "orders": 1}, _declare_inner, expected.pairs("inner"), moved=True),
    AppCase(
        "app-moved-table",
        {"views": 1, "changes": 2},
        _declare_table,
        expected.found,
        expected.profiles,
        "profile",
        moved=True,
    ),
    AppCase("app-moved-outbox", {"views": 2}, _declare_outbox, expected.reported, moved=True),
    *(replace(case, name=case.name.replace("app-", "app-moved-"), moved=True) for case in counted.CASES),
)
