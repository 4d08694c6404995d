"""Slow calls of users' functions: made outside the run loop, with their results put back in order.

``async`` functions run on one event loop, on its own thread; plain functions run in threads, as many as a step may call
at once. A *lane* makes the calls of one step, and keeps the outcomes until the step takes them on the run loop's
thread, which it wakes. When it is closed, remaining calls are cancelled; a plain function can't be: its result is
ignored. All threads are daemons, so they don't keep the process from ending.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import takewhile
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from headrace.core.calls import Calling, TokenBucket, is_async
from headrace.core.errors import HeadraceError
from headrace.core.log import Throttle, logger

CLOSE_S_MAX = 5.0  # how long closing waits for the event loop, which a user's function may block
_log = logger(__name__)
Argument = TypeVar("Argument")


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of one call: a result, or the error of the last attempt."""

    place: int
    result: Any = None
    error: BaseException | None = None
    attempts: int = 1


@dataclass(slots=True)
class Tally:
    """What a lane has done so far. The event loop's thread counts, any thread may read."""

    calls: int = 0  # calls that have ended, with a result or an error
    ms: float = 0.0  # how long they took in all, with pauses between attempts, without the time before they started
    retries: int = 0
    timeouts: int = 0
    failures: int = 0  # calls that failed in the last attempt


@dataclass(frozen=True, slots=True)
class Blocked:
    """An ``async`` function doesn't let the event loop go on: since when at least (monotonic), in which thread."""

    since_ms: float
    thread: int


