"""What the coordinator knows of one container: its current incarnation, how it does, and how its lives have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.ids import TaskName
from headrace.runners.coordination import messages
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.long_calls import LongCall


@dataclass(slots=True)
class ContainerRecord:
    """A container of a run. A life lasts from a registration until the next one."""

    number: int
    tasks: tuple[TaskName, ...]
    state: messages.ContainerState = "waiting"
    registered: messages.Register | None = None
    superseded: str | None = None
    seen_ms: float | None = None
    grants: dict[TaskName, int] = field(default_factory=dict)
    heartbeat: messages.Heartbeat | None = None
    error: ErrorReport | None = None
    born_ms: float = 0.0
    restarts: int = 0
    restarted_ms: deque[float] = field(default_factory=lambda: deque(maxlen=messages.RESTARTS_KEPT))
    failures: int = 0
    """How many lives in a row have failed."""
    committed: set[str] = field(default_factory=set)
    """The tasks that have committed, or ended, in this life."""
    pause_ms: int = 0
    call: LongCall | None = None
    waited_for: int = 0
    lacks: str = ""
    """Why there is no slot for its next process."""

    @property
    def alive(self) -> bool:
        """Whether its process may still run."""
        return self.state in {"running", "lost", "hung"}

    def begin_life(self, registered: messages.Register, now_ms: float) -> None:
        """Another process has registered, which replaces the present one, if there is one."""
        before = self.registered
        if before is not None:
            self.restarts += 1
            self.restarted_ms.append(now_ms)
        self.superseded = before.incarnation if before else None
        self.registered = registered
        self.seen_ms = self.born_ms = now_ms
        self.grants = {}
        self.heartbeat = None
        self.committed = set()
        self.call = None
        self.lacks = ""

    def progressed(self, tasks: Iterable[str]) -> None:
        """Tasks have committed, or ended."""
        self.committed.update(tasks)
        if self.committed and self.alive:
            self.error = None

    def status(self, now_ms: float) -> messages.ContainerStatus:
        """Its part of the app's status."""
        who, heartbeat, seen_ms = self.registered, self.heartbeat, self.seen_ms
        return messages.ContainerStatus(
            id=self.number,
            state=self.state,
            host=who.host if who else None,
            pid=who.pid if who else None,
            attempt=who.attempt if who else None,
            last_seen_ms=None if seen_ms is None else max(0, round(now_ms - seen_ms)),
            tasks=[str(task) for task in self.tasks],
            cpu_ms=heartbeat.cpu_ms if heartbeat else 0,
            rss_bytes=heartbeat.rss_bytes if heartbeat else 0,
            failures=self.failures,
            restarts=self.restarts,
            restarted_ago_ms=[max(0, round(now_ms - at)) for at in self.restarted_ms],
            error=self.error,
            lacks=self.lacks,
            standbys=heartbeat.standbys if heartbeat else [],
        )
