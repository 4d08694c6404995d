"""Lanes of calls: how many at once, what is tried again, what is forgotten; with events, not with sleeps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gated_calls import TIME_MAX_S, Gate
from headrace.core.calls import Calling, Retry, TokenBucket, is_async
from headrace.core.errors import DeclarationError, UnavailableError
from headrace.task.calls import Calls, Done, Lane
from headrace.task.operators.functions import line_now


class Bench:
    """Calls, and a bell that says that something was done."""

    def __init__(self) -> None:
        self.bell = threading.Semaphore(0)
        self.rings = 0
        self.calls = Calls(self._ring)

    def _ring(self) -> None:
        self.rings += 1
        self.bell.release()

    def taken(self, lane: Lane[Any], count: int) -> list[Done]:
        """What is done, when so many are."""
        done = lane.take()
        while len(done) < count:
            assert self.bell.acquire(timeout=TIME_MAX_S)
            done += lane.take()
        return done


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.calls.close()


def calling(concurrency: int = 2, timeout_ms: int = 20_000, attempts: int | None = 1) -> Calling:
    return Calling(concurrency, timeout_ms, Retry(attempts, 1, 1))


def rows(*numbers: int) -> list[tuple[int, Any]]:
    return [(number, {"n": number}) for number in numbers]


def test_no_more_calls_at_once_than_may_be(bench: Bench) -> None:
    gate = Gate()
    lane: Lane[Any] = Lane(bench.calls, gate, calling(2))
    lane.put(rows(0, 1, 2, 3, 4))
    for number in (1, 0, 3, 2, 4):
        gate.answer(number)
    assert [done.place for done in bench.taken(lane, 5)] == [1, 0, 3, 2, 4]
    assert (gate.most, lane.unfinished, lane.tally.calls) == (2, 0, 5)


def test_plain_functions_run_in_threads_and_no_more_of_them_than_may_be(bench: Bench) -> None:
    both = threading.Barrier(2, timeout=TIME_MAX_S)
    names: set[str] = set()

    def slow(row: dict[str, Any]) -> int:
        names.add(f"{threading.current_thread().name}-{threading.get_ident()}")
        both.wait()  # two at once, or never
        return int(row["n"]) * 2

    lane: Lane[Any] = Lane(bench.calls, slow, calling(2))
    lane.put(rows(*range(6)))
    assert sorted(done.result for done in bench.taken(lane, 6)) == [0, 2, 4, 6, 8, 10]
    assert len(names) == 2
    assert all(name.startswith("headrace-call-") for name in names)


def test_a_plain_function_may_return_what_can_be_awaited(bench: Bench) -> None:
    async def later(row: dict[str, Any]) -> int:
        return int(row["n"]) + 1

    lane: Lane[Any] = Lane(bench.calls, lambda row: later(row | {}), calling())
    lane.put(rows(1))
    assert bench.taken(lane, 1)[0].result == 2


def test_what_fails_is_tried_again_and_what_fails_too_often_is_given_up(bench: Bench) -> None:
    tried: list[int] = []

    async def moody(row: dict[str, Any]) -> int:
        tried.append(row["n"])
        if tried.count(row["n"]) <= row["n"]:
            raise ValueError(f"not {row['n']}")
        return int(row["n"])

    lane: Lane[Any] = Lane(bench.calls, moody, calling(4, attempts=3))
    lane.put(rows(0, 1, 2, 3))
    done = {one.place: one for one in bench.taken(lane, 4)}
    assert [done[n].attempts for n in range(4)] == [1, 2, 3, 3]
    assert [done[n].result for n in range(3)] == [0, 1, 2]
    assert repr(done[3].error) == "ValueError('not 3')"
    assert (lane.tally.retries, lane.tally.failures, lane.tally.calls) == (5, 1, 4)


@pytest.mark.parametrize(
    ("error", "attempts"), [(UnavailableError("away"), 3), (DeclarationError("wrong"), 1), (SystemExit(1), 1)]
)
def test_what_can_not_succeed_is_not_tried_again(bench: Bench, error: BaseException, attempts: int) -> None:
    async def failing(row: dict[str, Any]) -> None:
        raise error

    lane: Lane[Any] = Lane(bench.calls, failing, calling(attempts=3))
    lane.put(rows(0))
    (done,) = bench.taken(lane, 1)
    assert (done.error, done.attempts) == (error, attempts)


@pytest.mark.parametrize("plain", [True, False])
def test_an_attempt_that_takes_too_long_has_failed(bench: Bench, plain: bool) -> None:
    over = threading.Event()
    attempts: list[int] = []

    def thread(row: dict[str, Any]) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            over.wait(TIME_MAX_S)
        return 7

    async def coroutine(row: dict[str, Any]) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return 7

    function: Callable[[Any], Any] = thread if plain else coroutine
    lane: Lane[Any] = Lane(bench.calls, function, calling(timeout_ms=500, attempts=2))
    lane.put(rows(0))
    (done,) = bench.taken(lane, 1)
    over.set()
    assert (done.result, done.attempts, lane.tally.timeouts, lane.tally.retries) == (7, 2, 1, 1)


def test_an_answer_that_never_comes_is_an_error_that_says_so(bench: Bench) -> None:
    lane: Lane[Any] = Lane(bench.calls, Gate(), calling(timeout_ms=5, attempts=2))
    lane.put(rows(0))
    (done,) = bench.taken(lane, 1)
    assert str(done.error) == "no answer within 5 ms"


def test_trouble_is_told_until_something_succeeds(bench: Bench) -> None:
    gate = Gate()
    lane: Lane[Any] = Lane(bench.calls, gate, calling(1, attempts=None))
    lane.put(rows(0))
    gate.fail(0, ConnectionError("refused"))
    gate.until_asked(0)
    assert lane.trouble == "ConnectionError: refused"
    gate.answer(0)
    assert [done.result for done in bench.taken(lane, 1)] == [{"n": 0}]
    assert lane.trouble is None


def test_calls_that_are_repeated_are_logged_at_first_and_when_they_succeed_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="headrace.task.calls")
    gate = Gate()
    lane: Lane[Any] = Lane(bench.calls, gate, calling(1, attempts=None))
    lane.put(rows(0))
    for _ in range(5):
        gate.fail(0, ConnectionError("refused"))
        gate.until_asked(0)
    gate.answer(0)
    bench.taken(lane, 1)
    failed, back = caplog.records
    assert (failed.levelname, failed.getMessage()) == ("WARNING", "a call failed and is tried again")
    assert (vars(failed)["error"], vars(failed)["attempts"]) == ("ConnectionError: refused", 1)
    assert (back.levelname, back.getMessage(), vars(back)["failures"]) == ("INFO", "calls succeed again", 5)


def test_what_is_left_when_a_lane_closes_is_cancelled_and_not_heard_of(bench: Bench) -> None:
    gate = Gate()
    lane: Lane[Any] = Lane(bench.calls, gate, calling(2))
    lane.put(rows(0, 1, 2))
    gate.until_asked(0, 1)
    lane.close()
    gate.until(lambda: gate.cancelled == 2)
    other: Lane[Any] = Lane(bench.calls, gate, calling(1))
    other.put(rows(5))
    gate.answer(5)
    bench.taken(other, 1)
    assert (lane.take(), lane.unfinished, gate.asked) == ([], 0, [0, 1, 5])


def new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before]


def test_the_loop_ends_with_the_container_and_nobody_is_woken_after_that() -> None:
    before = set(threading.enumerate())
    bench = Bench()
    gate = Gate()
    lane: Lane[Any] = Lane(bench.calls, gate, calling(2))
    lane.put(rows(0))
    gate.until_asked(0)
    assert [thread.name for thread in new_threads(before)] == ["headrace-calls"]
    bench.calls.close()
    assert new_threads(before) == []
    assert (gate.cancelled, bench.rings) == (1, 0)


def test_no_thread_is_there_before_the_first_call(bench: Bench) -> None:
    before = set(threading.enumerate())
    Lane(bench.calls, Gate(), calling())
    assert new_threads(before) == []


def test_results_that_come_together_ring_once(bench: Bench) -> None:
    """The run loop takes them all at its next turn, however many there are."""

    async def at_once(row: dict[str, Any]) -> None:
        return None

    lane: Lane[Any] = Lane(bench.calls, at_once, calling(100))
    lane.put(rows(*range(100)))
    assert bench.bell.acquire(timeout=TIME_MAX_S)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), bench.calls.loop()).result(TIME_MAX_S)
    assert (len(bench.taken(lane, 100)), bench.rings) == (100, 1)


def test_a_limit_spaces_calls_out(bench: Bench) -> None:
    waits: list[float] = []

    class Limit(TokenBucket):
        def take(self, amount: float, now_ms: float) -> float:
            waits.append(super().take(amount, 0.0))
            return 0.0

    async def nothing(row: dict[str, Any]) -> None:
        return None

    lane: Lane[Any] = Lane(bench.calls, nothing, calling(4), Limit(100, burst=2), lambda row: row["n"])
    lane.put(rows(1, 2, 3))
    bench.taken(lane, 3)
    assert waits == [0, 10, 40]


class Async:
    async def __call__(self, row: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "answer"), [(Async(), True), (Async, False), (Gate(), True), (len, False), (lambda row: row, False)]
)
def test_which_functions_are_async(function: Callable[..., object], answer: bool) -> None:
    assert is_async(function) is answer


def test_a_ring_for_what_has_been_taken_already_does_not_silence_the_next_one(bench: Bench) -> None:
    class Meanwhile(deque[Done]):
        def popleft(self) -> Done:
            if self[0].place == 0:
                lane._hand_over(Done(1))  # on the other thread, while the first one is being taken
            return super().popleft()

    lane: Lane[Any] = Lane(bench.calls, Gate(), calling())
    lane._done = Meanwhile()
    lane._hand_over(Done(0))
    assert [done.place for done in lane.take()] == [0, 1]
    assert bench.rings == 2
    assert lane.take() == []
    lane._hand_over(Done(2))
    assert bench.rings == 3


def test_a_function_that_blocks_the_event_loop_is_noticed(bench: Bench) -> None:
    begun, go = threading.Event(), threading.Event()

    async def blocks(row: Any) -> int:
        begun.set()
        assert go.wait(TIME_MAX_S)
        return 1

    assert bench.calls.blocked(0) is None, "there is no event loop yet"
    lane: Lane[Any] = Lane(bench.calls, blocks, calling())
    lane.put(rows(0))
    assert begun.wait(TIME_MAX_S)
    assert bench.calls.blocked(100) is None
    blocked = bench.calls.blocked(2100)
    assert blocked is not None
    assert blocked.since_ms == 100
    line = line_now(blocked.thread)
    assert line is not None
    assert line.startswith(f"{__file__}:")
    go.set()
    bench.taken(lane, 1)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), bench.calls.loop()).result(TIME_MAX_S)
    assert bench.calls.blocked(3000) is None
