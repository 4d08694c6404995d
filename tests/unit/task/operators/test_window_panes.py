"""Panes: what a window emits before its end, at it, and after; what happens to messages that are too late."""

from typing import Any

import polars as pl
import pytest

import headrace as hr

Panes = list[tuple[str, int, int]]


def view(member: str | None, ts: int, ms: int | None = 1) -> dict[str, Any]:
    return {"member": member, "ms": ms, "ts": ts}


def panes(t: Any) -> Panes:
    """Kind, index and count of each pane that was emitted."""
    return t.read("out").select("pane", "pane_index", "n").rows()


def windowed(views: hr.Stream, out: hr.Output, shape: Any = None, **options: Any) -> None:
    agg = options.pop("agg", {"n": hr.count()})
    views.window(shape or hr.tumbling("10ms"), key="member", id="w", **options).agg(**agg).send_to(out)


# -- early


def test_every_so_many_messages_however_they_come(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, early=hr.triggers.every(2))
    with app.test() as t:
        t.feed("views", [view("a", 1) for _ in range(5)])
        assert panes(t) == [("early", 0, 2), ("early", 1, 4)]
        t.feed("views", [view("a", 2)])
        assert panes(t)[2:] == [("early", 2, 6)]
        t.end()
        assert panes(t)[3:] == [("on_time", 3, 6)]


def test_a_discarding_window_says_what_is_new(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, early=hr.triggers.every(2), panes="discarding")
    with app.test() as t:
        t.feed("views", [view("a", 1) for _ in range(5)])
        t.end()
        assert panes(t) == [("early", 0, 2), ("early", 1, 2), ("on_time", 2, 1)]


def test_a_discarding_window_without_news_says_nothing_at_its_end(
    app: hr.App, views: hr.Stream, out: hr.Output
) -> None:
    windowed(views, out, early=hr.triggers.every(2), panes="discarding")
    with app.test() as t:
        t.feed("views", [view("a", 1), view("a", 2)])
        t.end()
        assert panes(t) == [("early", 0, 2)]


def test_a_trigger_that_isnt_repeated_fires_once(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, early=hr.triggers.after(2))
    with app.test() as t:
        t.feed("views", [view("a", 1) for _ in range(7)])
        t.end()
        assert panes(t) == [("early", 0, 2), ("on_time", 1, 7)]


def test_full_multiples_of_event_time(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, hr.tumbling("100ms"), early="10ms")
    with app.test() as t:
        t.feed("views", [view("a", 3)])
        t.feed("views", [view("b", 9)])
        assert panes(t) == []
        t.feed("views", [view("b", 11)])
        assert t.read("out")["member"].to_list() == ["a", "b"]
        t.feed("views", [view("b", 35)])
        assert panes(t) == [("early", 0, 1), ("early", 0, 2)]
        t.feed("views", [view("a", 40)])
        assert panes(t)[2:] == [("early", 1, 3)]


def test_only_the_end_counts_when_time_jumps_over_both(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, early="2ms")
    with app.test() as t:
        t.feed("views", [view("a", 1)])
        t.feed("views", [view("a", 50)])
        assert panes(t) == [("on_time", 0, 1)]


# -- late


def test_each_late_message_makes_a_pane(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, allowed_lateness="20ms")
    with app.test() as t:
        t.feed("views", [view("a", 1)])
        t.feed("views", [view("b", 29)])
        t.feed("views", [view("a", 2), view("a", 3)])
        assert panes(t) == [("on_time", 0, 1), ("late", 1, 2), ("late", 2, 3)]


def test_late_messages_in_one_pane_when_the_window_is_over(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, allowed_lateness="20ms", late=hr.triggers.at_close(), panes="discarding")
    with app.test() as t:
        t.feed("views", [view("a", 1), view("b", 15)])
        t.feed("views", [view("a", 2), view("a", 3)])
        assert panes(t) == [("on_time", 0, 1)]
        t.feed("views", [view("b", 30)])
        assert panes(t) == [("on_time", 0, 1), ("late", 1, 2), ("on_time", 0, 1)]


def test_a_window_that_begins_late_has_no_pane_on_time(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, allowed_lateness="20ms")
    with app.test() as t:
        t.feed("views", [view("b", 15)])
        t.feed("views", [view("a", 2)])
        assert panes(t) == [("late", 0, 1)]


@pytest.mark.parametrize(("ts", "too_late"), [(29, False), (30, True)])
def test_a_window_is_over_when_the_allowed_lateness_has_passed(
    ts: int, too_late: bool, app: hr.App, views: hr.Stream, out: hr.Output
) -> None:
    windowed(views, out, allowed_lateness="20ms", late_to=app.output("too-late"))
    with app.test() as t:
        t.feed("views", [view("a", 1)])
        t.feed("views", [view("b", ts)])
        t.feed("views", [view("a", 2, ms=77)])
        assert t.counter("late") == int(too_late)
        assert t.read("too-late").to_dicts() == ([view("a", 2, ms=77)] if too_late else [])


