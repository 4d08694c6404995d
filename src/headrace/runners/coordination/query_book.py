"""Questions about tables on their way to containers and back: pure, bounded.

An ask becomes one question for each container that has some of its tasks. A container gets the oldest one it hasn't
answered, again and again until it has: so an answer that was lost on the way, and a container that was replaced in the
midst of it, cost nothing but time. Whoever asks gives up in time; what is answered after that is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.core.errors import ProtocolError, UnavailableError, UsageError
from headrace.runners.coordination.messages import ErrorReport, QueriesStatus
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
"""So many asks may wait at once; one more is refused."""

ANSWER_BYTES_MAX = 3 << 20
"""What all tasks together may answer, roughly: as base64 it has to fit into a request."""

TASK_BYTES_MIN = 32 << 10


@dataclass(slots=True)
class _Asked:
    ask: Ask
    bytes_max: int
    open: dict[int, list[str]]
    answers: dict[str, TaskAnswer] = field(default_factory=dict)


class QueryBook:
    """The questions of one run. Asks are known by their number."""

    def __init__(self, containers: Iterable[Sequence[object]]) -> None:
        """``containers`` are the tasks of each container, in order."""
        self._container_of = {str(task): number for number, tasks in enumerate(containers) for task in tasks}
        self._asked: dict[int, _Asked] = {}
        self._next = 1
        self._answered = self._timed_out = self._refused = 0

    def ask(self, ask: Ask) -> int:
        """Take in an ask; its number. Raises ``UsageError``, or ``UnavailableError`` when too many wait."""
        if not ask.tasks or len(set(ask.tasks)) != len(ask.tasks):
            raise UsageError(f"a question about table {ask.table!r} names each of its tasks once, and one at least")
        if unknown := [task for task in ask.tasks if task not in self._container_of]:
            raise UsageError(f"no container of this run has the tasks {', '.join(unknown)}")
        if len(ask.tasks) > TASKS_MAX:
            raise UsageError(f"{len(ask.tasks)} tasks are asked at once", hint=f"ask {TASKS_MAX} at most")
        if not 1 <= ask.rows <= ROWS_MAX:
            raise UsageError(f"{ask.rows} rows are asked for", hint=f"a page has 1 to {ROWS_MAX} rows")
        if len(ask.keys) > KEYS_MAX:
            raise UsageError(f"{len(ask.keys)} keys are asked for at once", hint=f"ask for {KEYS_MAX} at most")
        if len(self._asked) >= WAITING_MAX:
            self._refused += 1
            raise UnavailableError(
                f"{WAITING_MAX} questions about tables wait already",
                hint="ask again in a moment; if containers are missing, headrace status shows which",
            )
        open_: dict[int, list[str]] = {}
        for task in ask.tasks:
            open_.setdefault(self._container_of[task], []).append(task)
        number, self._next = self._next, self._next + 1
        bytes_max = max(TASK_BYTES_MIN, ANSWER_BYTES_MAX // len(ask.tasks))
        self._asked[number] = _Asked(ask, bytes_max, open_)
        return number

    def next(self, container: int) -> Question | None:
        """What this container is to answer next, if anything."""
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
                )
        return None

    def answer(self, container: int, answer: Answer) -> None:
        """A container has answered. An answer that comes twice, or too late, changes nothing."""
        asked = self._asked.get(answer.number)
        if asked is None or container not in asked.open:
            return
        found = [one.task for one in answer.answers]
        if found != asked.open[container]:
            raise ProtocolError(
                f"container {container} answered for the tasks {found}, asked were {asked.open[container]}"
            )
        del asked.open[container]
        asked.answers |= {one.task: one for one in answer.answers}

    def waits_for(self, number: int) -> dict[int, list[str]]:
        """By container the tasks that haven't answered yet."""
        return self._asked[number].open

    def take(self, number: int, missing: ErrorReport | None = None) -> list[TaskAnswer]:
        """End an ask: all answers, and for tasks that are silent ``missing``."""
        asked = self._asked.pop(number)
        if asked.open:
            self._timed_out += 1
        else:
            self._answered += 1
        return [asked.answers.get(task) or TaskAnswer(task=task, error=missing) for task in asked.ask.tasks]

    def status(self) -> QueriesStatus:
        """Counts."""
        return QueriesStatus(
            waiting=len(self._asked), answered=self._answered, timed_out=self._timed_out, refused=self._refused
        )
