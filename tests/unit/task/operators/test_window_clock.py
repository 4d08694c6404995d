"""Processing time: windows and triggers that use the clock."""

from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_oracle import FOREVER, Key, Oracle, Result

import headrace as hr
from drawn import examples

COLUMNS = {"key": pl.String, "at": pl.Int64, "value": pl.Int64}
AGG = {"n": hr.count(), "values": hr.aggregates.implode("value")}


def rows(*values: tuple[Key, int, int]) -> pl.DataFrame:
    return pl.DataFrame(values, COLUMNS, orient="row")


def windowed(shape: Any, **options: Any) -> hr.App:
    app = hr.App("clocked")
    timed: dict[str, Any] = {"event_time": "at", "lateness": "1s"} if options.pop("event_time", False) else {}
    source = app.input("rows", COLUMNS, **timed)
    source.window(shape, key="key", id="w", **options).agg(**AGG).send_to(app.output("out"))
    return app


def test_a_window_ends_when_the_clock_says_so() -> None:
    with windowed(hr.tumbling("10s"), time="processing").test() as t:
        t.clock.advance(100_000)
        t.feed("rows", rows(("a", -77, 1), ("a", 5, 2)))
        t.advance("9s")
        assert t.read("out").height == 0
        t.advance("1s")
        assert t.read("out").rows() == [("a", 100_000, 110_000, 2, [1, 2])]


def test_no_event_time_is_needed_and_none_is_left() -> None:
    app = hr.App("clocked")
    counts = app.input("rows", COLUMNS).window(hr.tumbling("10s"), key="key", id="w", time="processing").agg(**AGG)
    assert (counts.event_time, counts.schema.columns["window_start"]) == (None, pl.Int64)
    says = "'window_end' was taken from the clock at .*test_window_clock.py"
    with pytest.raises(hr.errors.DeclarationError, match=says):
        counts.window(hr.tumbling("1m"), key="key", id="again").agg(m=hr.sum("n"))


def test_a_session_of_the_clock_ends_when_nothing_has_come_for_the_gap() -> None:
    with windowed(hr.session("5s"), time="processing").test() as t:
        t.clock.advance(1_000)
        for value in range(3):
            t.feed("rows", rows(("a", 0, value)))
            t.advance("3s")
        assert t.read("out").height == 0
        t.advance("2s")
        assert t.read("out").rows() == [("a", 1_000, 12_000, 3, [0, 1, 2])]


def test_windows_that_ended_while_the_app_was_down_leave_when_it_is_back() -> None:
    with windowed(hr.hopping("10s", every="5s"), time="processing").test() as t:
        t.clock.advance(100_000)
        t.feed("rows", rows(("a", 0, 1)))
        t.advance("5s")
        assert t.read("out")["window_start"].to_list() == [95_000]
        t.restart(checkpoint=True)
        assert t.read("out", committed=True)["window_start"].to_list() == [95_000]
        t.clock.advance(60_000)
        t.restart()
        assert t.read("out")["window_start"].to_list() == [95_000, 100_000]


def test_a_trigger_of_the_clock_in_a_window_of_event_time() -> None:
    every_second = hr.triggers.every("1s", time="processing")
    with windowed(hr.tumbling("1h"), event_time="at", early=every_second).test() as t:
        t.clock.advance(500)
        t.feed("rows", rows(("a", 1, 1)))
        t.advance("400ms")
        t.feed("rows", rows(("a", 2, 2)))
        assert t.read("out").height == 0
        t.advance("100ms")
        assert t.read("out").select("pane", "pane_index", "n").rows() == [("early", 0, 2)]
        t.advance("5s")
        assert t.read("out").height == 1
        t.end()
        assert t.read("out").select("pane", "pane_index", "n").rows()[1:] == [("on_time", 1, 2)]


# -- against plain Python

keys = st.sampled_from(["a", "b", None])
batches = st.lists(st.tuples(keys, st.integers(-40, 60), st.integers(0, 99)), min_size=1, max_size=6)
steps = st.lists(st.one_of(batches, st.integers(1, 30), st.just(True)), max_size=12)

sizes = st.integers(1, 25)
shapes = st.one_of(
    st.builds(lambda size, offset: hr.tumbling(f"{size}ms", f"{offset}ms"), sizes, st.integers(-30, 30)),
    st.builds(lambda every, more: hr.hopping(f"{every + more}ms", f"{every}ms"), sizes, sizes),
    st.builds(lambda gap: hr.session(f"{gap}ms"), sizes),
)
ms = st.integers(1, 20).map("{}ms".format)


