"""Apps with windows of all kinds and all aggregates, and what two runs of them have in common."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
from both_ways import COLUMNS

import headrace as hr

Shape = hr.windows.Tumbling | hr.windows.Hopping | hr.windows.Sliding | hr.windows.Session
OUT_OF_ORDER = "1s"
"""The lateness of inputs whose messages get another time, live and in batch."""

PAIR = {"views": 3, "orders": 2}


def read(app: hr.App, name: str, lateness: str) -> hr.Stream:
    return app.input(name, COLUMNS, event_time="ts", lateness=lateness)


def by_k(app: hr.App, name: str, lateness: str) -> hr.Stream:
    return read(app, name, lateness).partition_by("k", id=f"{name}-by-k", partitions=2)


# -- windows ----------------------------------------------------------------------------------------


def _biggest(a: int, b: int) -> int:
    return max(a, b)


def _mixed(so_far: int, row: dict[str, int]) -> int:
    return (so_far * 31 + row["id"]) % 100_003


def _added(a: int, b: int) -> int:
    return a + b


def _plus_id(so_far: int, row: dict[str, int]) -> int:
    return so_far + row["id"]


def whatever_order() -> dict[str, object]:
    """Aggregates that don't depend on any order."""
    one = hr.aggregates
    return {
        "n": pl.len(),
        "values": hr.count("v"),
        "total": pl.col("v").sum(),
        "low": pl.col("v").min(),
        "high": hr.max(pl.col("v") + pl.col("id")),
        "mean": pl.col("v").mean(),
        "nulls": pl.col("g").null_count(),
        "positive": pl.col("v").filter(pl.col("id") > 10).sum(),
        "groups": one.n_unique("g"),
        "about": one.approx_n_unique("id"),
    }


def by_time() -> dict[str, object]:
    """Aggregates that depend on event time."""
    one = hr.aggregates
    return {"first": one.first("v"), "last": one.last("g"), "top": one.top_k("v", 3)}


def by_arrival() -> dict[str, object]:
    """Aggregates that depend on the order of messages."""
    one = hr.aggregates
    return {"ids": one.top_k("id", 2, by="v"), "all": one.implode("id"), "mixed": one.fold(1, _mixed, dtype=pl.Int64)}


def lists() -> dict[str, object]:
    """What can be aggregated in part before a shuffle, and depends on the order of messages."""
    return {"all": hr.aggregates.implode("id")}


def merging() -> dict[str, object]:
    """Functions that may be called in any order."""
    one = hr.aggregates
    folded = one.fold(0, _plus_id, merge=_added, dtype=pl.Int64)
    return {"sum": folded, "most": one.reduce(_biggest, "id", version="1")}


def window(shape: Shape, *aggregates: Callable[[], dict[str, object]], **how: object) -> Callable[[hr.App, str], None]:
    """A window behind a ``partition_by``: of partial results, if it can."""

    def declare(app: hr.App, lateness: str) -> None:
        wanted = {name: each for some in aggregates for name, each in some().items()}
        flow = by_k(app, "views", lateness).window(shape, key=["k", "g"], id="w", **how)
        flow.agg(**wanted).send_to(app.output("out"))

    return declare


def window_of_rows(shape: Shape, **how: object) -> Callable[[hr.App, str], None]:
    """A window that gets messages as they are, because a filter is before it."""

    def declare(app: hr.App, lateness: str) -> None:
        flow = by_k(app, "views", lateness).filter(pl.col("id") >= 0).window(shape, key="k", id="w", **how)
        merged = isinstance(shape, hr.windows.Session)  # a fold would need a merge
        ordered = {name: each for name, each in by_arrival().items() if not (merged and name == "mixed")}
        flow.agg(**by_time(), **ordered, n=pl.len()).send_to(app.output("out"))

    return declare


def window_of_two(app: hr.App, lateness: str) -> None:
    both = by_k(app, "views", lateness).merge(by_k(app, "orders", lateness))
    flow = both.window(hr.tumbling("80ms"), key="k", id="w")
    flow.agg(**whatever_order(), **by_time(), **by_arrival()).send_to(app.output("out"))


def windows_over_windows(app: hr.App, lateness: str) -> None:
    inner = by_k(app, "views", lateness).window(hr.tumbling("40ms"), key="k", id="inner").agg(n=pl.len(), v=hr.sum("v"))
    outer = inner.with_columns(half=pl.col("k") % 2).partition_by("half", id="by-half", partitions=2)
    days = outer.window(hr.tumbling("120ms"), key="half", id="outer").agg(n=hr.sum("n"), most=hr.max("n"))
    near = days.partition_by("half", id="again").window(hr.session("500ms"), key="half", id="far")
    near.agg(n=hr.sum("n"), order=hr.aggregates.implode("most")).send_to(app.output("out"))


def windows_in_one_task(app: hr.App, lateness: str) -> None:
    inner = by_k(app, "views", lateness).window(hr.session("30ms"), key="k", id="inner").agg(n=pl.len())
    inner.window(hr.tumbling("200ms"), key="k", id="outer").agg(n=hr.sum("n"), of=pl.len()).send_to(app.output("out"))