def test_state_goes_when_a_window_is_over(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, allowed_lateness="20ms", early=1)
    with app.test() as t:
        t.feed("views", [view("a", 1), view("b", 2)])
        t.feed("views", [view("a", 29)])
        state = t._container.hosts[0].state
        assert state.entries() == 3
        t.feed("views", [view("a", 30)])
        assert state.entries() == 2


# -- sessions


def test_a_message_between_two_sessions_makes_them_one(app: hr.App, out: hr.Output) -> None:
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts", lateness="1s")
    views.window(hr.session("10ms"), key="member", id="w").agg(n=hr.count()).send_to(out)
    with app.test() as t:
        t.feed("views", [{"member": "a", "ts": 5}, {"member": "a", "ts": 20}])
        t.restart(checkpoint=True)
        t.feed("views", [{"member": "a", "ts": 12}])
        t.end()
        assert t.read("out").rows() == [("a", 5, 30, 3)]


def test_a_message_the_gap_after_begins_a_new_session(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, hr.session("10ms"))
    with app.test() as t:
        t.feed("views", [view("a", 0), view("a", 9), view("a", 19)])
        t.end()
        assert t.read("out").rows() == [("a", 0, 19, 2), ("a", 19, 29, 1)]


def test_a_late_message_can_reopen_a_session(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, hr.session("10ms"), allowed_lateness="50ms")
    with app.test() as t:
        t.feed("views", [view("a", 0), view("b", 12)])
        t.feed("views", [view("a", 8)])
        t.feed("views", [view("b", 18)])
        read = t.read("out").filter(member="a")
        assert read.select("window_end", "pane", "pane_index", "n").rows() == [
            (10, "on_time", 0, 1),
            (18, "on_time", 1, 2),
        ]


# -- downstream


def test_a_window_downstream_of_late_panes_has_them_in_time(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    small = views.window(
        hr.tumbling("10ms"), key="member", id="small", allowed_lateness="20ms", panes="discarding"
    ).agg(n=hr.count())
    small.window(hr.tumbling("20ms"), key="member", id="large").agg(n=hr.sum("n")).send_to(out)
    with app.test() as t:
        t.feed("views", [view("a", 1), view("b", 25)])
        t.feed("views", [view("a", 2)])
        t.end()
        assert t.read("out").filter(member="a")["n"].to_list() == [2]
        assert t.counter("late") == 0


# -- the user's functions


def test_a_fold_that_raises_says_which_and_where(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    total = hr.aggregates.fold(0, lambda so_far, row: so_far + row["ms"], dtype=pl.Int64)
    windowed(views, out, agg={"n": total})
    with app.test() as t:
        says = r"the fold 'n' of operator 'w' .*raised TypeError at .*test_window_panes.py:\d+"
        with pytest.raises(hr.errors.UserFunctionError, match=says) as caught:
            t.feed("views", [view("a", 1), view("a", 2, ms=None)])
        assert "views[0], offset 0" in str(caught.value)


def test_a_fold_that_returns_something_else_than_it_said(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    windowed(views, out, agg={"n": hr.aggregates.fold(0, lambda so_far, row: "much", dtype=pl.Int64)})
    with app.test() as t, pytest.raises(hr.errors.UserFunctionError, match="what it returned doesn't fit dtype=Int64"):
        t.feed("views", [view("a", 1)])


def test_a_fold_begins_with_its_own_copy(app: hr.App, views: hr.Stream, out: hr.Output) -> None:
    def add(so_far: list[int], row: dict[str, Any]) -> list[int]:
        so_far.append(row["ts"])
        return so_far

    windowed(views, out, agg={"seen": hr.aggregates.fold([], add, dtype=pl.List(pl.Int64))})
    with app.test() as t:
        t.feed("views", [view("a", 1), view("b", 2), view("a", 3)])
        t.end()
        assert t.read("out").select("member", "seen").rows() == [("a", [1, 3]), ("b", [2])]


def test_a_multiple_counts_after_the_earliest_new_message(app: hr.App, out: hr.Output) -> None:
    late = app.input("late", {"member": pl.String, "ts": pl.Int64}, event_time="ts", lateness="1s")
    late.window(hr.tumbling("1h"), key="member", id="w", early=hr.triggers.every("1s")).agg(n=hr.count()).send_to(out)
    with app.test() as t:
        seen = []
        for ts in (1500, 3502, 4000, 5002, 6002):
            t.feed("late", [{"member": "a", "ts": ts}])
            seen.append(t.read("out").height)
        # The watermark of 2501 is past 2 s, which is after 1500. That of 4001 is not past 5 s, which is after 4000.
        assert seen == [0, 1, 1, 1, 2]
        assert t.read("out")["n"].to_list() == [2, 5]
