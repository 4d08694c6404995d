"""The query broker: passes queries about tables to containers, and their answers back.

Clients and containers each block on the thread of their own connection. One lock guards the book of questions and is
held for microseconds. Nothing polls: waiting threads are woken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.core.clock import Clock
from headrace.core.errors import UnavailableError
from headrace.core.log import Throttle, logger
from headrace.runners.coordination.driver_status import QueriesStatus
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.messages import ContainerState
from headrace.runners.coordination.query_book import QueryBook
from headrace.runners.coordination.query_messages import (
    LIMIT_MS_MAX,
    Answers,
    Ask,
    Listening,
    Questions,
)

HOLD_MS = 15_000.0
"""How long a container's request is held open while there is no question for it."""

_log = logger(__name__)

_REASONS: dict[ContainerState, str] = {
    "waiting": "has not registered yet",
    "running": "is busy",
    "lost": "sends no heartbeats",
    "hung": "hangs in a function of the app, and is being restarted",
    "failed": "has failed and is being restarted",
    "finished": "has ended, since all its tasks have",
}


class QueryBroker:
    """Takes queries and hands out questions. Safe from any thread."""

    def __init__(
        self,
        containers: Sequence[Sequence[object]],
        check_current: Callable[[int, str], None],
        state_of: Callable[[int], ContainerState],
        clock: Clock,
    ) -> None:
        """``check_current`` raises if an incarnation isn't its container's current one."""
        self._book = QueryBook(containers)
        self._check_current = check_current
        self._state_of = state_of
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._throttle = Throttle(_log)

    def seat(self, containers: Sequence[Sequence[object]]) -> None:
        """Note the tasks of each container, before any has registered."""
        with self._changed:
            self._book.seat(containers)

    def ask(self, ask: Ask) -> Answers:
        """Block until all tasks have answered, or for as long as the query allows."""
        limit_ms = max(0, min(ask.limit_ms, LIMIT_MS_MAX))
        with self._changed:
            number = self._book.ask(ask)
            self._changed.notify_all()
            # Don't wait for a container that has ended, because it can't answer.
            ended = any(self._state_of(container) == "finished" for container in self._book.waits_for(number))
            if not ended:
                self._wait(lambda: not self._book.waits_for(number), limit_ms)
            return Answers(answers=self._book.take(number, self._why_no_answer(number)))

    def listen(self, message: Listening) -> Questions:
        """Take a container's answer, and block until there is a question for it."""
        self._check_current(message.container, message.incarnation)
        with self._changed:
            if message.answer is not None:
                self._book.answer(message.container, message.answer)
                self._changed.notify_all()
            self._wait(lambda: self._book.next(message.container) is not None, HOLD_MS)
            question = None if self._closed else self._book.next(message.container)
        # If it was replaced while it waited, the question is for its replacement.
        self._check_current(message.container, message.incarnation)
        return Questions(question=question)

    def status(self) -> QueriesStatus:
        """Return the numbers of questions."""
        with self._changed:
            return self._book.status()

    def close(self) -> None:
        """Wake all waiting threads; later calls don't block. Idempotent."""
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

    def _why_no_answer(self, number: int) -> ErrorReport | None:
        missing = self._book.waits_for(number)
        if not missing:
            return None
        whys = [f"container {container} {_REASONS[self._state_of(container)]}" for container in sorted(missing)]
        tasks = ", ".join(task for container in sorted(missing) for task in missing[container])
        why = "the app is ending" if self._closed else "; ".join(whys)
        self._throttle.warning("a question about a table got no answer in time", tasks=tasks, reason=why)
        error = UnavailableError(
            f"no answer from {tasks} in time: {why}",
            hint="ask again, with a longer timeout if it is busy; headrace status shows the containers",
        )
        return ErrorReport.of(error, with_traceback=False)
