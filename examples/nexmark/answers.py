"""What the queries of Nexmark should give, computed with Polars from all of the data at once, and in another way.

    python examples/nexmark/answers.py q5

compares what query 5 has written with the right answer, and prints the outcome. The benchmark and the tests use it,
too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl

import headrace as hr

Answer = Callable[[pl.LazyFrame, pl.LazyFrame, pl.LazyFrame], pl.LazyFrame]
"""From persons, auctions and bids."""


def q0(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    return bids


def q1(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    return bids.select("auction", "bidder", pl.col("price") * 0.908, "ts", "extra")


def q2(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    return bids.select("auction", "price").filter(pl.col("auction").mod(123) == 0)


def q3(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    there = persons.filter((pl.col("state") == "OR") | (pl.col("state") == "ID") | (pl.col("state") == "CA"))
    both = auctions.join(there, left_on="seller", right_on="id")
    return both.filter(pl.col("category") == 10).select("name", "city", "state", auction="id")


def sold(auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    """Auctions that got a bid in time, with the price of the highest."""
    offers = bids.select("auction", "price", at="ts").join(auctions, left_on="auction", right_on="id")
    timely = offers.filter((pl.col("at") >= pl.col("ts")) & (pl.col("at") <= pl.col("expires")))
    return timely.group_by("auction", "seller", "category", "expires").agg(pl.col("price").max())


def q4(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    figures = {"auctions": pl.len().cast(pl.Int64), "average": pl.col("price").mean()}
    return sold(auctions, bids).group_by("category").agg(**figures)


def q5(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    ends = pl.int_ranges(pl.col("ts") // 2000 * 2000 + 2000, pl.col("ts") // 2000 * 2000 + 12_000, 2000)
    counts = (
        bids.select("auction", ts=pl.col("ts") // 2000 * 2000)
        .group_by("auction", "ts")
        .agg(bids=pl.len().cast(pl.Int64))
        .select("auction", "bids", window_end=ends)
        .explode("window_end")
        .group_by("auction", "window_end")
        .agg(pl.col("bids").sum())
    )
    hottest = counts.filter(pl.col("bids") == pl.col("bids").max().over("window_end"))
    return hottest.sort("auction").group_by("window_end", "bids").agg(auctions=pl.col("auction").head(10))


def q6(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    in_order = sold(auctions, bids).sort("seller", "expires", "auction")
    ten = pl.concat_list(pl.col("price").shift(back).over("seller") for back in range(10))
    return in_order.select("seller", "auction", average=ten.list.mean())


def q7(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    best_first = bids.sort("price", "ts", descending=[True, False])
    ends = (pl.col("ts") // 10_000 * 10_000 + 10_000).alias("window_end")
    return best_first.group_by(ends).agg(pl.col("price", "ts").first())


def q8(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    start = (pl.col("ts") // 10_000 * 10_000).alias("window_start")
    same = auctions.select("seller", start).join(
        persons.select("id", "name", start), left_on=["seller", "window_start"], right_on=["id", "window_start"]
    )
    counted = same.group_by("seller", "name", "window_start").agg(auctions=pl.len().cast(pl.Int64))
    return counted.rename({"seller": "id"})


def q11(persons: pl.LazyFrame, auctions: pl.LazyFrame, bids: pl.LazyFrame) -> pl.LazyFrame:
    begins = pl.col("ts").diff().over("bidder").fill_null(1 << 40) >= 10_000
    numbered = bids.sort("bidder", "ts").select("bidder", "ts", session=begins.cum_sum())
    sessions = numbered.group_by("bidder", "session").agg(
        window_start=pl.col("ts").min(), window_end=pl.col("ts").max() + 10_000, bids=pl.len().cast(pl.Int64)
    )
    return sessions.drop("session")


ANSWERS: dict[str, Answer] = {answer.__name__: answer for answer in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11)}


def answer(query: str, data: Path) -> pl.DataFrame:
    """What ``query`` should give for the files in ``data``, in no order."""
    streams = (pl.scan_parquet(data / f"{kind}-*.parquet") for kind in ("persons", "auctions", "bids"))
    return ANSWERS[query](*streams).collect()


def difference(found: pl.DataFrame, right: pl.DataFrame) -> str | None:
    """How results differ from an answer; None when they agree. Of running results only the last ones count.

    Results may have columns that the answer doesn't: where it may be one row or another.
    """
    if "pane" in found.columns:
        found = found.filter(pl.col("pane") == "on_time")
    columns = sorted(right.columns)
    found, right = (rows.select(columns).sort(columns) for rows in (found, right))
    if found.schema != right.schema:
        return f"the columns are {found.schema}, not {right.schema}"
    if found.equals(right):
        return None
    missing = right.join(found, on=columns, how="anti")
    extra = found.join(right, on=columns, how="anti")
    return f"{found.height} rows, not {right.height}; without reason there are\n{extra}\nand missing are\n{missing}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query", choices=ANSWERS)
    query = parser.parse_args().query
    right = answer(query, Path(os.environ.get("NEXMARK_DATA", "nexmark-data")))
    found = hr.streams.read_stream(query)
    wrong = difference(found, right)
    print(f"{query}: {wrong or f'right, {right.height} rows'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
