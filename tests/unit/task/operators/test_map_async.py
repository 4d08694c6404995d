"""map_async in an app: order and watermarks; commits and the end wait for calls; restarts repeat them, once counted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import examples
from gated_calls import TIME_MAX_S, Gate
from headrace.kit.harness import TestApp
from headrace.plan.render import render

ROW = {"n": pl.Int64, "ts": pl.Int64}


def numbers(*wanted: int) -> list[dict[str, Any]]:
    return [{"n": n, "ts": n * 10} for n in wanted]


def asking(function: Callable[[Any], Any], **options: Any) -> hr.App:
    app = hr.App("asking")
    if options.get("on_error") == "dead_letter":
        options["dead_letter"] = app.output("failed")
    app.input("numbers", ROW, event_time="ts").map_async(function, ROW, **options).send_to(app.output("out"))
    return app


def turns(t: TestApp, until: Callable[[], bool] = lambda: True) -> None:
    """Run turns, woken by calls, until a condition is true."""
    t._container.turn()
    t._container.turn()
    deadline = time.monotonic() + TIME_MAX_S
    while not until():
        assert time.monotonic() < deadline
        t._container.wakeup.wait(50)
        t._container.turn()
        t._container.turn()


def out(t: TestApp, *, committed: bool = False) -> list[int]:
    return t.read("out", committed=committed)["n"].to_list()


def test_results_keep_the_order_of_their_rows() -> None:
    gate = Gate(lambda row: row | {"n": row["n"] + 100})
    with asking(gate).test() as t:
        t.feed("numbers", numbers(1, 2, 3), settle=False)
        turns(t)
        gate.until_asked(1, 2, 3)
        gate.answer(3)
        gate.answer(1)
        turns(t, lambda: out(t) == [101])
        gate.answer(2)
        turns(t, lambda: out(t) == [101, 102, 103])


def test_without_order_results_leave_as_they_come() -> None:
    gate = Gate()
    with asking(gate, ordered=False).test() as t:
        t.feed("numbers", numbers(1, 2, 3), settle=False)
        turns(t)
        for n in (3, 1, 2):
            gate.answer(n)
            turns(t, lambda n=n: out(t)[-1:] == [n])
        assert out(t) == [3, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
def test_no_result_passes_a_watermark(ordered: bool) -> None:
    gate = Gate()
    app = hr.App("asking")
    asked = app.input("numbers", ROW, event_time="ts").map_async(gate, ROW, ordered=ordered)
    asked.drop_late(late_to=app.output("late")).send_to(app.output("out"))
    with app.test() as t:
        for n in (1, 2, 3):
            t.feed("numbers", numbers(n), settle=False)
            turns(t)
        host = t._container.hosts[0]
        assert (t.watermark, host.task.outputs["out"].watermark) == (30, -(2**63))
        gate.answer(2)
        gate.answer(3)
        gate.until(lambda: gate.asked == [1, 2, 3])
        turns(t)
        assert out(t) == []
        gate.answer(1)
        turns(t, lambda: out(t) == [1, 2, 3])
        assert host.task.outputs["out"].watermark == 30
        assert t.read("late").height == 0


def test_a_window_downstream_gets_its_watermark_when_the_results_are_there() -> None:
    gate = Gate()
    app = hr.App("asking")
    asked = app.input("numbers", ROW, event_time="ts").map_async(gate, ROW)
    counts = (
        asked.partition_by("n", id="by-n", partitions=2)
        .window(hr.tumbling("20ms"), key=None, id="w")
        .agg(n=hr.sum("n"))
    )
    counts.send_to(app.output("out"))
    with app.test() as t:
        t.feed("numbers", numbers(0, 1), settle=False)
        t.feed("numbers", numbers(4), settle=False)
        turns(t)
        assert out(t) == []
        for n in (4, 1, 0):
            gate.answer(n)
        t.settle()
        assert sum(out(t)) == 1
        assert t.counter("late") == 0


def test_a_task_that_waits_for_calls_is_not_idle_to_those_downstream() -> None:
    """They would continue without the messages that it holds, and drop those as late."""
    gate = Gate()
    app = hr.App("asking")
    asked = app.input("numbers", ROW, event_time="ts", idle_timeout="1s").map_async(gate, ROW)
    counts = (
        asked.partition_by("n", id="by-n", partitions=1).window(hr.tumbling("20ms"), key=None, id="w").agg(n=hr.count())
    )
    counts.send_to(app.output("out"))
    with app.test(2) as t:
        t.feed("numbers", numbers(1), partition=0, settle=False)
        t.feed("numbers", numbers(100), partition=1, settle=False)
        turns(t)
        gate.answer(100)
        for _ in range(20):
            t.clock.advance(100)
            t.feed("numbers", [], partition=1, settle=False)
            turns(t)
        assert out(t) == []
        gate.answer(1)
        t.end()
        assert (out(t), t.counter("late")) == ([1, 1], 0)


def test_a_commit_waits_for_the_calls_under_way_and_covers_their_results() -> None:
    gate = Gate()
    with asking(gate).test() as t:
        t.feed("numbers", numbers(1, 2), settle=False)
        turns(t)
        gate.answer(1)
        turns(t, lambda: out(t) == [1])
        host = t._container.hosts[0]
        before = host.machine.version
        t.clock.advance(1000)
        turns(t)
        t.feed("numbers", numbers(3), settle=False)
        turns(t)
        assert (host.machine.version, gate.asked, out(t, committed=True)) == (before, [1, 2], [])
        assert (host.blocked_by, host.busy) == (None, False)
        t.clock.advance(1001)
        turns(t)
        assert host.blocked_by == "step map_async-1"
        gate.answer(2)
        turns(t, lambda: host.machine.version > before)
        assert out(t, committed=True) == [1, 2]
        gate.answer(3)
        t.settle()


def test_the_end_waits_for_the_calls_under_way() -> None:
    gate = Gate()
    app = hr.App("asking")
    asked = app.input("numbers", ROW, event_time="ts").map_async(gate, ROW)
    sums = asked.window(hr.tumbling("1s"), key=None, id="w").agg(n=hr.sum("n"))
    sums.select("n").map_async(gate, {"n": pl.Int64}).send_to(app.output("out"))
    with app.test() as t:
        t.feed("numbers", numbers(1, 2), settle=False)
        t._connections.admin(t._memory).seal("numbers")
        turns(t)
        gate.answer(2)
        gate.answer(1)
        turns(t, lambda: 3 in gate.asked)
        assert (t.ended, out(t)) == (False, [])
        gate.answer(3)
        t.settle()
        assert (t.ended, out(t, committed=True)) == (True, [3])


def test_a_restart_makes_calls_again_whose_results_were_not_committed_and_counts_them_once() -> None:
    gate = Gate()
    with asking(gate).test() as t:
        t.feed("numbers", numbers(1, 2, 3), settle=False)
        turns(t)
        gate.until_asked(1, 2, 3)
        gate.answer(1)
        turns(t, lambda: out(t) == [1])
        t._stop()
        gate.until(lambda: gate.cancelled == 2)
        t._container = t._start()
        turns(t)
        gate.until(lambda: gate.asked == [1, 2, 3, 1, 2, 3])
        for n in (3, 2, 1):
            gate.answer(n)
        turns(t, lambda: out(t) == [1, 1, 2, 3])
        t.end()
        assert out(t, committed=True) == [1, 2, 3]


def test_what_rolls_back_forgets_its_calls() -> None:
    gate = Gate()
    with asking(gate).test() as t:
        t.feed("numbers", numbers(1), settle=False)
        turns(t)
        gate.until_asked(1)
        host = t._container.hosts[0]
        host.machine.abandon()
        turns(t, lambda: len(gate.asked) == 2)
        gate.until(lambda: gate.cancelled == 1)
        gate.answer(1)
        t.end()
        assert (out(t, committed=True), t.counter("calls_in_flight")) == ([1], 0)


def test_no_more_calls_at_once_than_may_be_and_no_batch_is_taken_while_it_is_full() -> None:
    gate = Gate()
    with asking(gate, concurrency=2).test() as t:
        host = t._container.hosts[0]
        for n in range(0, 20, 2):
            t.feed("numbers", numbers(n, n + 1), settle=False)
            turns(t)
        line = host.task.chain._operators["map_async-1"]._queue
        assert (len(line), host.blocked_by) == (4, "step map_async-1")
        for n in range(20):
            gate.answer(n)
            turns(t, lambda n=n: out(t) == list(range(n + 1)))
            assert len(line) <= 4 + 20
        assert (gate.most, gate.asked) == (2, list(range(20)))


def test_a_full_step_stops_the_reading_and_says_why() -> None:
    gate = Gate()
    with asking(gate, concurrency=1, retry=hr.calls.retry(attempts=None, first="1ms", longest="1ms")).test() as t:
        t.feed("numbers", numbers(1, 2), settle=False)
        turns(t)
        t.feed("numbers", numbers(3), settle=False)
        turns(t)
        host = t._container.hosts[0]
        assert (host.blocked_by, host.positions) == ("step map_async-1", host.positions)
        gate.fail(1, ConnectionError("refused"))
        gate.until_asked(1)
        assert host.blocked_by == "step map_async-1: ConnectionError: refused"
        for n in (1, 2, 3):
            gate.answer(n)
            turns(t, lambda n=n: out(t)[-1:] == [n])
        assert (out(t), host.blocked_by) == ([1, 2, 3], None)
        assert t.counter("call_retries") == 1


def test_what_fails_for_good_says_step_line_row_and_attempts() -> None:
    tried: list[int] = []

    async def failing(row: dict[str, Any]) -> dict[str, Any]:
        tried.append(row["n"])
        raise ValueError("no such number")

    with (
        asking(failing, retry=hr.calls.retry(attempts=2, first="1ms", longest="1ms")).test() as t,
        pytest.raises(hr.errors.UserFunctionError) as info,
    ):
        t.feed("numbers", numbers(7))
    message = str(info.value)
    assert "operator 'map_async-1'" in message
    assert "raised ValueError" in message
    assert "test_map_async.py:" in message
    assert "in the last of 2 attempts: no such number" in message
    assert "numbers[0], offset 0, row 0 of it" in message
    assert 'the row it was given: {"n":7,"ts":70}' in message
    assert tried == [7, 7]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_fails_for_good_is_left_out_in_its_turn(ordered: bool) -> None:
    def answer(row: dict[str, Any]) -> Any:
        if row["n"] % 3 == 0:
            raise ValueError("no such number")
        return {"n": "x", "ts": 1} if row["n"] % 3 == 1 else row

    policy: dict[str, Any] = {"on_error": "dead_letter", "retry": hr.calls.retry(attempts=1)}
    with asking(answer, ordered=ordered, **policy).test() as t:
        t.feed("numbers", numbers(1, 2, 3), settle=False)
        t.feed("numbers", numbers(4, 5, 6), settle=False)
        t.settle()
        letters = t.read("failed").sort("offset", "index")
        assert letters["offset", "index"].rows() == [(0, 0), (0, 2), (1, 0), (1, 2)]
        assert [text.split(":")[0] for text in letters["reason"]] == ["doesn't fit its schema", "ValueError"] * 2
        assert letters["row"][3] == '{"n":6,"ts":60}'
        assert (sorted(out(t)), t.counter("dead_lettered")) == ([2, 5], 4)
        t.end()
        assert t.ended


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "record 0 is a NoneType, not a dict"),
        ({"n": 1}, "has no 'ts'"),
        ({"n": "x", "ts": 1}, "is not of type Int64"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error(result: Any, message: str) -> None:
    with asking(lambda row: result).test() as t, pytest.raises(hr.errors.UserFunctionError, match=message):
        t.feed("numbers", numbers(1))


async def picky(row: dict[str, Any]) -> Any:
    if row["n"] % 3 == 0:
        raise ValueError(f"{row['n']} can be divided by three")
    return None if row["n"] % 5 == 0 else row


def test_rows_whose_calls_fail_are_skipped_and_counted_if_the_step_says_so() -> None:
    with asking(picky, on_error="skip", retry=hr.calls.retry(1)).test() as t:
        t.feed("numbers", numbers(*range(16)))
        t.end()
        assert out(t, committed=True) == [1, 2, 4, 7, 8, 11, 13, 14]
        assert (t.counter("failed_skipped"), t.counter("call_failures")) == (8, 6)


def test_rows_whose_calls_fail_become_letters_that_say_where_they_stood() -> None:
    with asking(picky, on_error="dead_letter", retry=hr.calls.retry(1)).test() as t:
        for n in range(8):
            t.feed("numbers", numbers(n), settle=False)
        t.end()
        letters = t.read("failed", committed=True).sort("offset")
        assert out(t, committed=True) == [1, 2, 4, 7]
        assert letters["offset"].to_list() == [0, 3, 5, 6]
        assert letters["step"].to_list() == ["map_async-1"] * 4
        assert letters["reason"][1] == "ValueError: 3 can be divided by three"
        assert "record 0 is a NoneType" in letters["reason"][2]
        assert t.counter("dead_lettered") == 4


@dataclass
class Number:
    n: int
    ts: int


def test_dataclasses_go_in_and_out_also_by_threads() -> None:
    def double(number: Number) -> Number:
        return Number(number.n * 2, number.ts)

    app = hr.App("asking")
    app.input("numbers", Number, event_time="ts").map_async(double, concurrency=3).send_to(app.output("out"))
    with app.test() as t:
        t.feed("numbers", [Number(n, n) for n in range(50)])
        t.end()
        assert out(t, committed=True) == [2 * n for n in range(50)]
        assert (t.counter("calls"), t.counter("calls_in_flight")) == (50, 0)


def test_a_test_that_waits_for_a_call_that_never_ends_says_for_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kit.harness.CALLS_MS_MAX", 20)
    with (
        asking(Gate()).test() as t,
        pytest.raises(hr.errors.UsageError, match=r"aren't done after .* s: step map_async-1"),
    ):
        t.feed("numbers", numbers(1))


@given(st.booleans(), st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 2**32))
@settings(max_examples=examples(25), deadline=None)
def test_any_order_of_answers_gives_the_same_rows_and_watermarks(ordered: bool, sizes: list[int], seed: int) -> None:
    gate, chance = Gate(), random.Random(seed)
    app = hr.App("asking")
    asked = app.input("numbers", ROW, event_time="ts").map_async(gate, ROW, ordered=ordered, concurrency=50)
    asked.drop_late(late_to=app.output("late")).send_to(app.output("out"))
    with app.test() as t:
        n, open_ = 0, []
        for size in sizes:
            batch = list(range(n, n + size))
            n += size
            if batch:
                t.feed("numbers", numbers(*batch), settle=False)
                turns(t)
                gate.until_asked(*batch)
                open_ += batch
            while open_ and chance.random() < 0.5:
                gate.answer(open_.pop(chance.randrange(len(open_))))
                turns(t)
        while open_:
            gate.answer(open_.pop(chance.randrange(len(open_))))
        t.settle()
        assert sorted(out(t)) == list(range(n))
        assert t.read("late").height == 0
        if ordered:
            assert out(t) == list(range(n))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        for start, size in zip(starts, sizes, strict=True):
            assert set(out(t)[start : start + size]) == set(range(start, start + size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": 5}, "must be a function"),
        ({"concurrency": 0}, "concurrency=0 is not a whole number from 1 up to 10000"),
        ({"concurrency": 1.5}, "concurrency=1.5"),
        ({"timeout": "0s"}, "timeout: '0s' is below 1 ms"),
        ({"retry": 3}, r"retry=3 isn't a result of hr.calls.retry"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    function = options.pop("function", len)
    with pytest.raises(hr.errors.DeclarationError, match=message):
        asking(function, **options)


def test_the_plan_says_how_it_is_called() -> None:
    async def fetch(row: Any) -> Any: ...

    with asking(fetch, ordered=False, concurrency=7).test() as t:
        (step,) = (one for one in render(t.plan).stages[0].operators if one.kind == "map_async")
    assert step.spec.code == "ASYNC_FLAT_MAP"
    assert step.detail.endswith("fetch(), at most 7 at once, 30s each, tried up to 5 times, as they come")
