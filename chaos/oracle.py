"""What each output of the app under chaos must contain at the end, computed by Polars from all messages at once."""

from __future__ import annotations

import polars as pl

from chaos.load import Written
from chaos.workload import GAP_MS, LONG_MS, PAID_WITHIN_MS, REGIONS, SHORT_MS


def expected(written: Written) -> dict[str, pl.DataFrame]:
    """Return the expected rows of each output stream."""
    once = written.orders.filter(pl.col("amount") > 0).unique("order", keep="any")
    seconds = _member_seconds(once)
    return {
        "seen": once.select("order", "member", "amount"),
        "paid": _paid(once, written.payments),
        "sessions": _sessions(once),
        "member-seconds": seconds,
        "region-totals": _region_totals(seconds),
    }


def _paid(orders: pl.DataFrame, payments: pl.DataFrame) -> pl.DataFrame:
    delay = pl.col("at") - pl.col("ts")
    timely = orders.join(payments, on="order").filter(delay.is_between(0, PAID_WITHIN_MS)).select("order", "paid")
    return orders.join(timely, on="order", how="left").select("order", "amount", "paid")


def _sessions(orders: pl.DataFrame) -> pl.DataFrame:
    begins = (pl.col("ts").diff().over("member") >= GAP_MS).fill_null(value=True)
    return (
        orders.sort("member", "ts")
        .with_columns(number=begins.cum_sum())
        .group_by("member", "number")
        .agg(
            window_start=pl.col("ts").min(),
            window_end=pl.col("ts").max() + GAP_MS,
            orders=pl.len().cast(pl.Int64),
            amount=pl.col("amount").sum(),
        )
        .drop("number")
    )


def _member_seconds(orders: pl.DataFrame) -> pl.DataFrame:
    return (
        orders.group_by("member", window_start=pl.col("ts") // SHORT_MS * SHORT_MS)
        .agg(orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum())
        .with_columns(window_end=pl.col("window_start") + SHORT_MS)
    )


def _region_totals(seconds: pl.DataFrame) -> pl.DataFrame:
    return (
        seconds.group_by(
            region=pl.col("member") % len(REGIONS), window_start=(pl.col("window_end") - 1) // LONG_MS * LONG_MS
        )
        .agg(orders=pl.col("orders").sum(), doubled=pl.col("amount").sum() * 2, members=pl.len().cast(pl.Int64))
        .with_columns(
            window_end=pl.col("window_start") + LONG_MS,
            name=pl.col("region").replace_strict(REGIONS, return_dtype=pl.String),
        )
    )
