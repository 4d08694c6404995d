"""Fetching in the background: real threads over a stream in memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from slot_reader import SSP_0, Reader, name, put

from headrace.connectors.kinesis.feed import Common, FetchingByThreads, Pace, Room
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.core.calls import Retry
from headrace.core.clock import WallClock
from headrace.core.errors import ThrottledError
from headrace.core.files import readable

FAST = Pace(busy_ms=0, idle_ms=1, bytes_per_s=1e12, retry=Retry(None, 1, 5))
OLDEST = "READ TRIM_HORIZON"


def by_threads(kinesis: MemoryKinesis, room: Room | None = None, threads: int = 4) -> Reader:
    clock = WallClock()
    fetching = FetchingByThreads(kinesis, clock, Common("orders", FAST, room or Room()), threads)
    return Reader(kinesis, clock, fetching=fetching)


@contextmanager
def reading(kinesis: MemoryKinesis, room: Room | None = None, threads: int = 4) -> Iterator[Reader]:
    reader = by_threads(kinesis, room, threads)
    try:
        yield reader
    finally:
        reader.consumer.close()


def until(reader: Reader, done: Callable[[], bool]) -> None:
    """Poll whenever the descriptor says so."""
    number = reader.consumer.fileno()
    assert number is not None
    while True:
        while reader.poll():
            pass
        if done():
            return
        assert readable(number, 20_000), f"nothing new for a long time: {dict(reader.numbers)}, {reader.shards}"


def memory(shards: int = 1) -> MemoryKinesis:
    return MemoryKinesis("orders", shards=shards, clock=WallClock())


def test_the_descriptor_says_that_there_are_records() -> None:
    kinesis = memory(3)
    with reading(kinesis) as reader:
        reader.begin({}).order(s0=OLDEST, s1=OLDEST, s2=OLDEST)
        for start in range(0, 300, 10):
            for shard in range(3):
                put(kinesis, shard, *range(start, start + 10))
            until(reader, lambda end=start + 10: all(len(reader.numbers[name(s)]) == end for s in range(3)))  # type: ignore[misc]
    assert reader.numbers == {name(shard): [*range(300)] for shard in range(3)}


def test_a_shard_that_ends_wakes_the_reader() -> None:
    kinesis = memory()
    put(kinesis, 0, 1, 2)
    with reading(kinesis) as reader:
        reader.begin({}).order(s0=OLDEST)
        until(reader, lambda: len(reader.numbers[name(0)]) == 2)
        kinesis.split(name(0))
        until(reader, lambda: reader.shards[SSP_0] == {name(0): "SHARD_END"})


def test_a_full_feed_rests_until_it_is_emptied() -> None:
    kinesis = memory()
    put(kinesis, 0, *range(500))
    with reading(kinesis, room=Room(feed_bytes_max=100)) as reader:
        reader.begin({}).order(s0=OLDEST)
        until(reader, lambda: len(reader.numbers[name(0)]) == 500)
        put(kinesis, 0, *range(500, 600))
        until(reader, lambda: len(reader.numbers[name(0)]) == 600)
    assert reader.numbers == {name(0): [*range(600)]}


def test_a_fetch_that_comes_back_after_its_shard_was_released_and_taken_again_is_dropped() -> None:
    kinesis = memory()
    put(kinesis, 0, 1, 2, 3)
    fetched, go_on = threading.Event(), threading.Event()
    held: list[str] = []

    def hold_the_first(call: str, moment: str) -> None:
        if (call, moment) == ("records", "done") and not held:
            held.append(call)
            fetched.set()
            lock_free(kinesis, go_on)

    kinesis.interfere = hold_the_first
    with reading(kinesis) as reader:
        reader.begin({}).order(s0=OLDEST)
        assert fetched.wait(20)
        reader.order(s0="RELEASE 1").poll()
        assert reader.shards[SSP_0] == {name(0): "RELEASED 1 TRIM_HORIZON"}
        reader.order(s0="FORGET").order(s0=OLDEST)
        go_on.set()
        until(reader, lambda: len(reader.numbers[name(0)]) >= 3)
        put(kinesis, 0, 4)
        until(reader, lambda: 4 in reader.numbers[name(0)])
    assert reader.numbers == {name(0): [1, 2, 3, 4]}


def lock_free(kinesis: MemoryKinesis, event: threading.Event) -> None:
    """Wait for an event without keeping others out of the stream."""
    kinesis._lock.release()
    try:
        assert event.wait(20)
    finally:
        kinesis._lock.acquire()


def test_trouble_of_one_shard_does_not_hold_up_others() -> None:
    kinesis = memory(2)
    put(kinesis, 0, 1)
    put(kinesis, 1, 2)
    kinesis.throttled.add(name(0))
    with reading(kinesis, threads=1) as reader:
        reader.begin({}).order(s0=OLDEST, s1=OLDEST)
        until(reader, lambda: reader.numbers[name(1)] == [2])
        kinesis.throttled.clear()
        until(reader, lambda: reader.numbers[name(0)] == [1])


def test_calls_that_fail_and_lost_replies_lose_and_repeat_nothing() -> None:
    kinesis = memory()
    calls = itertools.count()

    def fail_often(call: str, moment: str) -> None:
        if call in ("records", "iterator") and next(calls) % 3 == 0:
            raise ThrottledError(f"{call} {moment}")

    kinesis.interfere = fail_often
    with reading(kinesis, room=Room(feed_bytes_max=300)) as reader:
        reader.begin({}).order(s0=OLDEST)
        for start in range(0, 200, 20):
            put(kinesis, 0, *range(start, start + 20))
            kinesis.expire_iterators()
            until(reader, lambda end=start + 20: len(reader.numbers[name(0)]) >= end)  # type: ignore[misc]
    assert reader.numbers == {name(0): [*range(200)]}
    assert next(calls) > 20


def test_an_error_that_nobody_expects_is_raised_to_the_reader() -> None:
    kinesis = memory()

    def break_down(call: str, moment: str) -> None:
        if call == "records":
            raise ZeroDivisionError("broken")

    kinesis.interfere = break_down
    with reading(kinesis) as reader:
        reader.begin({}).order(s0=OLDEST)
        with pytest.raises(ZeroDivisionError):
            until(reader, lambda: False)


def test_closing_in_the_middle_of_a_fetch_ends_the_thread() -> None:
    kinesis = memory()
    fetching, go_on = threading.Event(), threading.Event()

    def hold(call: str, moment: str) -> None:
        if call == "records":
            fetching.set()
            lock_free(kinesis, go_on)

    kinesis.interfere = hold
    reader = by_threads(kinesis).begin({}).order(s0=OLDEST)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("kinesis-orders")]
    assert fetching.wait(20)
    reader.consumer.close()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