def play(app: hr.App, oracle: Oracle, fed: list[Any], *, by_clock: bool, lateness: int) -> Counter[Result]:
    """Feed the app and the oracle the same; the oracle's time is that of the clock, or of the messages."""
    highest = -(10**6)
    with app.test() as t:
        for step in fed:
            now = t.clock.now_ms()
            if isinstance(step, list):
                oracle.clock(now)
                if by_clock:
                    oracle.advance(now)
                oracle.batch([(key, now if by_clock else at, value) for key, at, value in step])
                t.feed("rows", rows(*step))
                highest = max(highest, *(at for _, at, _ in step))
                if not by_clock:
                    oracle.advance(highest - lateness)
            elif step is True:
                t.restart(checkpoint=True)
            else:
                t.advance(f"{step}ms")
            # the clock may have advanced while the app settled
            oracle.clock(t.clock.now_ms())
            if by_clock:
                oracle.advance(t.clock.now_ms())
        t.end()
        oracle.advance(FOREVER)
        return Counter(as_result(row) for row in t.read("out", committed=True).to_dicts())


def as_result(row: dict[str, Any]) -> Result:
    bounds = row["window_start"], row["window_end"]
    pane = row.get("pane", "on_time"), row.get("pane_index", 0)
    return row["key"], *bounds, *pane, row["n"], tuple(sorted(row["values"]))


@settings(max_examples=examples(50), deadline=None)
@given(shapes, steps)
def test_windows_of_the_clock_are_those_of_plain_python(shape: Any, fed: list[Any]) -> None:
    oracle = Oracle(shape)
    found = play(windowed(shape, time="processing"), oracle, fed, by_clock=True, lateness=0)
    assert found == Counter(oracle.results)


leaves = st.one_of(
    st.builds(hr.triggers.every, ms, st.just("processing")),
    st.builds(hr.triggers.since_first, ms, st.just("processing")),
    st.builds(hr.triggers.since_last, ms, st.just("processing")),
)
triggers = st.one_of(
    leaves,
    st.builds(hr.triggers.repeated, leaves),
    st.builds(hr.triggers.any_of, leaves, leaves),
    st.builds(hr.triggers.any_of, leaves, st.builds(hr.triggers.every, st.integers(1, 4))),
    st.builds(
        lambda n, leaf: hr.triggers.repeated(hr.triggers.all_of(hr.triggers.after(n), leaf)), st.integers(1, 4), leaves
    ),
)


@settings(max_examples=examples(50), deadline=None)
@given(shapes, triggers, steps, st.booleans())
def test_triggers_of_the_clock_are_those_of_plain_python(
    shape: Any, early: hr.triggers.Trigger, fed: list[Any], accumulating: bool
) -> None:
    panes = "accumulating" if accumulating else "discarding"
    oracle = Oracle(shape, early, accumulating=accumulating)
    found = play(windowed(shape, event_time="at", early=early, panes=panes), oracle, fed, by_clock=False, lateness=1000)
    assert found == Counter(oracle.results)


SHAPES_OF_THE_CLOCK = [
    (hr.tumbling("10s"), {}),
    (hr.hopping("10s", every="5s"), {}),
    (hr.tumbling("10s"), {"early": 100}),
    (hr.session("3s"), {}),
    (hr.windows.sliding("10s"), {}),
]


@pytest.mark.parametrize(("shape", "options"), SHAPES_OF_THE_CLOCK, ids=lambda part: str(part)[:20])
def test_no_message_is_lost_when_the_clock_is_set_back(shape: Any, options: Any) -> None:
    with windowed(shape, time="processing", **options).test() as t:
        t.clock.advance(100_000)
        t.feed("rows", rows(("a", 0, 1)))
        t.advance("25s")
        assert [1] in t.read("out")["values"].to_list()
        t.clock.set_back(20_000)
        t.feed("rows", rows(("a", 0, 2)))
        t.advance("1m")
        assert [2] in t.read("out")["values"].to_list()


def test_a_window_emits_once_though_a_restart_finds_the_clock_set_back() -> None:
    with windowed(hr.tumbling("10s"), time="processing").test() as t:
        t.clock.advance(100_000)
        t.feed("rows", rows(("a", 0, 1)))
        t.advance("10s")
        t.restart(checkpoint=True)
        t.clock.set_back(8_000)
        t.feed("rows", rows(("a", 0, 2)))
        t.advance("1m")
        assert t.read("out").select("window_start", "values").rows() == [(100_000, [1]), (110_000, [2])]
