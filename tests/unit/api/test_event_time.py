"""Event time follows its column; where the column is lost, the error of a later window says where."""

from collections.abc import Callable
from datetime import date, datetime

import polars as pl
import pytest

import headrace as hr
from headrace.api.operators.spec import EventTime

TS = EventTime("ts")


def count(stream: hr.Stream, time: str | None = None) -> hr.Stream:
    return stream.window(hr.tumbling("1s"), key="member", id="w", time=time).agg(n=hr.count())


KEEPS: list[Callable[[hr.Stream], hr.Stream]] = [
    lambda s: s.filter(pl.col("ms") > 1),
    lambda s: s.select("member", "ts"),
    lambda s: s.drop("ms"),
    lambda s: s.rename({"ms": "millis"}),
    lambda s: s.with_columns(x=pl.col("ts") + 1),
    lambda s: s.partition_by("member", id="p"),
    lambda s: s.broadcast(id="b"),
    lambda s: s.merge(s.filter(pl.col("ms") > 1)),
]


@pytest.mark.parametrize("step", KEEPS)
def test_it_stays(views: hr.Stream, step: Callable[[hr.Stream], hr.Stream]) -> None:
    assert step(views).event_time == TS
    assert count(step(hr.App("again").input("v", views.schema, event_time="ts"))).event_time is not None


LOSES: list[tuple[Callable[[hr.Stream], hr.Stream], str, str]] = [
    (lambda s: s.select("member", t=pl.col("ts") + 1), "was dropped", "select"),
    (lambda s: s.drop("ts"), "was dropped", "drop"),
    (lambda s: s.with_columns(ts=pl.col("ts") * 1000), "was recomputed", "with_columns"),
    (lambda s: s.map(dict, schema={"member": pl.String}), "was dropped", "map"),
    (lambda s: s.map(dict, schema={"member": pl.String, "ts": pl.String}), "was turned into String", "map"),
    (lambda s: s.merge(s.with_columns(ts=pl.col("ts") * 1)), "was recomputed", "with_columns"),
]


@pytest.mark.parametrize(("step", "how", "operator"), LOSES)
def test_it_is_lost(views: hr.Stream, step: Callable[[hr.Stream], hr.Stream], how: str, operator: str) -> None:
    after = step(views).filter(pl.col("member") != "")
    assert after.event_time is None
    with pytest.raises(hr.errors.DeclarationError) as caught:
        count(after)
    message, hint = caught.value.message, caught.value.hint
    assert message.startswith(f"window: window needs an event time; 'ts' {how} at ")
    assert f"by {operator}(...)\n  at " in message
    assert hint == "keep it, or name it: window(..., time='col')"


@pytest.mark.parametrize("step", [lambda s: s.rename({"ts": "t"}), lambda s: s.select("member", t="ts")])
def test_it_keeps_its_column_under_another_name(views: hr.Stream, step: Callable[[hr.Stream], hr.Stream]) -> None:
    after = step(views)
    assert after.event_time is not None and after.event_time.column == "t"
    assert count(after).schema.columns["window_end"] == pl.Int64


def test_a_window_can_be_given_the_column(views: hr.Stream) -> None:
    assert count(views.rename({"ts": "t"}), time="t").event_time == EventTime("window_end", -1)


def test_but_it_must_hold_a_time(views: hr.Stream) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="the event time column 'url' is String"):
        count(views.drop("ts"), time="url")


def test_without_any_declared_there_is_no_watermark_to_wait_for(app: hr.App, views: hr.Stream) -> None:
    untimed = app.input("untimed", views.schema)
    with pytest.raises(hr.errors.DeclarationError, match="no input before it declares one") as caught:
        count(untimed, time="ts")
    assert "event_time=" in str(caught.value.hint)


def test_merged_with_an_untimed_flow_there_is_none(app: hr.App, views: hr.Stream) -> None:
    mixed = views.merge(app.input("untimed", views.schema))
    assert mixed.event_time is None
    with pytest.raises(hr.errors.DeclarationError, match=r"'ts' was mixed with other event times at .* by merge"):
        count(mixed)


def test_dates_are_read_as_the_beginnings_of_their_days(app: hr.App) -> None:
    with pytest.raises(hr.errors.DeclarationError, match="'day' is Date") as caught:
        app.input("days", {"member": pl.String, "day": pl.Date}, event_time="day")
    assert 'declare the column as pl.Datetime("ms")' in str(caught.value.hint)
    days = app.input("days", {"member": pl.String, "day": pl.Datetime("ms")}, event_time="day")
    days.window(hr.tumbling("1d"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
    with app.test() as t:
        t.feed("days", pl.DataFrame({"member": ["ann"], "day": [date(2026, 1, 31)]}))
        t.end()
        assert t.read("out")["window_start"].to_list() == [datetime(2026, 1, 31)]
