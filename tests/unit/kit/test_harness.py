"""app.test(): the base of users' own tests."""

import re
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.systems.memory import MemorySystem
from headrace.task import metrics
from headrace.task.operators import functions as waiting

VIEW = {"member": pl.String, "ts": pl.Int64}


def counting(name: str = "counting") -> hr.App:
    app = hr.App(name)
    views = app.input("views", VIEW, event_time="ts")
    by_member = views.partition_by("member", id="by-member", partitions=2)
    by_member.window(hr.tumbling("10ms"), key="member", id="w").agg(n=hr.count()).send_to(app.output("out"))
    return app


def test_results_are_there_when_feed_returns() -> None:
    """Through both stages: the watermark that closes a window has been sent, read and applied."""
    with counting().test() as t:
        t.feed("views", [{"member": "a", "ts": 1}, {"member": "a", "ts": 12}])
        assert t.read("out")["n"].to_list() == [1]


def test_nothing_happens_before_it_is_asked_for() -> None:
    with counting().test() as t:
        t.feed("views", [{"member": "a", "ts": 1}], settle=False)
        assert (t.read("by-member").height, t.watermark) == (0, None)
        t.settle()
        assert (t.read("by-member").height, t.watermark) == (1, 1)


def test_an_app_can_be_tested_again_and_beside_others() -> None:
    app = counting()
    with app.test() as one, app.test() as other, counting("another").test() as third:
        one.feed("views", [{"member": "a", "ts": 1}])
        third.feed("views", [{"member": "b", "ts": 1}])
        for t in (one, other, third):
            t.end()
        assert [t.read("out")["member"].to_list() for t in (one, other, third)] == [["a"], [], ["b"]]


def test_inputs_may_have_different_partition_counts() -> None:
    app = hr.App("merged")
    one, two = app.input("one", VIEW), app.input("two", VIEW)
    one.send_to(app.output("out-1"))
    two.send_to(app.output("out-2"))
    with app.test({"one": 3}) as t:
        t.feed("one", [{"member": "a", "ts": 1}], partition=2)
        t.feed("two", [{"member": "b", "ts": 1}], partition=0)
        with pytest.raises(hr.errors.StreamNotFoundError, match="'two' has partitions 0 to 0, not 1"):
            t.feed("two", [{"member": "b", "ts": 1}], partition=1)


def test_partitions_of_what_is_no_input_are_refused() -> None:
    with pytest.raises(hr.errors.UsageError, match="names 'vews', which isn't an input of the app") as info:
        counting().test({"vews": 3})
    assert info.value.hint == "its inputs: views"


def test_a_stream_that_is_not_the_apps_is_refused_with_those_that_are() -> None:
    with counting().test() as t:
        with pytest.raises(hr.errors.UsageError, match="has no stream 'view'") as info:
            t.feed("view", [])
        assert "its streams: views" in str(info.value)
        with pytest.raises(hr.errors.UsageError, match="has no stream 'out'"):
            t.feed("out", [])


def test_records_that_do_not_fit_the_input_are_the_tests_mistake() -> None:
    with counting().test() as t, pytest.raises(hr.errors.DataError, match="record 1 has no 'member'"):
        t.feed("views", [{"member": "a", "ts": 1}, {"membre": "a", "ts": 1}])


def test_inputs_end_one_by_one_or_all_together() -> None:
    app = hr.App("two")
    one, two = app.input("one", VIEW), app.input("two", VIEW)
    one.merge(two).send_to(app.output("out"))
    with app.test() as t:
        t.end("one")
        assert not t.ended
        t.end()
        assert t.ended


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_restart_loses_nothing_and_time_continues(checkpoint: bool) -> None:
    with counting().test(2) as t:
        t.feed("views", [{"member": "a", "ts": 5}], partition=0)
        t.feed("views", [{"member": "b", "ts": 7}], partition=1)
        t.restart(checkpoint=checkpoint)
        assert t.watermark == 5
        t.end()
        assert set(t.read("out").select("member", "n").rows()) == {("a", 1), ("b", 1)}


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(MemorySystem._named)
    with counting().test() as t:
        t.feed("views", [{"member": "a", "ts": 1}])
        t.restart(checkpoint=True)
    assert set(MemorySystem._named) == before
    assert list(tmp_path.iterdir()) == []


def test_an_app_that_can_not_be_planned_leaves_no_files_either() -> None:
    app = hr.App("looping")
    views = app.input("views", VIEW)
    views.partition_by("member", id="by-member", partitions=3).send_to(app.output("out", partitions=2), key="member")
    other = app.input("other", VIEW, event_time="ts")
    orders = app.input("orders", VIEW, event_time="ts")
    other.join(orders, on="member", within="1s", id="joined").send_to(app.output("joined-out"))
    before = set(MemorySystem._named)
    with pytest.raises(hr.errors.PlanError):
        app.test({"other": 2, "orders": 3})
    assert set(MemorySystem._named) == before


