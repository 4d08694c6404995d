"""Fetch shards: in background threads, or directly in the caller."""

from __future__ import annotations

import heapq
import os
import random
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from math import inf
from typing import Protocol

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.systems.kinesis.api import KinesisApi
from headrace.systems.kinesis.feed import Common, Feed, Pace, Room
from headrace.systems.kinesis.shard_position import Position


class Fetching(Protocol):
    """Fetches the shards of one stream into feeds. One thread uses it."""

    def begin(self, shard: str, position: Position) -> Feed:
        """Start fetching a shard from a position."""
        ...

    def end(self, feed: Feed) -> None:
        """Stop fetching. What was fetched and what still arrives is dropped."""
        ...

    def look(self, feeds: Iterable[Feed]) -> None:
        """Clear the descriptor. Without background threads, fetch what is due in these feeds."""
        ...

    def emptying(self) -> AbstractContextManager[object]:
        """Lock the feeds while they are read and emptied."""
        ...

    def emptied(self, feed: Feed) -> None:
        """There may be room in a feed again. Only while ``emptying``."""
        ...

    def fileno(self) -> int | None:
        """A descriptor that becomes readable when feeds have something new; None: look by the clock."""
        ...

    def close(self) -> None:
        """Release everything, the api too. Called once."""
        ...


class FetchingOnTheSpot(Fetching):
    """Fetches when it is asked: no threads, and time is the clock's. For simulations and tests."""

    def __init__(
        self,
        api: KinesisApi,
        stream: str,
        clock: Clock,
        *,
        pace: Pace = Pace(),  # noqa: B008 - it is frozen
        room: Room | None = None,
        skip_lost: bool = False,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self._api = api
        self._clock = clock
        self._common = Common(stream, pace, room or Room(), skip_lost)
        self._chance = chance

    @override
    def begin(self, shard: str, position: Position) -> Feed:
        return Feed(self._common, shard, position)

    @override
    def end(self, feed: Feed) -> None:
        feed.close()

    @override
    def look(self, feeds: Iterable[Feed]) -> None:
        for feed in feeds:
            if feed.hungry and feed.due_ms <= self._clock.monotonic_ms():
                answer = feed.fetch(self._api, self._clock)
                feed.take_in(answer, self._clock.monotonic_ms(), self._chance())

    @override
    def emptying(self) -> AbstractContextManager[object]:
        return nullcontext()

    @override
    def emptied(self, feed: Feed) -> None:
        pass

    @override
    def fileno(self) -> int | None:
        return None

    @override
    def close(self) -> None:
        self._api.close()


class FetchingByThreads(Fetching):
    """Fetches in the background, with as many threads as there are shards, up to a limit; a pipe says what is new.

    A feed is in one place at a time: in the queue, with the thread that fetches it, or *resting* because it has enough
    that wasn't handed out. The lock guards the queue and the feeds; no thread holds it while it waits for Kinesis.
    """

    def __init__(
        self,
        api: KinesisApi,
        stream: str,
        clock: Clock,
        *,
        pace: Pace = Pace(),  # noqa: B008 - it is frozen
        room: Room | None = None,
        skip_lost: bool = False,
        threads_max: int = 16,
    ) -> None:
        self._api = api
        self._clock = clock
        self._common = Common(stream, pace, room or Room(), skip_lost)
        self._threads_max = threads_max
        self._lock = threading.Condition()
        self._queue: list[tuple[float, int, Feed]] = []
        self._order = count()
        self._alarm_ms = inf
        """When the first of the threads that wait wakes up by itself."""
        self._resting: set[Feed] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._signalled = False
        self._reader, self._writer = os.pipe()

    @override
    def begin(self, shard: str, position: Position) -> Feed:
        with self._lock:
            feed = Feed(self._common, shard, position)
            self._enqueue(feed)
            if len(self._threads) < min(self._common.room.feeds, self._threads_max):
                name = f"kinesis-{self._common.stream}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return feed

    @override
    def end(self, feed: Feed) -> None:
        with self._lock:
            feed.close()
            self._resting.discard(feed)

    @override
    def look(self, feeds: Iterable[Feed]) -> None:
        with self._lock:
            if self._signalled:
                os.read(self._reader, 1)
                self._signalled = False

    @override
    def emptying(self) -> AbstractContextManager[object]:
        return self._lock

    @override
    def emptied(self, feed: Feed) -> None:
        if feed in self._resting and feed.hungry:
            self._resting.remove(feed)
            self._enqueue(feed)

    @override
    def fileno(self) -> int | None:
        return self._reader

    @override
    def close(self) -> None:
        """Threads in the middle of a call end after it; its result is dropped."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()
            os.close(self._reader)
            os.close(self._writer)
        self._api.close()

    def _enqueue(self, feed: Feed) -> None:
        heapq.heappush(self._queue, (feed.due_ms, next(self._order), feed))
        self._lock.notify()

    def _work(self) -> None:
        while (feed := self._next()) is not None:
            answer = feed.fetch(self._api, self._clock)
            with self._lock:
                if self._closed:
                    return
                if feed.take_in(answer, self._clock.monotonic_ms(), random.random()) and not self._signalled:
                    self._signalled = True  # one byte is enough until the next poll, and can't fill the pipe
                    os.write(self._writer, b"\0")
                if feed.hungry:
                    self._enqueue(feed)
                elif not feed.closed:
                    self._resting.add(feed)

    def _next(self) -> Feed | None:
        """Wait for a feed that is due; None when everything is closed.

        Of the threads that wait, one wakes up when the next feed is due, and the others when there is more to do.
        """
        with self._lock:
            while not self._closed:
                due_ms = self._queue[0][0] if self._queue else inf
                wait_ms = due_ms - self._clock.monotonic_ms()
                if wait_ms <= 0:
                    feed = heapq.heappop(self._queue)[2]
                    if not feed.closed:
                        self._lock.notify()  # another thread handles the next one
                        return feed
                elif due_ms < self._alarm_ms:
                    self._alarm_ms = due_ms
                    self._lock.wait(wait_ms / 1000)
                    if self._alarm_ms == due_ms:
                        self._alarm_ms = inf
                else:
                    self._lock.wait()
            return None
