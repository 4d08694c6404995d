"""Queries of tables and their answers so far. Pure and bounded.

An ``Ask`` becomes one question for each container that has some of its tasks. A container gets its oldest unanswered
question repeatedly until it answers. So a lost answer, or the replacement of a container, costs only time. The client
stops waiting at its time limit; later answers are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import ProtocolError, UnavailableError, UsageError
from headrace.runners.coordination.driver_status import QueriesStatus
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.query_messages import (
    KEYS_MAX,
    ROWS_MAX,
    TASKS_MAX,
    Answer,
    Ask,
    Question,
    TaskAnswer,
)

WAITING_MAX = 64
"""How many queries may wait at once. Further ones are refused."""

ANSWER_BYTES_MAX = 3 << 20
"""The approximate size of all tasks' answers together. As base64, they must fit into one request."""

TASK_BYTES_MIN = 32 << 10


@dataclass(slots=True)
class _Asked:
    ask: Ask
    bytes_max: int
    open: dict[int, list[str]]
    answers: dict[str, TaskAnswer] = field(default_factory=dict)


class QueryBook:
    """The queries of one run. Each has a number."""

    def __init__(self, containers: Iterable[Sequence[object]]) -> None:
        """``containers`` are the tasks of each container."""
        self._asked: dict[int, _Asked] = {}
        self.seat(containers)
        self._next = 1
        self._answered = self._timed_out = self._refused = 0

    def seat(self, containers: Iterable[Sequence[object]]) -> None:
        """Note the tasks of each container, before any has answered."""
        self._container_of = {str(task): number for number, tasks in enumerate(containers) for task in tasks}
        for asked in self._asked.values():
            asked.open = self._by_container(asked.ask)

    def ask(self, ask: Ask) -> int:
        """Add a query; return its number. Raises ``UsageError``, or ``UnavailableError`` if too many wait."""
        if not ask.tasks or len(set(ask.tasks)) != len(ask.tasks):
            raise UsageError(f"a query of table {ask.table!r} has to name at least one task, and each once")
        if unknown := [task for task in ask.tasks if task not in self._container_of]:
            raise UsageError(f"no container of this run has the tasks {', '.join(unknown)}")
        if len(ask.tasks) > TASKS_MAX:
            raise UsageError(f"a query of {len(ask.tasks)} tasks at once", hint=f"ask at most {TASKS_MAX}")
        if not 1 <= ask.rows <= ROWS_MAX:
            raise UsageError(f"a query for {ask.rows} rows", hint=f"a page has 1 to {ROWS_MAX} rows")
        if len(ask.keys) > KEYS_MAX:
            raise UsageError(f"a query for {len(ask.keys)} keys at once", hint=f"ask for at most {KEYS_MAX}")
        if len(self._asked) >= WAITING_MAX:
            self._refused += 1
            raise UnavailableError(
                f"{WAITING_MAX} queries of tables are waiting already",
                hint="ask again in a moment; headrace status shows whether a container is missing",
            )
        number, self._next = self._next, self._next + 1
        bytes_max = max(TASK_BYTES_MIN, ANSWER_BYTES_MAX // len(ask.tasks))
        self._asked[number] = _Asked(ask, bytes_max, self._by_container(ask))
        return number

    def _by_container(self, ask: Ask) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for task in ask.tasks:
            found.setdefault(self._container_of[task], []).append(task)
        return found

    def next(self, container: int) -> Question | None:
        """Return the container's next question, if any."""
        for number, asked in self._asked.items():
            if tasks := asked.open.get(container):
                ask = asked.ask
                return Question(
                    number=number,
                    table=ask.table,
                    tasks=tasks,
                    keys=ask.keys,
                    low=ask.low,
                    high=ask.high,
                    rows=ask.rows,
                    bytes_max=asked.bytes_max,
                    at_ms=ask.at_ms,
                    look=ask.look,
                )
        return None

    def answer(self, container: int, answer: Answer) -> None:
        """Take a container's answer. A repeated or late answer changes nothing."""
        asked = self._asked.get(answer.number)
        if asked is None or container not in asked.open:
            return
        found = [one.task for one in answer.answers]
        if found != asked.open[container]:
            raise ProtocolError(
                f"container {container} answered for tasks {found}, but was asked about {asked.open[container]}"
            )
        del asked.open[container]
        asked.answers |= {one.task: one for one in answer.answers}

    def waits_for(self, number: int) -> dict[int, list[str]]:
        """Return the tasks that haven't answered yet, by container."""
        return self._asked[number].open

    def take(self, number: int, missing: ErrorReport | None = None) -> list[TaskAnswer]:
        """End a query; return its answers, and ``missing`` for each task that hasn't answered."""
        asked = self._asked.pop(number)
        if asked.open:
            self._timed_out += 1
        else:
            self._answered += 1
        return [asked.answers.get(task) or TaskAnswer(task=task, error=missing) for task in asked.ask.tasks]

    def status(self) -> QueriesStatus:
        """Return the numbers of queries."""
        return QueriesStatus(
            waiting=len(self._asked), answered=self._answered, timed_out=self._timed_out, refused=self._refused
        )
