"""Shapes, triggers and the user's aggregates: what can be said of a window, and what is refused and how."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

import headrace as hr

COUNT = {"n": hr.count()}


def plain(app: hr.App, shape: Any = None, **options: Any) -> hr.Stream:
    """A window over an input with an event time."""
    source = app.input("in", {"k": pl.String, "v": pl.Int64, "at": pl.Int64}, event_time="at")
    given = {"key": "k", "agg": COUNT, "id": "w"} | options
    return source.window(hr.tumbling("10s") if shape is None else shape, **given)


# -- columns


def test_panes_are_marked_where_there_can_be_several(app: hr.App) -> None:
    marked = plain(app, early=hr.every(10))
    assert list(marked.schema.columns) == ["k", "window_start", "window_end", "pane", "pane_index", "n"]
    assert (marked.schema.columns["pane"], marked.schema.columns["pane_index"]) == (pl.String, pl.Int64)


@pytest.mark.parametrize("shape", [hr.count_window(10), hr.global_window()])
def test_windows_without_bounds_have_no_columns_for_them(app: hr.App, shape: Any) -> None:
    assert list(plain(app, shape).schema.columns) == ["k", "n"]


def test_all_messages_of_a_task_together(app: hr.App) -> None:
    assert list(plain(app, key=None).schema.columns) == ["window_start", "window_end", "n"]
    assert list(plain(hr.App("other"), key=()).schema.columns) == ["window_start", "window_end", "n"]


def test_results_of_a_window_without_bounds_have_no_time(app: hr.App) -> None:
    counts = plain(app, hr.count_window(10), agg={"n": hr.count(), "at": hr.max("at")})
    with pytest.raises(hr.DeclarationError, match=r"'at' was aggregated at .*test_windows\.py"):
        counts.window(hr.tumbling("1m"), key="k", agg=COUNT, id="again")
    again = counts.window(hr.tumbling("1m"), key="k", agg=COUNT, id="again", time="at")
    assert again.event_time is not None


@pytest.mark.parametrize(
    ("aggregate", "dtype"),
    [
        (hr.first("v"), pl.Int64),
        (hr.last("k"), pl.String),
        (hr.top(3, "k", by="v"), pl.List(pl.String)),
        (hr.top(3, "v"), pl.List(pl.Int64)),
        (hr.distinct("k"), pl.Int64),
        (hr.distinct("k", approximate=True), pl.Int64),
        (hr.fold(0, lambda so_far, row: so_far, dtype=pl.Int8), pl.Int8),
        (hr.fold({}, lambda so_far, row: so_far, dtype=pl.Struct({"a": pl.Int64})), pl.Struct({"a": pl.Int64})),
        (hr.reduce(max, "v"), pl.Int64),
        (hr.reduce(max, "v", dtype=pl.Float64), pl.Float64),
    ],
)
def test_what_aggregates_yield(app: hr.App, aggregate: hr.Aggregate, dtype: Any) -> None:
    assert plain(app, agg={"result": aggregate}).schema.columns["result"] == dtype


# -- triggers


def test_numbers_and_durations_stand_for_every() -> None:
    assert hr.any_of(100, "10s", timedelta(seconds=3)) == hr.any_of(hr.every(100), hr.every("10s"), hr.every("3s"))


def test_all_of_takes_every_pair_of_alternatives() -> None:
    both = hr.all_of(hr.any_of(hr.after(3), hr.every(10)), hr.since_first("1s"))
    assert [(a.repeats, a.count, len(a.deadlines)) for a in both.alternatives] == [(False, 3, 1), (False, 10, 1)]


# -- what is refused

WRONG: list[tuple[Callable[[hr.App], object], str]] = [
    (lambda app: hr.hopping("10s", "11s"), "hopping: a window of 10s every 11s would leave out what comes between two"),
    (lambda app: hr.hopping("10s", 0), "every: 0 is below 1 ms"),
    (lambda app: hr.session(0), "session: gap: 0 is below 1 ms"),
    (lambda app: hr.session("-1s"), "gap: '-1s' is below 1 ms"),
    (lambda app: hr.sliding(0), "sliding: size: 0 is below 1 ms"),
    (lambda app: hr.count_window(0), "count_window: size: a window of 0 messages holds nothing"),
    (lambda app: hr.count_window(10, 0), "every: a window of 0 messages holds nothing"),
    (lambda app: hr.hopping("10h", "1ms"), "each message would be in 36,000,000 windows"),
    (lambda app: hr.count_window(2, 3), "the last 2 of every 3 messages would leave out the others"),
    (lambda app: hr.count_window("10"), "size: '10' is no number of messages"),  # type: ignore[arg-type]
    (lambda app: hr.after(0), "after: 0 messages can't be waited for"),
    (lambda app: hr.every("0s"), "every: the duration: '0s' is below 1 ms"),
    (lambda app: hr.every("10s", "wall"), "every: time='wall' is no clock"),  # type: ignore[arg-type]
    (lambda app: hr.any_of(hr.after(1)), "any_of: one trigger alone needs no combining"),
    (lambda app: hr.any_of(hr.after(1), 2.5), "any_of: float 2.5 is no trigger"),  # type: ignore[arg-type]
    (
        lambda app: hr.all_of(hr.since_first("1s"), hr.since_first("1s", time="processing")),
        "all_of: event time and processing time can't be waited for together",
    ),
    (lambda app: plain(app, early="soon"), "the duration: 'soon' is not a duration"),
    (lambda app: plain(app, late=1), "late= has no meaning without allowed_lateness="),
    (lambda app: plain(app, allowed_lateness="-1s"), "allowed_lateness: '-1s' is below 0 ms"),
    (lambda app: plain(app, panes="discarding"), "has no meaning for a window that emits one result"),
    (lambda app: plain(app, early=1, panes="all"), "panes='all' is unknown"),
    (lambda app: plain(app, hr.sliding("1s"), early=1), "a sliding window ends with its message"),
    (lambda app: plain(app, hr.count_window(2), early=1), "a count window ends by counting alone"),
    (lambda app: plain(app, hr.count_window(2), time="processing"), "a count window ends by counting alone"),
    (lambda app: plain(app, hr.global_window(), allowed_lateness="1s"), "nothing is late for a window that never ends"),
    (lambda app: plain(app, time="processing", allowed_lateness="1s"), "no message is late in processing time"),
    (lambda app: plain(app, time="nope"), "there is no column 'nope'"),
    (lambda app: plain(app, time="k"), "the event time column 'k' is String"),
    (lambda app: plain(app, late_to="late"), "late_to= takes an output, not str late"),
    (
        lambda app: plain(app, hr.global_window(), late_to=app.output("late")),
        "no message is too late for such a window",
    ),
    (lambda app: plain(app, agg={"pane": hr.count()}, early=1), "'pane' has the name of a window's own column"),
    (
        lambda app: plain(app, hr.session("1s"), agg={"n": hr.fold(0, lambda a, b: a, dtype=pl.Int64)}),
        "agg 'n': a late message may join two sessions",
    ),
    (
        lambda app: app.input("untimed", {"k": pl.String}).window(
            hr.global_window(), key="k", agg=COUNT, id="w", early="10s"
        ),
        "the trigger 'every 10s' waits for event time, and no input before it declares one",
    ),
    (lambda app: app.input("untimed").window(hr.session("1s"), key="key", agg=COUNT, id="w"), "needs an event time"),
    (lambda app: hr.top(0, "v"), "top: 0 is no number of values"),
    (lambda app: hr.fold(0, 3, dtype=pl.Int64), "fold: step must be a function"),  # type: ignore[arg-type]
    (lambda app: hr.fold(0, max, dtype=int), "fold: dtype=<class 'int'> says nothing"),  # type: ignore[arg-type]
    (lambda app: plain(app, agg={"n": hr.top(2, "k", by=pl.lit([1]))}), "there is no order of List"),
    (lambda app: plain(app, agg={"n": hr.distinct(pl.concat_list("v"))}), "there is no distinct of List"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_errors_say_what_is_wrong_and_end_with_the_users_line(
    declare: Callable[[hr.App], object], message: str
) -> None:
    with pytest.raises(hr.DeclarationError) as caught:
        declare(hr.App("wrong"))
    assert message in caught.value.message
    assert "\n  at " in caught.value.message
    assert "test_windows.py" in caught.value.message
    assert caught.value.hint or "is below" in message
