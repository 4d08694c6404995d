"""What is refused when a table of versions is declared, filled or joined."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr

RATES = {"currency": pl.String, "rate": pl.Int64, "ts": pl.Int64}
SALES = {"n": pl.Int64, "currency": pl.String, "at": pl.Int64}


def table(app: hr.App) -> hr.Table:
    return app.table("rates", key="currency", schema=RATES, versions="1d")


@pytest.mark.parametrize(
    ("declare", "message", "hint"),
    [
        (lambda app: app.table("t", key="k", ttl="1h", versions="1h"), "ttl= or versions=, not both", "deleted="),
        (lambda app: app.table("t", key="k", versions="-1h"), "versions: '-1h' is below 0 ms", None),
        (
            lambda app: app.table("t", key="__k", schema={"__k": pl.String}, versions="1h"),
            "the column '__k' can't be in a table of versions",
            "rename it",
        ),
        (
            lambda app: app.table("t", key="currency", side_inputs=app.input("i", RATES), versions="1h"),
            r"the side input 'i' \(at .*\) has no event time",
            'app.input("i", ..., event_time="ts")',
        ),
        (
            lambda app: app.input("i", RATES).send_to(table(app)),
            "the table 'rates', which has versions, needs an event time, and no input before it declares one",
            "event_time=",
        ),
        (
            lambda app: app.input("i", RATES).delete_from(table(app)),
            "the table 'rates', which has versions, needs an event time",
            "event_time=",
        ),
        (
            lambda app: app.input("i", RATES, event_time="ts").with_columns(ts=pl.col("ts") * 1000).send_to(table(app)),
            "needs an event time; 'ts' was recomputed at .*test_tables_of_versions.py",
            "keep it",
        ),
        (
            lambda app: app.input("i", SALES).join(table(app), id="j"),
            "a join with the table 'rates', which has versions, needs an event time",
            "event_time=",
        ),
    ],
)
def test_wrong_declarations(declare: Callable[[hr.App], object], message: str, hint: str | None) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        declare(hr.App("wrong"))
    assert (hint or "") in (caught.value.hint or "")


def test_a_join_whose_table_side_inputs_keep_owns_nothing() -> None:
    app = hr.App("no-id")
    rates = app.table("rates", key="currency", side_inputs=app.input("i", RATES, event_time="ts"), versions="1d")
    joined = app.input("sales", SALES, event_time="at").join(rates)
    assert joined.node == "join-1"
    assert joined.event_time is not None
    assert joined.event_time.column == "at"


def test_the_time_of_a_join_is_asked_though_it_is_that_of_a_window() -> None:
    app = hr.App("window")
    rates = table(app)
    app.input("i", RATES, event_time="ts").send_to(rates)
    sales = app.input("sales", SALES, event_time="at")
    counts = sales.window(hr.tumbling("1m"), key="currency", id="per-minute").agg(n=hr.count())
    counts.join(rates, id="at-their-end").sink(print)
    times = [getattr(node.operator, "time", None) for node in app.graph().nodes.values()]
    assert [(time.column, time.offset_ms) for time in times if time is not None] == [("ts", 0), ("window_end", -1)]
