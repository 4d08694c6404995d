"""A ledger of two stages and two containers, and the messages of its containers."""

from __future__ import annotations

from headrace.core.ids import TaskName
from headrace.runners.coordination import messages as m
from headrace.runners.coordination.ledger import Ledger

STAGES = {"a": [TaskName("a", 0), TaskName("a", 1)], "b": [TaskName("b", 0)]}
"""Container 0 gets a/0 and b/0, container 1 gets a/1."""


class Process:
    """The messages of one incarnation of a container."""

    def __init__(self, container: int, incarnation: str, attempt: int = 0) -> None:
        self.container = container
        self.incarnation = incarnation
        self.attempt = attempt

    def register(self) -> m.Register:
        return m.Register(
            container=self.container,
            attempt=self.attempt,
            host="box",
            pid=100 + self.attempt,
            incarnation=self.incarnation,
        )

    def heartbeat(self, sent_ms: float, *tasks: m.TaskStatus) -> m.Heartbeat:
        return m.Heartbeat(container=self.container, incarnation=self.incarnation, sent_ms=sent_ms, tasks=list(tasks))

    def ask(self, task: str) -> m.GenerationRequest:
        return m.GenerationRequest(container=self.container, incarnation=self.incarnation, task=task)

    def finished(self, *tasks: str) -> m.Finished:
        return m.Finished(container=self.container, incarnation=self.incarnation, tasks=list(tasks))

    def failure(self, **error: object) -> m.Failure:
        report = m.ErrorReport(**{"type": "E", "message": "broke", "retry": True} | error)
        return m.Failure(container=self.container, incarnation=self.incarnation, error=report)


def task(name: str, state: str = "running", **rest: object) -> m.TaskStatus:
    return m.TaskStatus(name=name, state=state, **rest)


def new_ledger(**options: object) -> Ledger:
    return Ledger("app", STAGES, 2, started_at=0, guarantee="exactly-once", **options)