def test_committed_results_are_those_that_a_crash_can_no_longer_take_back() -> None:
    app = hr.App("forwarding", checkpoint_interval="1s")
    app.input("views", VIEW).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", [{"member": "a", "ts": 1}])
        assert (t.read("out").height, t.read("out", committed=True).height) == (1, 0)
        t.advance("1s")
        assert t.read("out", committed=True)["member"].to_list() == ["a"]
        t.feed("views", [{"member": "b", "ts": 2}])
        t.restart()
        assert t.read("out")["member"].to_list() == ["a", "b", "b"]
        t.advance("1s")
        assert t.read("out", committed=True)["member"].to_list() == ["a", "b"]


@pytest.mark.parametrize("rows", [5, None, "text", b"bytes", {"member": "a", "ts": 1}])
def test_what_is_no_collection_of_rows_is_refused(rows: object) -> None:
    with (
        counting().test() as t,
        pytest.raises(hr.errors.UsageError, match="rows must be a DataFrame, or a list of dicts"),
    ):
        t.feed("views", rows)  # type: ignore[arg-type]


def test_time_passes_by_durations_and_never_back() -> None:
    with counting().test() as t:
        before = t.clock.now_ms()
        t.advance("1s")
        t.advance("500ms")
        assert t.clock.now_ms() - before == 1500
        for wrong in (-5, "soon"):
            with pytest.raises(hr.errors.DeclarationError, match="advance: "):
                t.advance(wrong)  # type: ignore[arg-type]


def test_partitions_are_numbers() -> None:
    with pytest.raises(hr.errors.UsageError, match="partitions='x' isn't a number"):
        counting().test("x")  # type: ignore[arg-type]
    with (
        counting().test() as t,
        pytest.raises(hr.errors.UsageError, match="partition='x' isn't the number of a partition"),
    ):
        t.feed("views", [], partition="x")  # type: ignore[arg-type]


def test_an_input_that_has_ended_takes_nothing_more() -> None:
    with counting().test() as t:
        t.end()
        with pytest.raises(hr.errors.UsageError, match="feed: the input 'views' has ended"):
            t.feed("views", [{"member": "a", "ts": 1}])


def test_after_its_block_a_test_says_that_it_is_closed() -> None:
    with counting().test() as t:
        t.feed("views", [{"member": "a", "ts": 1}])
        t.end()
    for use in (
        lambda: t.feed("views", []),
        lambda: t.feed_bytes("views", b""),
        lambda: t.advance("1s"),
        t.settle,
        t.restart,
        t.end,
        lambda: t.read("views"),
    ):
        with pytest.raises(hr.errors.UsageError, match=r"this test of '.*' is closed"):
            use()
    t.close()
    assert t.ended
    assert t.counter("late") == 0


def test_a_counter_that_nothing_counts_is_refused() -> None:
    app = hr.App("refusing")
    app.input("views", VIEW).send_to(app.output("seen"))
    with app.test() as t:
        assert t.counter("late") == 0
        with pytest.raises(hr.errors.UsageError, match=r"no counter is named 'skiped'; .*late") as caught:
            t.counter("skiped")
        assert caught.value.hint == "did you mean 'skipped'?"


def test_every_counter_of_the_runtime_is_known() -> None:
    runtime = Path(metrics.__file__).parent
    counted = {
        name for file in runtime.rglob("*.py") for name in re.findall(r'\.count\(\s*"(\w+)"', file.read_text("utf-8"))
    }
    connectors = runtime.parent / "connectors"
    unread = {
        name for file in connectors.rglob("*.py") for name in re.findall(r'Unread\(\s*"(\w+)"', file.read_text("utf-8"))
    }
    assert {"late", "cache_hits", "skipped"} <= counted <= metrics.COUNTERS
    assert metrics.COUNTERS - counted == set(waiting._COUNTED.values()) | unread


def test_feeding_and_ending_leave_the_clock_where_it_is() -> None:
    """Watermarks cross a shuffle a little later than messages, which takes no time of the clock."""
    app = hr.App("still")
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts")
    by_member = views.partition_by("member", id="by-member", partitions=2)
    by_member.window(hr.tumbling("1ms"), key="member", id="w").agg(n=hr.count()).send_to(app.output("counts"))
    with app.test() as t:
        before = t.clock.now_ms()
        for ts in range(30):
            t.feed("views", [{"member": "ann", "ts": ts}])
            assert t.read("counts").height == ts
        t.restart(checkpoint=True)
        t.end()
        assert t.ended
        assert t.clock.now_ms() == before
