"""One job at a time for each writer, in threads; the run loop starts them, and looks for their results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, wait

from headrace.core.errors import UnavailableError
from headrace.core.log import logger

LOOK_MS = 2.0
"""How soon the run loop looks for a result."""

_log = logger(__name__)

Job = Callable[[], float | None]


class Turns:
    """The jobs of some writers. One thread uses it."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._jobs: dict[str, tuple[Hashable, Future[float | None]]] = {}

    def take(self, writer: str, what: Hashable, job: Job) -> float | None:
        """Start a job of a writer, or return its outcome: the result, or after how many ms to call again.

        ``what`` distinguishes jobs. A job for another caller is finished first.
        """
        under_way = self._jobs.get(writer)
        if under_way is not None:
            asked, future = under_way
            if not future.done():
                return LOOK_MS
            del self._jobs[writer]
            if asked == what:
                return future.result()
            if (error := future.exception()) is not None:
                _log.debug("a call failed, and its caller has stopped waiting", writer=writer, error=str(error))
        self._jobs[writer] = what, self._threads.submit(job)
        return LOOK_MS

    def wait(self, writer: str, seconds: float, ask: Callable[[], float | None]) -> None:
        """Ask until there is a result. Raises ``UnavailableError`` if that takes longer than ``seconds``."""
        end_s = time.monotonic() + seconds
        while (again_ms := ask()) is not None:
            if time.monotonic() > end_s:
                raise UnavailableError(
                    f"Kafka didn't report within {seconds:g} s what {writer} has published", hint="Headrace tries again"
                )
            under_way = self._jobs.get(writer)
            if under_way is not None and not under_way[1].done():
                wait([under_way[1]], end_s - time.monotonic())
            elif again_ms > LOOK_MS:
                threading.Event().wait(again_ms / 1000)

    def close(self) -> None:
        """Wait for the jobs that are running."""
        self._threads.shutdown(cancel_futures=True)
