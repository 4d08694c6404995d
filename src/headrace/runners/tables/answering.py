"""The container's side of queries: a thread that waits for questions and answers them from committed state.

It waits in a request that the coordinator holds, so it costs nothing while there are no questions. The question bounds
what it reads. The run loop waits for it only when it closes a database. If the coordinator can't be reached, the thread
tries again; whether the container ends is up to its heartbeats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import FencedError, HeadraceError, UsageError
from headrace.core.log import Throttle, logger
from headrace.runners.coordination.client import CoordinatorClient
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.query_book import ANSWER_BYTES_MAX
from headrace.runners.coordination.query_broker import HOLD_MS
from headrace.runners.coordination.query_messages import Answer, Listening, Question, Questions, TaskAnswer
from headrace.runners.looks.answers import Looks
from headrace.runtime.event_time.watermark import NEVER
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.tables.committed_tables import CommittedTables, Page
from headrace.serdes.ipc import encode_rows
from headrace.stores.versions import VersionedTable

TASK_ANSWER_BYTES_MAX = 5 << 19
"""The limit of one task's rows as Arrow, which takes more room than the stored form if strings are short."""

_PAUSE_S = 1.0

_log = logger(__name__)


class TableAnswers:
    """Answers questions about some tasks: about their tables, and what a look at them finds."""

    def __init__(self, hosts: Sequence[TaskHost], clock: Clock) -> None:
        self._looks = Looks(hosts, clock)
        self._tables = {
            str(host.name): CommittedTables(host.state, host.scope.queryable, clock.now_ms, _bounds(host))
            for host in hosts
        }

    def answer(self, question: Question) -> Answer:
        """Return what each task has, or why it can't be read. Never raises."""
        answers: list[TaskAnswer] = []
        size = 0
        for task in question.tasks:
            # A request is bounded: the client continues with the first task that had no room.
            answers.append(TaskAnswer(task=task, more=True) if size >= ANSWER_BYTES_MAX else self._of(task, question))
            size += len(answers[-1].rows)
        return Answer(number=question.number, answers=answers)

    def close(self) -> None:
        """End what was begun."""
        self._looks.close()

    def _of(self, task: str, question: Question) -> TaskAnswer:
        try:
            if question.look is not None:
                return TaskAnswer(task=task, rows=self._looks.answer(question.look, task))
            bytes_max = question.bytes_max
            while True:
                page = self._page(self._tables[task], question, bytes_max)
                rows = encode_rows(page.rows)
                if len(rows) <= TASK_ANSWER_BYTES_MAX or page.rows.height <= 1:
                    return TaskAnswer(task=task, version=page.version, rows=rows, more=page.more, last=page.last)
                bytes_max //= 2
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it and the container continues
            report = ErrorReport.of(error, with_traceback=not isinstance(error, HeadraceError))
            if question.look is None or not isinstance(error, UsageError):
                report = msgspec.structs.replace(report, message=f"task {task}: {report.message}")
            return TaskAnswer(task=task, error=report)

    @staticmethod
    def _page(tables: CommittedTables, question: Question, bytes_max: int) -> Page:
        table, at = question.table, question.at_ms
        if question.keys:
            return tables.get(table, question.keys, bytes_max, at_ms=at)
        return tables.scan(table, question.low, question.high, max(1, question.rows), bytes_max, at_ms=at)


def _bounds(host: TaskHost) -> Callable[[str], int]:
    """Return how far back a table's versions go. A rollback replaces the table, so each call asks the task for it."""

    def bound_of(table: str) -> int:
        kept = host.task.chain.tables[table]
        return kept.bound if isinstance(kept, VersionedTable) else NEVER

    return bound_of


class AnswerThread:
    """The thread that waits for questions and answers them, from ``start`` to ``close``."""

    def __init__(
        self,
        listen: Callable[[Listening], Questions],
        hang_up: Callable[[], None],
        container: int,
        incarnation: str,
        answers: TableAnswers,
    ) -> None:
        """``listen`` may block; after ``hang_up`` it has to return or raise soon."""
        self._listen = listen
        self._hang_up = hang_up
        self._container = container
        self._incarnation = incarnation
        self._answers = answers
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-tables", daemon=True)
        self._throttle = Throttle(_log)
        self.failures = 0
        """How many times the coordinator couldn't be reached."""

    @classmethod
    def over(cls, client: CoordinatorClient, container: int, incarnation: str, answers: TableAnswers) -> AnswerThread:
        """Return a thread that gets its questions over HTTP."""
        own = client.sibling(timeout_s=HOLD_MS / 1000 + 5)
        return cls(own.listen, own.close, container, incarnation, answers)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it. Idempotent."""
        self._closing.set()
        self._hang_up()
        if self._thread.ident is not None:
            self._thread.join()
        self._answers.close()

    def _run(self) -> None:
        answer: Answer | None = None
        while not self._closing.is_set():
            try:
                message = Listening(container=self._container, incarnation=self._incarnation, answer=answer)
                question = self._listen(message).question
            except FencedError:
                return  # the container has been replaced; its heartbeats report that and end it
            except HeadraceError as error:
                # The coordinator asks again for the answer, if there was one.
                answer = None
                self.failures += 1
                if self._closing.is_set():
                    return  # the call was cut off by ``close``
                self._throttle.warning(
                    "questions about tables can't be fetched; trying again",
                    container=self._container,
                    error=error.message,
                )
                self._closing.wait(_PAUSE_S)
                continue
            answer = None if question is None else self._answers.answer(question)
