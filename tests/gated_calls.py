"""Functions whose answers come when the test says so, and in the order in which it says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

TIME_MAX_S = 60.0


class Gate:
    """An async function of rows with a number ``n``; each call waits until the test answers it."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any] = lambda row: row) -> None:
        self.asked: list[int] = []
        self.most = 0
        self._answer = answer
        self._waiting: dict[int, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], dict[str, Any]]]] = {}
        self._changed = threading.Condition()
        self.cancelled = 0

    async def __call__(self, row: dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._changed:
            self.asked.append(row["n"])
            self._waiting.setdefault(row["n"], []).append((loop, future, row))
            self.most = max(self.most, sum(map(len, self._waiting.values())))
            self._changed.notify_all()
        try:
            return await future
        except asyncio.CancelledError:
            with self._changed:
                self.cancelled += 1
                calls = self._waiting.get(row["n"], [])
                calls[:] = [call for call in calls if call[1] is not future]
                self._changed.notify_all()
            raise

    def until(self, true: Callable[[], bool]) -> None:
        """Return when something is true of the calls."""
        with self._changed:
            assert self._changed.wait_for(true, TIME_MAX_S)

    def until_asked(self, *numbers: int) -> None:
        """Return when these calls wait."""
        self.until(lambda: all(self._waiting.get(number) for number in numbers))

    def answer(self, number: int) -> None:
        """Let the oldest call for this number return."""
        self.until_asked(number)
        loop, future, row = self._take(number)
        loop.call_soon_threadsafe(future.set_result, self._answer(row))

    def fail(self, number: int, error: Exception) -> None:
        """Let the oldest call for this number raise."""
        self.until_asked(number)
        loop, future, _ = self._take(number)
        loop.call_soon_threadsafe(future.set_exception, error)

    def _take(self, number: int) -> tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], dict[str, Any]]:
        with self._changed:
            calls = self._waiting[number]
            return calls.pop(0)
