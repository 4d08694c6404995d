"""10. Testing: ``app.test()`` runs the app in memory, with a clock that only the test moves.

No files, no Spark, no sleeping: feed messages, let time pass, restart, look at outputs. The functions below are
ordinary pytest tests; running this file runs them.

It prints::

    4 passed
"""

import sys
from datetime import datetime, timedelta

import polars as pl
import pytest

import headrace as hr


def declare() -> hr.App:
    app = hr.App("page-views")
    views = app.input(
        "views",
        {"member": pl.String, "ts": pl.Datetime("ms")},
        event_time="ts",
        lateness="5s",
        idle_timeout="30s",
        on_error="skip",
    )
    counts = views.partition_by("member").window(hr.tumbling("10s")).agg(views=pl.len())
    counts.send_to("counts")
    return app


def view(member: str, second: float) -> dict[str, object]:
    return {"member": member, "ts": datetime(2026, 1, 1, 12) + timedelta(seconds=second)}


def counts(rows: pl.DataFrame) -> list[tuple[str, str, int]]:
    start = pl.col("window_start").dt.to_string("%H:%M:%S")
    return rows.select("member", start, "views").sort("window_start", "member").rows()


def test_results_are_emitted_once_event_time_has_passed_their_window() -> None:
    with declare().test() as t:
        t.feed("views", [view("ann", 1), view("ann", 14.999)])
        assert counts(t.read("counts")) == []
        t.feed("views", [view("bob", 15)])
        assert counts(t.read("counts")) == [("ann", "12:00:00", 1)]


def test_late_messages_are_counted() -> None:
    with declare().test() as t:
        t.feed("views", [view("ann", 60)])
        t.feed("views", [view("ann", 1)])
        t.end()
        assert counts(t.read("counts")) == [("ann", "12:01:00", 1)]
        assert t.counter("late") == 1


def test_a_restart_loses_and_repeats_nothing() -> None:
    with declare().test() as t:
        t.feed("views", [view("ann", 1)])
        t.restart(checkpoint=True)
        t.feed("views", [view("ann", 2)])
        t.restart()  # as after kill -9: the last message is read again
        t.end()
        assert counts(t.read("counts")) == [("ann", "12:00:00", 2)]


def test_an_idle_partition_does_not_hold_windows_back_for_long() -> None:
    with declare().test(partitions=2) as t:
        t.feed("views", [view("ann", 1), view("ann", 60)], partition=0)
        assert counts(t.read("counts")) == []
        t.advance("20s")
        t.feed("views", [view("bob", 61)], partition=0)
        t.advance("10s")  # partition 1 has been idle for 30 s, partition 0 hasn't
        assert counts(t.read("counts")) == [("ann", "12:00:00", 1)]


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
