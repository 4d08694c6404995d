"""Mistakes with steps that wait for answers, and hold rows meanwhile."""

from __future__ import annotations

from mutant_kit import app, mutant

from headrace.checkpoint.instructions import Finish, FlushOutputs
from headrace.runtime.host.attempt import Attempt
from headrace.runtime.operators.user_code.waiting import WaitingOperator
from headrace.runtime.outputs.function_publisher import FunctionPublisher
from headrace.runtime.outputs.publisher import Publisher
from headrace.runtime.task import Task
from simulator.app_task import AppTask
from simulator.run import Parts

APPS = "app-async", "app-ordered", "app-remote"


class Impatient(Attempt):
    """Commits while rows are held."""

    def _prepared(self, instruction, now_ms):
        return super()._prepared(instruction, now_ms) or isinstance(instruction, FlushOutputs)


mutant("commits don't wait", "a commit is made while a step waits for answers", app(attempt_class=Impatient), *APPS)


class Hurried(Attempt):
    """Ends while rows are held."""

    def _prepared(self, instruction, now_ms):
        ready = super()._prepared(instruction, now_ms)
        if isinstance(instruction, Finish):
            self.task.finished = True
        return ready or isinstance(instruction, Finish)


mutant("the end doesn't wait", "end-of-stream is sent while a step waits", app(attempt_class=Hurried), *APPS)


def waiting(task):
    return [operator for operator in task.chain if isinstance(operator, WaitingOperator)]


class Overtaken(Task):
    """Time passes steps that wait as it passes others."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        for operator in waiting(self):
            operator.watermark_after = lambda watermark: watermark


mutant(
    "watermarks overtake rows that are held",
    "a watermark doesn't stand in line behind the rows that came first",
    app(task_class=Overtaken),
    *APPS,
)


class Hanging(AppTask):
    """Begins again with what its steps wait for."""

    def drop_uncommitted(self):
        before = getattr(self, "task", None)
        if before is not None:
            self.attempt.close = lambda: None
        super().drop_uncommitted()
        if before is not None and before is not self.task:
            for old, new in zip(waiting(before), waiting(self.task), strict=True):
                new._queue, new._lane, new._asked = old._queue, old._lane, old._asked


mutant("held rows survive", "a rollback keeps what steps wait for", Parts(app_task=Hanging), *APPS)


class Unasked(FunctionPublisher):
    """Takes what it is about to write for written."""

    def _split(self, rows):
        super()._split(rows)
        self.outbox.published(self._version)


class Trusting(Publisher):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        for output in self._outputs.values():
            output.__class__ = Unasked


mutant(
    "writes aren't waited for",
    "an outbox lets go what a call is about to write",
    app(publishing_class=Trusting),
    "app-written",
)
