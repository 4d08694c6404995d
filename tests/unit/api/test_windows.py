"""Shapes, triggers and the user's aggregates: how windows are declared, and which declarations are refused."""

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
    given = {"key": "k", "id": "w"} | options
    agg = given.pop("agg", COUNT)
    return source.window(hr.tumbling("10s") if shape is None else shape, **given).agg(**agg)


# -- columns


def test_panes_are_marked_where_there_can_be_several(app: hr.App) -> None:
    marked = plain(app, early=hr.triggers.every(10))
    assert list(marked.schema.columns) == ["k", "window_start", "window_end", "pane", "pane_index", "n"]
    assert (marked.schema.columns["pane"], marked.schema.columns["pane_index"]) == (pl.String, pl.Int64)


@pytest.mark.parametrize("shape", [hr.windows.count(10), hr.windows.global_()])
def test_windows_without_bounds_have_no_columns_for_them(app: hr.App, shape: Any) -> None:
    assert list(plain(app, shape).schema.columns) == ["k", "n"]


def test_all_messages_of_a_task_together(app: hr.App) -> None:
    assert list(plain(app, key=None).schema.columns) == ["window_start", "window_end", "n"]


def test_results_of_a_window_without_bounds_have_no_time(app: hr.App) -> None:
    counts = plain(app, hr.windows.count(10), agg={"n": hr.count(), "at": hr.max("at")})
    with pytest.raises(hr.errors.DeclarationError, match=r"'at' was aggregated at .*test_windows\.py"):
        counts.window(hr.tumbling("1m"), key="k", id="again").agg(**COUNT)
    again = counts.window(hr.tumbling("1m"), key="k", id="again", time="at").agg(**COUNT)
    assert again.event_time is not None


@pytest.mark.parametrize(
    ("aggregate", "dtype"),
    [
        (hr.aggregates.first("v"), pl.Int64),
        (hr.aggregates.last("k"), pl.String),
        (hr.aggregates.top_k("k", 3, by="v"), pl.List(pl.String)),
        (hr.aggregates.top_k("v", 3), pl.List(pl.Int64)),
        (hr.aggregates.n_unique("k"), pl.Int64),
        (hr.aggregates.approx_n_unique("k"), pl.Int64),
        (hr.aggregates.fold(0, lambda so_far, row: so_far, dtype=pl.Int8), pl.Int8),
        (
            hr.aggregates.fold({}, lambda so_far, row: so_far, dtype=pl.Struct({"a": pl.Int64})),
            pl.Struct({"a": pl.Int64}),
        ),
        (hr.aggregates.reduce(max, "v"), pl.Int64),
        (hr.aggregates.reduce(max, "v", dtype=pl.Float64), pl.Float64),
    ],
)
def test_what_aggregates_yield(app: hr.App, aggregate: hr.aggregates.Aggregate, dtype: Any) -> None:
    assert plain(app, agg={"result": aggregate}).schema.columns["result"] == dtype


# -- triggers


def test_numbers_and_durations_stand_for_every() -> None:
    assert hr.triggers.any_of(100, "10s", timedelta(seconds=3)) == hr.triggers.any_of(
        hr.triggers.every(100), hr.triggers.every("10s"), hr.triggers.every("3s")
    )


def test_all_of_takes_every_pair_of_alternatives() -> None:
    both = hr.triggers.all_of(
        hr.triggers.any_of(hr.triggers.after(3), hr.triggers.every(10)), hr.triggers.since_first("1s")
    )
    assert [(a.repeats, a.count, len(a.deadlines)) for a in both.alternatives] == [(False, 3, 1), (False, 10, 1)]


# -- what is refused