def counts_in_windows(app: hr.App, lateness: str) -> None:
    """Results of count windows have no event time; the next window names a column."""
    counted = by_k(app, "views", lateness).window(hr.windows.count(3), key="k", id="inner")
    timed = counted.agg(at=pl.col("ts").max(), n=pl.len()).partition_by("k", id="again", partitions=2)
    outer = timed.window(hr.tumbling("200ms"), key="k", id="outer", time="at", allowed_lateness="1h")
    outer.agg(of=pl.len(), n=hr.sum("n")).send_to(app.output("out"))


def dates(app: hr.App, lateness: str) -> None:
    """Event time as a Datetime of nanoseconds, in another column after a projection."""
    at = pl.from_epoch(pl.col("ts"), time_unit="ms").cast(pl.Datetime("ns"))
    flow = read(app, "views", lateness).with_columns(at=at).partition_by(["k", "g"], id="by-both", partitions=3)
    flow.window(hr.hopping("90ms", "30ms"), key=["g", "k"], id="w", time="at").agg(n=pl.len()).send_to(
        app.output("out")
    )


def another_time(app: hr.App, lateness: str) -> None:
    """A window goes by another time than its input; what the input's lateness covers isn't late."""
    by_key = by_k(app, "views", OUT_OF_ORDER).with_columns(at=pl.col("ts") - pl.col("id") % 5 * 100)
    by_key.window(hr.tumbling("100ms"), key="k", id="w", time="at").agg(n=pl.len()).send_to(app.output("out"))
    near = by_key.window(hr.windows.sliding("90ms"), key="k", id="near", time="at")
    near.agg(ids=hr.aggregates.top_k("id", 3)).send_to(app.output("near-out"))


def _set_back(row: dict[str, int]) -> dict[str, int]:
    return {"id": row["id"], "k": row["k"], "ts": row["ts"] - row["id"] % 5 * 100}


def computed_time(app: hr.App, lateness: str) -> None:
    """A function gives messages another time; what the input's lateness covers isn't late."""
    columns = {"id": pl.Int64, "k": pl.Int64, "ts": pl.Int64}
    views = app.input("views", COLUMNS, event_time="ts", lateness=OUT_OF_ORDER)
    orders = app.input("orders", COLUMNS, event_time="ts", lateness=OUT_OF_ORDER)
    moved = views.map(_set_back, columns).partition_by("k", id="views-by-k", partitions=2)
    orders = orders.map(_set_back, columns).partition_by("k", id="orders-by-k", partitions=2)
    moved.drop_late(late_to=app.output("late")).send_to(app.output("in-time"))
    moved.deduplicate(["k", "id"], within="1ms", id="once").send_to(app.output("out"))
    moved.join(orders, "k", within="30ms", how="full", id="pairs").send_to(app.output("pairs-out"))


def like_ours(app: hr.App, lateness: str) -> None:
    """Columns with names that the batch, or a window, could have for its own."""
    named = read(app, "views", lateness).with_columns(__time=pl.col("id") * 3, __start=pl.col("g"))
    named.partition_by("k", id="by-k", partitions=2).filter(pl.col("id") >= 0).send_to(app.output("out"))


def global_window(app: hr.App, lateness: str) -> None:
    flow = by_k(app, "views", lateness).window(hr.windows.global_(), key="k", id="w")
    flow.agg(**whatever_order(), **by_time()).send_to(app.output("out"))


def ungrouped(app: hr.App, lateness: str) -> None:
    flow = read(app, "views", lateness).with_columns(all=pl.lit(1)).partition_by("all", id="by-all")
    flow.window(hr.tumbling("1s"), key=None, id="w").agg(**whatever_order(), **by_time()).send_to(app.output("out"))


def by_the_clock(app: hr.App, lateness: str) -> None:
    flow = by_k(app, "views", lateness).window(hr.tumbling("1h"), key="k", id="w", time="processing")
    flow.agg(n=pl.len(), v=hr.sum("v")).select("k", "n", "v").send_to(app.output("out"))


# -- what is promised where not each row is the same ------------------------------------------------


def final(rows: pl.DataFrame) -> pl.DataFrame:
    """The last result of each window. When early ones come depends on the watermark, and on batches."""
    return rows.filter(pl.col("pane") == "on_time").drop("pane", "pane_index")


def corrected(rows: pl.DataFrame) -> pl.DataFrame:
    """The last pane of each window."""
    return rows.group_by("k", "window_start").agg(pl.all().sort_by("pane_index").last()).drop("pane", "pane_index")


def summed(rows: pl.DataFrame) -> pl.DataFrame:
    """What discarding panes of a window have together."""
    return rows.group_by("k", "g", "window_start").agg(pl.col("n", "total", "values").sum())


def as_sets(rows: pl.DataFrame) -> pl.DataFrame:
    """Lists of what was aggregated in part before a shuffle are in the order in which messages were read."""
    return rows.with_columns(pl.col("all").list.sort())