class Calls:
    """All lanes of a container. Made and closed on the run loop's thread."""

    def __init__(self, wake: Callable[[], None], chance: Callable[[], float] = random.random) -> None:
        """``wake`` wakes the run loop, from any thread; ``chance`` is random in [0, 1), for pauses between attempts."""
        self.chance = chance
        self._wake = wake
        self._waking = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._asked_ms: float | None = None

    def ring(self) -> None:
        """Called by lanes, on the event loop's thread."""
        with self._waking:
            if not self._closed:
                self._wake()

    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-calls", daemon=True)
            self._thread.start()
        return self._loop

    def blocked(self, now_ms: float) -> Blocked | None:
        """What keeps the event loop from its next round. Call it now and then, always on one other thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return None
        asked_ms = self._asked_ms
        if asked_ms is None:
            self._asked_ms = now_ms
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._answer)
            return None
        return Blocked(asked_ms, thread.ident or 0)

    def _answer(self) -> None:
        self._asked_ms = None

    def threads(self, most: int) -> Threads:
        return Threads(most)

    def close(self) -> None:
        with self._waking:
            self._closed = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end(self._loop), self._loop)
        self._thread.join(CLOSE_S_MAX)
        if not self._thread.is_alive():
            self._loop.close()
        else:
            _log.warning("a function of the app blocks the event loop; not waiting for it", seconds=CLOSE_S_MAX)
        self._loop = self._thread = None


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=CLOSE_S_MAX / 2) if others else None
    await loop.shutdown_asyncgens()
    loop.stop()


@dataclass(eq=False)
class Lane(Generic[Argument]):
    """The calls of one function by one step: public methods on the run loop's thread, others on the event loop's."""

    _calls: Calls
    _function: Callable[[Argument], Any]
    calling: Calling
    _limit: TokenBucket | None = None
    _cost: Callable[[Argument], float] = lambda argument: 1.0

    def __post_init__(self) -> None:
        self._threads = None if is_async(self._function) else self._calls.threads(self.calling.concurrency)
        self._waiting: deque[tuple[int, Argument]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._done: deque[Done] = deque()
        self._rung = self._closed = False
        self.tally = Tally()
        self._throttle = Throttle(_log)
        self._warned = False
        self.unfinished = 0  # calls that were put in and whose outcome wasn't taken yet
        self.failing = 0  # the number of attempts that have failed in a row
        self.trouble: str | None = None  # why the last attempt of some call failed, until one succeeds

    def put(self, calls: Iterable[tuple[int, Argument]]) -> None:
        before = len(self._waiting)
        self._waiting.extend(calls)
        self.unfinished += len(self._waiting) - before
        self._calls.loop().call_soon_threadsafe(self._start_some)

    def take(self) -> list[Done]:
        self._rung = False  # first and always, so that the next outcome wakes the run loop again
        taken = []
        while self._done:
            taken.append(self._done.popleft())
        self.unfinished -= len(taken)
        return taken

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._done.clear()
        self.unfinished = 0
        if self._threads is not None:
            self._threads.close()
        if self._running:
            self._calls.loop().call_soon_threadsafe(self._cancel)

    def _start_some(self) -> None:
        loop = self._calls.loop()
        while len(self._running) < self.calling.concurrency and not self._closed:
            try:
                place, argument = self._waiting.popleft()
            except IndexError:
                return
            task = loop.create_task(self._call(place, argument))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start_some()

    def _cancel(self) -> None:
        for task in self._running:
            task.cancel()

    async def _call(self, place: int, argument: Argument) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        attempts = 0
        while True:
            attempts += 1
            try:
                done = Done(place, result=await self._attempt(argument, loop), attempts=attempts)
                if self._warned:  # as rarely as the warnings themselves
                    _log.info("calls succeed again", function=self._named, failures=self.failing)
                self.trouble, self.failing, self._warned = None, 0, False
                break
            except BaseException as error:  # noqa: BLE001 - whatever it is, the step says whose it is
                if self._closed:
                    return
                pause = self._pause_after(error, attempts)
                if pause is None:
                    self.tally.failures += 1
                    done = Done(place, error=error, attempts=attempts)
                    break
                self.tally.retries += 1
                self._warned |= self._throttle.warning(
                    "a call failed and is tried again", function=self._named, attempts=attempts, error=self.trouble
                )
                await asyncio.sleep(pause / 1000)
        self.tally.calls += 1
        self.tally.ms += (loop.time() - began) * 1000
        self._hand_over(done)

    async def _attempt(self, argument: Argument, loop: asyncio.AbstractEventLoop) -> Any:
        if self._limit is not None:
            wait = self._limit.take(self._cost(argument), loop.time() * 1000)
            if wait > 0:
                await asyncio.sleep(wait / 1000)
        try:
            async with asyncio.timeout(self.calling.timeout_ms / 1000) as limit:
                if self._threads is None:
                    result = self._function(argument)
                else:
                    result = await self._threads.run(self._function, argument, loop)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.tally.timeouts += 1
            raise TimeoutError(f"no answer within {self.calling.timeout_ms} ms") from error

    @property
    def _named(self) -> str:
        return getattr(self._function, "__qualname__", repr(self._function))

    def _pause_after(self, error: BaseException, attempts: int) -> float | None:
        self.trouble = f"{type(error).__name__}: {error}"
        self.failing += 1
        if isinstance(error, HeadraceError) and not error.retry:
            return None
        if not isinstance(error, Exception | asyncio.CancelledError):
            return None
        return self.calling.retry.pause_ms(attempts, self._calls.chance())

    def _hand_over(self, done: Done) -> None:
        self._done.append(done)
        if not self._rung:
            self._rung = True
            self._calls.ring()


class Threads:
    """Daemon threads, started when needed, up to a limit. On the event loop's thread, except where noted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = self._busy = 0
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, function: Callable[[Any], Any], argument: Any, loop: asyncio.AbstractEventLoop) -> Awaitable[Any]:
        future: asyncio.Future[Any] = loop.create_future()
        context = copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._busy -= 1
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:  # a future can't hold a StopIteration
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

        def work() -> None:  # in a thread
            result, error = None, None
            try:
                result = None if future.cancelled() else context.run(function, argument)
            except BaseException as raised:  # noqa: BLE001 - the awaiting call decides
                error = raised
            # After the loop is closed nothing waits for the result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        self._busy += 1
        self._work.put(work)
        if self._count < min(self._most, self._busy):
            self._count += 1
            threading.Thread(target=self._serve, name="headrace-call", daemon=True).start()
        return future

    def close(self) -> None:
        """Let each thread end after its current call. May be called from any thread."""
        for _ in range(self._most):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


Result = TypeVar("Result")


class ReorderQueue(Generic[Result]):
    """Results by place; places are numbered from 0 up."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._left = 0  # how many results have left, all of them before the first queued watermark
        self._come: dict[int, Result] = {}  # results that haven't left, by place, in the order in which they arrived
        self._marks: deque[tuple[int, int]] = deque()  # the queued watermarks, each with the number of places before it

    def __len__(self) -> int:
        return self._next - self._left

    def take_places(self, count: int) -> range:
        first = self._next
        self._next += count
        return range(first, self._next)

    def mark(self, watermark: int) -> None:
        """Queue a watermark after all places; of several in a row only the last one is kept."""
        if self._marks and self._marks[-1][0] == self._next:
            self._marks.pop()
        self._marks.append((self._next, watermark))

    def put(self, place: int, result: Result) -> None:
        self._come[place] = result

    def leave(self) -> tuple[list[Result], int | None]:
        before = self._marks[0][0] if self._marks else self._next
        if self._ordered:
            leaving = list(takewhile(self._come.__contains__, range(self._left, before)))
        else:
            leaving = [place for place in self._come if place < before]
        results = [self._come.pop(place) for place in leaving]
        self._left += len(results)
        if self._marks and self._left == before:
            return results, self._marks.popleft()[1]
        return results, None