WRONG: list[tuple[Callable[[hr.App], object], str]] = [
    (
        lambda app: hr.hopping("10s", "11s"),
        "hopping: a window of 10s every 11s would lose messages between two windows",
    ),
    (lambda app: hr.hopping("10s", "0s"), "every: 0 is below 1 ms"),
    (lambda app: hr.session("0s"), "session: gap: 0 is below 1 ms"),
    (lambda app: hr.session("-1s"), "gap: '-1s' is below 1 ms"),
    (lambda app: hr.windows.sliding("0s"), "sliding: size: 0 is below 1 ms"),
    (lambda app: hr.windows.count(0), "windows.count: size: a window can't have 0 messages"),
    (lambda app: hr.windows.count(10, 0), "every: a window can't have 0 messages"),
    (lambda app: hr.hopping("10h", "1ms"), "each message would be in 36,000,000 windows"),
    (lambda app: hr.windows.count(2, 3), "the last 2 of every 3 messages would lose the others"),
    (lambda app: hr.windows.count("10"), "size: '10' is not a number of messages"),  # type: ignore[arg-type]
    (lambda app: hr.triggers.after(0), "after: 0 messages can't be waited for"),
    (lambda app: hr.triggers.every("0s"), "every: the duration: '0s' is below 1 ms"),
    (lambda app: hr.triggers.every("10s", "wall"), "every: time='wall' is no clock"),  # type: ignore[arg-type]
    (lambda app: hr.triggers.any_of(hr.triggers.after(1)), "any_of: one trigger alone needs no combining"),
    (lambda app: hr.triggers.any_of(hr.triggers.after(1), 2.5), "any_of: float 2.5 is no trigger"),  # type: ignore[arg-type]
    (
        lambda app: hr.triggers.all_of(hr.triggers.since_first("1s"), hr.triggers.since_first("1s", time="processing")),
        "all_of: event time and processing time can't be combined",
    ),
    (lambda app: plain(app, early="soon"), "the duration: 'soon' isn't a duration"),
    (lambda app: plain(app, late=1), "late= needs allowed_lateness="),
    (lambda app: plain(app, allowed_lateness="-1s"), "allowed_lateness: '-1s' is below 0 ms"),
    (lambda app: plain(app, panes="discarding"), "is not for a window that emits only one result"),
    (lambda app: plain(app, early=1, panes="all"), "panes='all' is not one of the choices"),
    (lambda app: plain(app, hr.windows.sliding("1s"), early=1), "a sliding window closes with its message"),
    (lambda app: plain(app, hr.windows.count(2), early=1), "a count window closes on its count alone"),
    (lambda app: plain(app, hr.windows.count(2), time="processing"), "a count window closes on its count alone"),
    (
        lambda app: plain(app, hr.windows.global_(), allowed_lateness="1s"),
        "nothing is late for a window that never ends",
    ),
    (lambda app: plain(app, time="processing", allowed_lateness="1s"), "no message is late in processing time"),
    (lambda app: plain(app, time="nope"), "there is no column 'nope'"),
    (lambda app: plain(app, time="k"), "the event time column 'k' is String"),
    (lambda app: plain(app, late_to=7), "late_to= takes an output, not int 7"),
    (
        lambda app: plain(app, hr.windows.global_(), late_to=app.output("late")),
        "no message is too late for such a window",
    ),
    (lambda app: plain(app, agg={"pane": hr.count()}, early=1), "'pane' has the name of a window's own column"),
    (
        lambda app: plain(app, hr.session("1s"), agg={"n": hr.aggregates.fold(0, lambda a, b: a, dtype=pl.Int64)}),
        "agg: 'n': a late message may join two sessions",
    ),
    (
        lambda app: (
            app.input("untimed", {"k": pl.String})
            .window(hr.windows.global_(), key="k", id="w", early="10s")
            .agg(**COUNT)
        ),
        "the trigger 'every 10s' waits for event time, and no input before it declares one",
    ),
    (lambda app: app.input("untimed").window(hr.session("1s"), key="key", id="w").agg(**COUNT), "needs an event time"),
    (lambda app: hr.aggregates.top_k("v", 0), "top_k: 0 is not a number of values"),
    (lambda app: hr.aggregates.fold(0, 3, dtype=pl.Int64), "fold: step must be a function"),  # type: ignore[arg-type]
    (lambda app: hr.aggregates.fold(0, max, dtype=int), "fold: dtype=<class 'int'> says nothing"),  # type: ignore[arg-type]
    (
        lambda app: plain(app, agg={"n": hr.aggregates.top_k("k", 2, by=pl.lit([1]))}),
        "so top_k can't use it",
    ),
    (lambda app: plain(app, agg={"n": hr.aggregates.n_unique(pl.concat_list("v"))}), "n_unique doesn't work for List"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_errors_say_what_is_wrong_and_end_with_the_users_line(
    declare: Callable[[hr.App], object], message: str
) -> None:
    with pytest.raises(hr.errors.DeclarationError) as caught:
        declare(hr.App("wrong"))
    assert message in caught.value.message
    assert "\n  at " in caught.value.message
    assert "test_windows.py" in caught.value.message
    assert caught.value.hint or "is below" in message
