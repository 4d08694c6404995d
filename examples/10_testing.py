"""10. Testing: ``app.test()`` runs the app in memory, on a clock that only the test moves.

No files, no Spark, no sleeping: feed messages, let time pass, restart, look at outputs. The functions below are
ordinary pytest tests; running this file runs them.

It prints::

    4 passed
"""

import sys

import polars as pl
import pytest

import headrace as hr


def declare() -> hr.App:
    app = hr.App("page-views")
    views = app.input(
        "views",
        {"member": pl.String, "ts": pl.Int64},
        event_time="ts",
        lateness="5s",
        idle_timeout="30s",
        on_error="skip",
    )
    counts = (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling("10s"), key="member", id="per-10s")
        .agg(views=hr.count())
    )
    counts.send_to(app.output("counts"))
    return app


def counts(rows: pl.DataFrame) -> list[tuple[str, int, int]]:
    return rows.select("member", "window_start", "views").sort("window_start", "member").rows()


def test_a_window_leaves_once_event_time_has_passed_it() -> None:
    with declare().test() as t:
        t.feed("views", [{"member": "ann", "ts": 1_000}, {"member": "ann", "ts": 14_999}])
        assert counts(t.read("counts")) == []
        t.feed("views", [{"member": "bob", "ts": 15_000}])
        assert counts(t.read("counts")) == [("ann", 0, 1)]


def test_what_comes_too_late_is_counted() -> None:
    with declare().test() as t:
        t.feed("views", [{"member": "ann", "ts": 60_000}])
        t.feed("views", [{"member": "ann", "ts": 1_000}])
        t.end()
        assert counts(t.read("counts")) == [("ann", 60_000, 1)]
        assert t.counter("late") == 1


def test_a_restart_loses_and_repeats_nothing() -> None:
    with declare().test() as t:
        t.feed("views", [{"member": "ann", "ts": 1_000}])
        t.restart(checkpoint=True)
        t.feed("views", [{"member": "ann", "ts": 2_000}])
        t.restart()  # as after kill -9: the last message is read again
        t.end()
        assert counts(t.read("counts")) == [("ann", 0, 2)]


def test_a_silent_partition_holds_nobody_back_for_long() -> None:
    with declare().test(partitions=2) as t:
        t.feed("views", [{"member": "ann", "ts": 1_000}, {"member": "ann", "ts": 60_000}], partition=0)
        assert counts(t.read("counts")) == []
        t.advance(20_000)
        t.feed("views", [{"member": "bob", "ts": 61_000}], partition=0)
        t.advance(10_000)  # partition 1 has said nothing for 30 s; partition 0 has
        assert counts(t.read("counts")) == [("ann", 0, 1)]


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
