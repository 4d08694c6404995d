"""What waits to be sent to the store of snapshots: one thing for each task and purpose, so it can't grow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from headrace.stores.objects.sending import Work

AGAIN_MS = 30_000.0
"""How long something waits that couldn't be done, before it is tried again."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do, for ``key``. A newer one for the same key replaces it while it waits."""

    key: Hashable
    steps: Callable[[], Work[None]]
    warn: Callable[[str], None]
    """Told why it fails."""
    dropped: Callable[[], None] = lambda: None
    """Called when it will never be done."""


class Waiting:
    """Jobs in order of arrival, each with the earliest time at which it may run."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, tuple[float, Job]] = {}

    def offer(self, job: Job) -> None:
        """Add a job; one of the same key that waits is dropped."""
        before = self._jobs.pop(job.key, None)
        self._jobs[job.key] = 0.0, job
        if before is not None:
            before[1].dropped()

    def failed(self, job: Job, now_ms: float) -> None:
        """Do it again later, unless there is a newer one."""
        if job.key in self._jobs:
            job.dropped()
        else:
            self._jobs[job.key] = now_ms + AGAIN_MS, job

    def take(self, now_ms: float) -> Job | None:
        """The next job that may be done now."""
        for key, (due_ms, job) in self._jobs.items():
            if due_ms <= now_ms:
                del self._jobs[key]
                return job
        return None

    def due_ms(self, now_ms: float) -> float | None:
        """In how many ms there is something to do; None: there is nothing."""
        return max(0.0, min(due for due, _ in self._jobs.values()) - now_ms) if self._jobs else None
