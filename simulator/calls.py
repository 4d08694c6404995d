"""Calls of the user's functions in virtual time: the real lanes, on an event loop that the world drives.

Nothing runs beside anything else: what is due on the loop is an event of the world as any other. How long a service
takes, and when it fails, is drawn from the seed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple, Unpack

from typing_extensions import override

from headrace.task.calls import Calls, Threads
from simulator.expected import Row
from simulator.world import World

_NEVER_S = 3600.0
_LONGEST_S = 0.06
"""Longer than the interval between checkpoints: commits have to wait."""
_SILENT = 0.03
_FAILING = 0.15
_LONGEST_MS = 120
"""A plain function may take longer than a step waits for it: its thread stays busy with it."""
_Taken = TypeVarTuple("_Taken")
Key = tuple[int, ...]


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as coroutines need that wait for time, for futures and for each other."""

    def __init__(self, world: World, caller: int = 0) -> None:
        self.world = world
        self.caller = caller
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self) -> None:
        """Run what is ready, and what becomes ready by that."""
        self._planned = False
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)

    def end(self) -> None:
        """Cancel all tasks, and let them end."""
        for task in list(self._tasks):
            task.cancel()
        self.run()

    # -- what asyncio asks for

    @override
    def time(self) -> float:
        """The world's time, in seconds."""
        return self.world.now / 1000

    @override
    def get_debug(self) -> bool:
        """Never: it would look at the real clock."""
        return False

    @override
    def call_soon(
        self, callback: Callable[[Unpack[_Taken]], object], *args: *_Taken, context: Context | None = None
    ) -> asyncio.Handle:
        """Call in the world's next event of this loop."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._planned:
            self._planned = True
            self.world.after(0.0, self.run)
        return handle

    @override
    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Taken]], object], *args: *_Taken, context: Context | None = None
    ) -> asyncio.Handle:
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Taken]], object],
        *args: *_Taken,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call after so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Taken]], object],
        *args: *_Taken,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call then."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.after(max(0.0, when * 1000 - self.world.now), lambda: self._due(handle))
        return handle

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self.run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the world's heap, and is left out when its time comes."""

    @override
    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        """A task of this loop."""
        task = asyncio.Task(coro, loop=self, **named)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: so does the world. That a task was left behind when all is over is nobody's matter."""
        if "exception" in context:
            raise context["exception"]


class VirtualThreads(Threads):
    """Threads of virtual time: a function is called when its thread is done, and fails at times, also afterwards."""

    def __init__(self, world: World, most: int) -> None:
        self._world = world
        self._free = most
        self._queue: deque[tuple[Callable[[Any], Any], Any, asyncio.Future[Any]]] = deque()

    @override
    def run(
        self, function: Callable[[Any], Any], argument: Any, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append((function, argument, future))
        self._begin()
        return future

    @override
    def close(self) -> None:
        self._queue.clear()

    def _begin(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            work = self._queue.popleft()
            self._world.after(self._world.chance.random() ** 3 * _LONGEST_MS, partial(self._end, *work))

    def _end(self, function: Callable[[Any], Any], argument: Any, future: asyncio.Future[Any]) -> None:
        self._free += 1
        if not future.done():
            try:
                result = function(argument)
                if self._world.chance.random() < _FAILING:
                    raise ConnectionError("what the function asked failed")
                future.set_result(result)
            except Exception as error:  # noqa: BLE001  # whoever awaits it knows what to do
                future.set_exception(error)
        self._begin()


class VirtualCalls(Calls):
    """The calls of one incarnation."""

    def __init__(self, world: World, caller: int = 0, wake: Callable[[], None] = lambda: None) -> None:
        """``caller`` is the number of the incarnation; ``wake`` is called when an answer has come."""
        super().__init__(wake, world.chance.random)
        self._world = world
        self._caller = caller
        self._virtual: VirtualLoop | None = None

    @override
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._virtual is None:
            self._virtual = VirtualLoop(self._world, self._caller)  # type: ignore[abstract]  # nobody asks for the rest
        return self._virtual

    @override
    def threads(self, most: int) -> Threads:
        return VirtualThreads(self._world, most)

    @override
    def close(self) -> None:
        if self._virtual is not None:
            self._virtual.end()


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError("a simulated service is asked outside a simulation")
    return loop


def _world() -> World:
    return _loop().world


def caller() -> int:
    """The number of the incarnation that asks."""
    return _loop().caller


def write(table: str, rows: Iterable[tuple[Key, Row]]) -> None:
    """Have a simulated service keep rows by their keys."""
    _world().services.setdefault(table, {}).update(rows)


def kept(table: str) -> dict[Key, Row]:
    """What a simulated service has by now."""
    return _world().services.setdefault(table, {})


def moment() -> int:
    """The world's time, in ms."""
    return int(_world().now)


async def answer() -> None:
    """Wait as long as a service takes to answer. At times it fails, and at times it says nothing at all."""
    chance = _world().chance
    await asyncio.sleep(_NEVER_S if chance.random() < _SILENT else chance.random() ** 3 * _LONGEST_S)
    if chance.random() < _FAILING:
        raise ConnectionError("the service failed")
