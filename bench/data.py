"""The data that all contestants read, generated from a seed, and the right answers, computed by Polars."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

import headrace as hr
from bench.measure import WrongResultError

URLS = np.array(["/", "/search", "/cart", "/item", "/health"])
HEALTH = "/health"
PER_MS = 100
"""Messages in a millisecond of event time: ten million messages take 100 s."""
START_MS = 1_700_000_000_000
DISORDER_MS = 500
WINDOW_MS = 10_000
GAP_MS = 300
"""Views of a member that are at most so far apart are one session. With 10,000 members that makes ten or so views."""
WITHIN_MS = 100
"""A view is joined with the member's orders up to so much later. With 10,000 members that is one, on average."""
AT_ONCE = 1 << 22

SCHEMA = {"member": pl.String, "url": pl.String, "ts": pl.Int64}
ORDERS = {"member": pl.String, "cents": pl.Int64, "ts": pl.Int64}


RowsOf = Callable[[np.random.Generator, np.ndarray, int], pl.DataFrame]


def page_views(folder: Path, messages: int, keys: int, files: int) -> Path:
    """Write ``messages`` page views of ``keys`` members to ``files`` Parquet files, and return their folder.

    Every file covers the whole range of event time, with up to 500 ms of disorder. A reader that read them one after
    the other would see time go back, so contestants read them side by side, as partitions.
    """
    return _write(folder, "views", _views, 11, messages, keys, files)


