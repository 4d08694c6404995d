"""Where those who ask about tables and the containers that answer meet: each blocks on its own connection's thread.

One lock guards the book of questions, and is held for microseconds. Nobody polls: whoever waits is woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.log import Throttle, logger
from headrace.runners.coordination.messages import ContainerState, ErrorReport, QueriesStatus
from headrace.runners.coordination.query_book import QueryBook
from headrace.runners.coordination.query_messages import (
    LIMIT_MS_MAX,
    Answers,
    Ask,
    Listening,
    Questions,
)

HOLD_MS = 15_000.0
"""So long a container's request is held when there is nothing to ask."""

_log = logger(__name__)

_GONE: dict[ContainerState, str] = {
    "waiting": "has not registered yet",
    "running": "is busy",
    "lost": "was not heard of for too long",
    "failed": "has failed, and is being started anew",
    "finished": "has ended, as all its tasks are over",
}


class QueryBroker:
    """Takes questions and hands them out. Safe from any thread."""

    def __init__(
        self,
        containers: Sequence[Sequence[object]],
        check_current: Callable[[int, str], None],
        state_of: Callable[[int], ContainerState],
        clock: Clock,
    ) -> None:
        """``check_current`` raises for a container's incarnation that isn't the current one."""
        self._book = QueryBook(containers)
        self._check_current = check_current
        self._state_of = state_of
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._throttle = Throttle(_log)

    def ask(self, ask: Ask) -> Answers:
        """Block until all tasks have answered, or the time that the asker gave is over."""
        limit_ms = max(0, min(ask.limit_ms, LIMIT_MS_MAX))
        with self._changed:
            number = self._book.ask(ask)
            self._changed.notify_all()
            # Who has ended answers no more: that is said at once.
            ended = any(self._state_of(container) == "finished" for container in self._book.waits_for(number))
            if not ended:
                self._wait(lambda: not self._book.waits_for(number), limit_ms)
            return Answers(answers=self._book.take(number, self._why_silent(number)))

    def listen(self, message: Listening) -> Questions:
        """Take in what a container has answered, and block until there is a question for it."""
        self._check_current(message.container, message.incarnation)
        with self._changed:
            if message.answer is not None:
                self._book.answer(message.container, message.answer)
                self._changed.notify_all()
            self._wait(lambda: self._book.next(message.container) is not None, HOLD_MS)
            question = None if self._closed else self._book.next(message.container)
        # It may have been replaced while it waited: the question is for the one that has its place now.
        self._check_current(message.container, message.incarnation)
        return Questions(question=question)

    def status(self) -> QueriesStatus:
        """Counts."""
        with self._changed:
            return self._book.status()

    def close(self) -> None:
        """Wake everybody up; from now on nobody waits. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool], limit_ms: float) -> None:
        deadline = self._clock.monotonic_ms() + limit_ms
        while not self._closed and not reached():
            left_ms = deadline - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            self._changed.wait(left_ms / 1000)

    def _why_silent(self, number: int) -> ErrorReport | None:
        silent = self._book.waits_for(number)
        if not silent:
            return None
        whys = [f"container {container} {_GONE[self._state_of(container)]}" for container in sorted(silent)]
        tasks = ", ".join(task for container in sorted(silent) for task in silent[container])
        why = "the app is ending" if self._closed else "; ".join(whys)
        self._throttle.warning("a question about a table got no answer in time", tasks=tasks, reason=why)
        error = UnavailableError(
            f"no answer from {tasks} in time: {why}",
            hint="ask again, with more time if it is busy; headrace status shows how its containers are doing",
        )
        return ErrorReport.of(error, with_traceback=False)
