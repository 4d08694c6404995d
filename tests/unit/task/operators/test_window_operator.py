"""Tumbling windows: which window a message belongs to, when a window emits, what is late."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

import headrace as hr

COUNT = {"n": hr.count()}


def view(member: str | None, ts: int | None) -> dict[str, Any]:
    return {"member": member, "ms": 1, "ts": ts}


def per_10ms(views: hr.Stream, out: hr.Output, **options: Any) -> None:
    views.window(hr.tumbling("10ms"), key="member", id="per-10ms", **options).agg(**COUNT).send_to(out)


def starts(t: Any, output: str = "out") -> list[tuple[Any, ...]]:
    return t.read(output).select("member", "window_start", "n").rows()


def test_a_window_leaves_when_time_reaches_its_end(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", 3), view("a", 9)])
        assert starts(t) == []
        t.feed("views", [view("b", 10)])
        assert t.read("out").to_dicts() == [{"member": "a", "window_start": 0, "window_end": 10, "n": 2}]


def test_results_come_in_the_order_of_window_and_key(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("b", 15), view("b", 3), view(None, 4), view("a", 12), view("a", 1)])
        t.end()
        assert starts(t) == [(None, 0, 1), ("a", 0, 1), ("b", 0, 1), ("a", 10, 1), ("b", 10, 1)]


def test_a_null_key_is_a_key_of_its_own(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view(None, 1), view("", 1), view(None, 2)])
        t.end()
        assert starts(t) == [(None, 0, 2), ("", 0, 1)]


def test_several_keys(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    views.window(hr.tumbling("10ms"), key=["member", "ms"], id="w").agg(**COUNT).send_to(out)
    with app.test() as t:
        t.feed("views", [view("a", 1), view("a", 2), {"member": "a", "ms": None, "ts": 3}])
        t.end()
        assert t.read("out").select("member", "ms", "n").rows() == [("a", None, 1), ("a", 1, 2)]


def test_windows_are_aligned_to_the_epoch_and_the_offset(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    shape = hr.tumbling("10ms", offset="3ms")
    views.window(shape, key="member", id="w").agg(**COUNT).send_to(out)
    with app.test() as t:
        t.feed("views", [view("a", 2), view("a", 3), view("a", 12), view("a", 13), view("a", -8)])
        t.end()
        assert starts(t) == [("a", -17, 1), ("a", -7, 1), ("a", 3, 2), ("a", 13, 1)]


def test_times_before_the_epoch(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", -25), view("a", -20), view("a", -1), view("a", 0)])
        assert starts(t) == [("a", -30, 1), ("a", -20, 1), ("a", -10, 1)]
        assert t.watermark == 0


# -- late messages


def test_late_messages_are_counted_and_dropped(app: hr.App, out: hr.Output) -> None:
    views = app.input("views", {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}, event_time="ts", lateness="5ms")
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", 14)])
        t.feed("views", [view("a", 8)])
        assert (starts(t), t.counter("late")) == ([], 0)
        t.feed("views", [view("a", 15)])
        assert starts(t) == [("a", 0, 1)]
        t.feed("views", [view("a", 9), view("b", 0), view("a", 10)])
        assert (starts(t), t.counter("late")) == ([("a", 0, 1)], 2)
        t.end()
        assert starts(t) == [("a", 0, 1), ("a", 10, 3)]


def test_a_message_older_than_the_watermark_is_not_late_while_its_window_is_open(
    app: hr.App, views: hr.Stream, out: hr.Output
) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", 19)])
        t.feed("views", [view("a", 11)])
        t.end()
        assert (starts(t), t.counter("late")) == ([("a", 10, 2)], 0)


def test_what_is_late_stays_late_after_a_restart(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", 5), view("a", 25)])
        t.restart(checkpoint=True)
        t.feed("views", [view("a", 6), view("a", 26)])
        t.end()
        assert (starts(t), t.counter("late")) == ([("a", 0, 1), ("a", 20, 2)], 1)


# -- the end


def test_the_end_fires_what_is_open_without_any_intermediate_stream(
    app: hr.App, keyed_views: hr.Stream, out: hr.Output
) -> None:
    per_10ms(keyed_views, out)
    with app.test(2) as t:
        t.feed("views", [view("a", 5), view("b", 1005)])
        assert len(t.plan.stages) == 1
        t.end()
        assert (t.ended, sorted(starts(t))) == (True, [("a", 0, 1), ("b", 1000, 1)])


def test_the_end_of_nothing(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views.partition_by("member", id="by-member"), out)
    with app.test() as t:
        t.end()
        assert (t.ended, t.read("out").columns) == (True, ["member", "window_start", "window_end", "n"])


def test_an_ended_app_that_is_restarted_says_nothing_twice(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views, out)
    with app.test() as t:
        t.feed("views", [view("a", 5)])
        t.end()
        t.restart()
        assert (t.ended, starts(t)) == (True, [("a", 0, 1)])


def test_an_idle_partition_holds_no_window_back(app: hr.App, out: hr.Output) -> None:
    columns = {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}
    views = app.input("views", columns, event_time="ts", idle_timeout="2s")
    per_10ms(views.partition_by("member", id="by-member", partitions=1), out)
    with app.test(2) as t:
        t.feed("views", [view("a", 5), view("a", 25)], partition=0)
        assert starts(t) == []
        t.advance("1500ms")
        t.feed("views", [view("a", 26)], partition=0)
        t.advance("600ms")
        assert starts(t) == [("a", 0, 1)]


def test_an_input_that_is_idle_when_another_ends_waits_quietly(app: hr.App, out: hr.Output) -> None:
    columns = {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}
    quiet = app.input("quiet", columns, event_time="ts", idle_timeout="2s")
    busy = app.input("busy", columns, event_time="ts", idle_timeout="2s")
    per_10ms(quiet.merge(busy), out)
    with app.test() as t:
        t.feed("busy", [view("a", 5), view("a", 25)])
        t.end("busy")
        t.advance("5s")
        assert not t.ended
        t.feed("quiet", [view("b", 45)])
        t.end("quiet")
        assert (t.ended, starts(t)) == (True, [("a", 0, 1), ("a", 20, 1), ("b", 40, 1)])


# -- event time in other columns and types


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_datetimes(unit: Any, zone: str | None, app: hr.App, out: hr.Output) -> None:
    at = pl.Datetime(unit, zone)
    views = app.input("views", {"member": pl.String, "at": at}, event_time="at")
    views.window(hr.tumbling("1h"), key="member", id="hourly").agg(**COUNT).send_to(out)
    noon = datetime(2024, 3, 31, 12, tzinfo=ZoneInfo(zone) if zone else None)
    times = [noon, noon + timedelta(minutes=59, milliseconds=999), noon + timedelta(hours=1)]
    with app.test() as t:
        t.feed("views", pl.DataFrame({"member": ["a"] * 3, "at": times}, schema_overrides={"at": at}))
        assert t.read("out").to_dicts() == [
            {"member": "a", "window_start": noon, "window_end": noon + timedelta(hours=1), "n": 2}
        ]
        assert t.read("out").schema["window_start"] == at
        reached = noon if zone else noon.replace(tzinfo=UTC)
        assert t.watermark == round(reached.timestamp() * 1000) + 3_600_000


def test_a_moment_just_before_the_epoch_is_in_the_window_before_it(app: hr.App, out: hr.Output) -> None:
    views = app.input("views", {"member": pl.String, "at": pl.Datetime("us")}, event_time="at")
    views.window(hr.tumbling("1s"), key="member", id="w").agg(**COUNT).send_to(out)
    epoch = datetime(1970, 1, 1)
    with app.test() as t:
        t.feed("views", [{"member": "a", "at": epoch - timedelta(microseconds=1)}])
        t.end()
        assert t.read("out")["window_start"].to_list() == [epoch - timedelta(seconds=1)]


def test_another_time_column_than_the_inputs(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    per_10ms(views.with_columns(at=pl.col("ts") + 100), out, time="at")
    with app.test() as t:
        t.feed("views", [view("a", 5)])
        t.end()
        assert starts(t) == [("a", 100, 1)]


@pytest.mark.parametrize("first", [[], [view("a", 100)]])
def test_a_null_time_is_an_error_not_a_loss(
    app: hr.App, views: hr.Stream, out: hr.Output, first: list[dict[str, Any]]
) -> None:
    half = pl.when(pl.col("member") != "b").then(pl.col("ts"))
    per_10ms(views.with_columns(at=half), out, time="at")
    with app.test() as t:
        t.feed("views", pl.DataFrame(first, {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}))
        says = r"'per-10ms' got messages without an event time .*: 'at' is null \(in .*views\[0\], offsets 1 to 1\)"
        with pytest.raises(hr.errors.DataError, match=says):
            t.feed("views", [view("a", 101), view("b", 102)])


# -- windows over windows


def test_a_window_over_a_window(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    small = views.window(hr.tumbling("10ms"), key="member", id="small").agg(**COUNT)
    small.send_to(app.output("small-out"))
    small.window(hr.tumbling("30ms"), key="member", id="large").agg(n=hr.sum("n"), windows=hr.count()).send_to(out)
    with app.test() as t:
        t.feed("views", [view("a", 1), view("a", 2), view("a", 29)])
        t.feed("views", [view("a", 30)])
        assert starts(t, "small-out") == [("a", 0, 2), ("a", 20, 1)]
        assert t.read("out").rows() == [("a", 0, 30, 3, 2)]
        t.end()
        assert t.read("out").rows() == [("a", 0, 30, 3, 2), ("a", 30, 60, 1, 1)]
        assert t.counter("late") == 0


def test_a_window_over_a_window_of_another_stage(app: hr.App, keyed_views: hr.Stream, out: hr.Output) -> None:
    small = keyed_views.window(hr.tumbling("10ms"), key=["member", "ms"], id="small").agg(**COUNT)
    by_member = small.partition_by("member", id="by-member", partitions=2)
    by_member.window(hr.tumbling("20ms"), key="member", id="large").agg(n=hr.sum("n")).send_to(out)
    with app.test(2) as t:
        t.feed("views", [view("a", 1), view("a", 5), view("a", 12), view("d", 19)])
        t.feed("views", [view("a", 41), view("d", 40)])
        assert sorted(starts(t)) == [("a", 0, 3), ("d", 0, 1)]
        t.end()
        assert sorted(starts(t)) == [("a", 0, 3), ("a", 40, 1), ("d", 0, 1), ("d", 40, 1)]
        assert t.counter("late") == 0