def views_and_orders(folder: Path, messages: int, keys: int, files: int) -> Path:
    """Write half as many page views, and as many orders, in the same time, to folders of their own in this folder."""
    _write(folder / "views", "views", _views, 11, messages // 2, keys, files)
    _write(folder / "orders", "orders", _orders, 12, messages // 2, keys, files)
    return folder


def _write(folder: Path, name: str, rows_of: RowsOf, seed: int, messages: int, keys: int, files: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    each = messages // files
    for number in range(files):
        with ExitStack() as stack:
            writer = None
            for first in range(0, each, AT_ONCE):
                rows = rows_of(random, np.arange(first, min(each, first + AT_ONCE)) * files, keys).to_arrow()
                if writer is None:
                    path = folder / f"{name}-{number:03}.parquet"
                    writer = stack.enter_context(pq.ParquetWriter(path, rows.schema, compression="zstd"))
                writer.write_table(rows, row_group_size=1 << 17)
    return folder


def _views(random: np.random.Generator, index: np.ndarray, keys: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "member": _members(random, index, keys),
            "url": URLS[random.integers(0, len(URLS), len(index))],
            "ts": _times(random, index),
        }
    )


def _orders(random: np.random.Generator, index: np.ndarray, keys: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "member": _members(random, index, keys),
            "cents": random.integers(100, 100_000, len(index)),
            "ts": _times(random, index),
        }
    )


def _members(random: np.random.Generator, index: np.ndarray, keys: int) -> pl.Series:
    return "member-" + pl.Series(random.integers(0, keys, len(index))).cast(pl.String)


def _times(random: np.random.Generator, index: np.ndarray) -> np.ndarray:
    return START_MS + index // PER_MS - random.integers(0, DISORDER_MS, len(index))


def first_views(views: Path, folder: Path, share: int) -> Path:
    """Write the first rows of each file, so many times fewer, to a folder, unless it is there, and return it."""
    if share == 1:
        return views
    for file in sorted(views.glob("*.parquet")) if not folder.exists() else ():
        folder.mkdir(exist_ok=True)
        rows = pl.read_parquet(file)
        rows.head(rows.height // share).write_parquet(folder / file.name, row_group_size=1 << 17)
    return folder


def fill_log(views: Path, stream: str, home: Path) -> None:
    """Write the same files to a stream of the embedded log, one partition a file, in frames of 8192 rows; seal it."""
    files = sorted(views.glob("*.parquet"))
    hr.streams.create_stream(stream, partitions=len(files), schema=SCHEMA, home=home)
    tables = [pl.read_parquet(file) for file in files]
    with hr.streams.StreamWriter(stream, home=home) as writer:
        for start in range(0, max(table.height for table in tables), 8192):
            for table in tables:  # the writer assigns batches round robin, so file i goes to partition i
                writer.write(table.slice(start, 8192))
        writer.seal()


def kept_views(views: Path) -> pl.DataFrame:
    """Return the right answer of (a): the number of remaining messages, and a sum over each remaining column."""
    return (
        pl.scan_parquet(views / "*.parquet")
        .filter(pl.col("url") != HEALTH)
        .select(pl.len().alias("rows"), pl.col("member").str.len_bytes().sum(), (pl.col("ts") // 1000).sum().alias("s"))
        .collect()
    )


def windowed_counts(views: Path) -> pl.DataFrame:
    """Return the right answer of (b): views by window start and member, in that order."""
    return (
        pl.scan_parquet(views / "*.parquet")
        .filter(pl.col("url") != HEALTH)
        .group_by((pl.col("ts") // WINDOW_MS * WINDOW_MS).alias("start"), "member")
        .agg(pl.len().cast(pl.Int64).alias("views"))
        .sort("start", "member")
        .collect()
    )


def running_counts(views: Path) -> pl.DataFrame:
    """Return the right answer of the running count: each member with 1, 2 and so on, in that order."""
    members = pl.scan_parquet(views / "*.parquet").filter(pl.col("url") != HEALTH).select("member")
    numbered = members.with_columns(n=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("member"))
    return numbered.sort("member", "n").collect()


def sessions(views: Path) -> pl.DataFrame:
    """Return the right sessions: each with its member, its bounds and its views. It ends 300 ms after the last view."""
    kept = pl.scan_parquet(views / "*.parquet").filter(pl.col("url") != HEALTH)
    member, ts = pl.col("member"), pl.col("ts")
    begins = (member != member.shift()) | (ts - ts.shift() > GAP_MS)
    return (
        kept.select(member, ts)
        .sort(member, ts)
        .with_columns(session=begins.fill_null(True).cum_sum())
        .group_by(member, "session")
        .agg(start=ts.min(), end=ts.max() + GAP_MS, views=pl.len().cast(pl.Int64))
        .drop("session")
        .collect()
    )


def joined(both: Path) -> pl.DataFrame:
    """Return the right pairs of a view and an order, with the columns of the view.

    Polars meets them in slots as long as the bound: an order is in the slot of its view, or in the next one.
    """
    slot = pl.col("ts") // WITHIN_MS
    views = pl.scan_parquet(both / "views" / "*.parquet").filter(pl.col("url") != HEALTH)
    orders = pl.scan_parquet(both / "orders" / "*.parquet").with_columns(slot=slot)
    return (
        views.with_columns(slot=pl.concat_list(slot, slot + 1))
        .explode("slot")
        .join(orders, on=["member", "slot"])
        .filter((pl.col("ts_right") - pl.col("ts")).is_between(0, WITHIN_MS))
        .select("member", "url", "ts", "cents")
        .collect()
    )


def check_rows(what: str, found: pl.DataFrame, right: pl.DataFrame) -> None:
    """Raise ``WrongResultError`` unless these are the right rows, in any order. Other columns don't count."""
    found = found.select(pl.col(name).cast(dtype) for name, dtype in right.schema.items())
    if digest(found) != digest(right):
        same = " with other values" if found.height == right.height else ""
        raise WrongResultError(f"{what}: {found.height} rows{same}, expected {right.height}")


def digest(rows: pl.DataFrame) -> tuple[pl.Schema, int, int]:
    """Return a digest that doesn't depend on the order of rows: sorting millions takes longer than the query."""
    return rows.schema, rows.height, int(rows.hash_rows().sum())


def last_time(views: Path) -> int:
    """Return the latest event time."""
    latest = pl.scan_parquet(views / "*.parquet").filter(pl.col("url") != HEALTH).select(pl.col("ts").max()).collect()
    return int(latest.item())
