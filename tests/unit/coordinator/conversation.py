"""A ledger of two stages and two containers, and the messages of its containers."""

from __future__ import annotations

from typing import Any

from headrace.coordinator import messages as m
from headrace.coordinator.ledger import Ledger
from headrace.core.ids import TaskName

STAGES = {"a": [TaskName("a", 0), TaskName("a", 1)], "b": [TaskName("b", 0)]}
"""Container 0 gets a/0 and b/0, container 1 gets a/1."""


class Process:
    """The messages of one incarnation of a container."""

    def __init__(self, container: int, incarnation: str, attempt: int = 0) -> None:
        self.container = container
        self.incarnation = incarnation
        self.attempt = attempt

    def register(self, left: dict[str, m.LastWords] | None = None) -> m.Register:
        return m.Register(
            container=self.container,
            attempt=self.attempt,
            host="box",
            pid=100 + self.attempt,
            incarnation=self.incarnation,
            left=left or {},
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


def started(**options: Any) -> tuple[Ledger, Process, Process]:
    """A ledger with both containers registered at 0 and all their tasks running."""
    ledger = new_ledger(**options)
    zero, one = Process(0, "u0"), Process(1, "u1")
    ledger.register(zero.register(), 0)
    ledger.register(one.register(), 0)
    ledger.heartbeat(zero.heartbeat(0, task("a/0"), task("b/0")), 0)
    ledger.heartbeat(one.heartbeat(0, task("a/1")), 0)
    return ledger, zero, one


def notes(ledger: Ledger) -> list[tuple[str, str, int | None]]:
    """What has happened since the last call."""
    return [(note.level, note.what, note.container) for note in ledger.take_notes()]
