"""Mistakes with steps that wait for answers, and hold rows meanwhile."""

from __future__ import annotations

from mutant_kit import mutant

from headrace.protocol import instructions as do
from headrace.task.host.attempt import Attempt
from headrace.task.host.task_host import TaskHost
from headrace.task.operators.functions import WaitingOperator
from headrace.task.outputs.publisher import FunctionPublisher, Publisher
from headrace.task.task import Task
from simulator.run import Parts

APPS = "app-async", "app-ordered", "app-remote"


PREPARED = Attempt._prepared


def impatient(self, instruction, now_ms):
    """Commits while rows are held."""
    return PREPARED(self, instruction, now_ms) or isinstance(instruction, do.FlushOutputs)


mutant(
    "commits don't wait",
    "a commit is made while a step waits for answers",
    Parts(),
    *APPS,
    patches=((Attempt, "_prepared", impatient),),
    first_seed=3,
)


def hurried(self, instruction, now_ms):
    """Ends while rows are held."""
    ready = PREPARED(self, instruction, now_ms)
    if isinstance(instruction, do.Finish):
        self.task.finished = True
    return ready or isinstance(instruction, do.Finish)


mutant(
    "the end doesn't wait",
    "end-of-stream is sent while a step waits",
    Parts(),
    *APPS,
    patches=((Attempt, "_prepared", hurried),),
)


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
    Parts(task=Overtaken),
    *APPS,
)


class Hanging(TaskHost):
    """Begins again with what its steps wait for."""

    def _start_over(self):
        before = self.task
        self.attempt.close = lambda: None
        super()._start_over()
        if before is not self.task:
            for old, new in zip(waiting(before), waiting(self.task), strict=True):
                new._queue, new._lane, new._asked = old._queue, old._lane, old._asked
        else:
            del self.attempt.close


mutant("held rows survive", "a rollback keeps what steps wait for", Parts(host=Hanging), *APPS, first_seed=14)


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
    Parts(publisher=Trusting),
    "app-written",
)
