"""What the driver does about containers that can't go on: those that froze or hang, and those that never register.

A container that sends no heartbeat is lost, and one that doesn't return from a function of the app hangs. Spark starts
no other attempt while the old task runs, so the driver has the attempt killed. A container that fails before it
registers (a module is missing, or it has another interpreter) can't report why. Spark knows the reason, and would try
again forever.

All of it runs on the driver's watching thread, which blocks in ``watch``. Spark is asked only when there is need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.core.log import logger
from headrace.runners.coordination.messages import OVER, AppStatus
from headrace.runners.coordination.server import Coordinator
from headrace.runners.spark.hosting import AttemptFailure
from headrace.runners.spark.slots import Slots, lacking

_log = logger(__name__)

WATCH_S = 0.25
"""How often the job is checked; the end of the app is noticed at once."""

GRACE_MS = 1000.0
"""How long the driver itself must see a container as stuck: perhaps only the driver was suspended."""

_WHY: Mapping[str, str] = {
    "lost": "has sent no heartbeat for too long",
    "hung": "has been in one call of the app's own code for too long",
}
"""The states of containers that are killed."""

EXPLAINED_MAX = 3
UNEXPLAINED_MAX = 30
"""How many attempts in a row may end before they register: with a reason (a traceback), or because they were lost."""

_LOSS = re.compile(r"ExecutorLostFailure|Python worker exited unexpectedly|TaskKilled|killed|FetchFailed")
_TRACEBACK = "Traceback (most recent call last)"

ABSENT_MS = 3000.0
"""How long a container may be absent before Spark is asked whether there is a slot for it."""

SLOTS_EVERY_MS = 1000.0
"""How often Spark is asked about slots, while containers are absent."""

_ABSENT = frozenset({"waiting", "lost", "failed"})

Seat = tuple[int, int]
"""A container's number and its attempt."""


class Job(Protocol):
    """What the supervision needs of the Spark job."""

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended."""
        ...

    def error(self) -> HeadraceError | None:
        """Why it failed, if it did."""
        ...

    def kill(self, container: int, attempt: int, why: str) -> bool:
        """Kill an attempt; Spark starts the next one."""
        ...

    def failure_count(self) -> int:
        """How many attempts have failed."""
        ...

    def failures(self) -> list[AttemptFailure]:
        """The attempts that have failed, in order."""
        ...

    def placed(self) -> set[int]:
        """The containers to which Spark has given a slot."""
        ...

    def slots(self) -> Slots:
        """The slots that there are."""
        ...


def watch(coordinator: Coordinator, job: Job, show: Callable[[AppStatus], None] | None = None) -> AppStatus:
    """Supervise the app until it is over; returns its last status.

    Raises if Spark ends the job before that.
    """
    supervisor = Supervisor(job, coordinator.fail, coordinator.lack)
    while True:
        coordinator.wait(WATCH_S)
        # Asked before the app is: containers report their end to the coordinator before they end for Spark.
        job_is_over = job.wait(0)
        status = coordinator.status()
        if show is not None:
            show(status)
        if status.state in OVER:
            return status
        if not job_is_over:
            supervisor.look(status, WallClock().monotonic_ms())
        if job_is_over:
            raise job.error() or InfrastructureError(
                "Spark's job has ended, but the app hasn't",
                hint="see Spark's log for what happened to the containers",
            )


class Supervisor:
    """Supervises one job. ``give_up`` ends the app with an error, and ``lack`` hears which containers have no slot."""

    def __init__(
        self,
        job: Job,
        give_up: Callable[[Exception], None],
        lack: Callable[[Mapping[int, str]], None] = lambda reasons: None,
    ) -> None:
        self._job = job
        self._give_up = give_up
        self._lack = lack
        self._absent: dict[int, float] = {}
        self._asked_ms = float("-inf")
        self._stuck: dict[Seat, float] = {}
        self._killed: set[Seat] = set()
        self._failures_seen = 0

    def look(self, status: AppStatus, now_ms: float) -> None:
        """Act on the present status."""
        self._kill_stuck(status, now_ms)
        self._look_for_slots(status, now_ms)
        count = self._job.failure_count()
        if count != self._failures_seen:
            _log.info("Spark reports failed attempts at containers", failures=count)
            self._failures_seen = count
            registered = {c.id: -1 if c.attempt is None else c.attempt for c in status.containers}
            if error := why_hopeless(self._job.failures(), registered):
                self._give_up(error)

    def _look_for_slots(self, status: AppStatus, now_ms: float) -> None:
        absent = {c.id: self._absent.get(c.id, now_ms) for c in status.containers if c.state in _ABSENT}
        self._absent = absent
        long = {id_ for id_, since_ms in absent.items() if now_ms - since_ms >= ABSENT_MS}
        if long and now_ms - self._asked_ms >= SLOTS_EVERY_MS:
            self._asked_ms = now_ms
            self._lack(lacking(long, self._job.placed(), self._job.slots()))

    def _kill_stuck(self, status: AppStatus, now_ms: float) -> None:
        stuck = {(c.id, c.attempt): c.state for c in status.containers if c.state in _WHY and c.attempt is not None}
        self._stuck = {seat: self._stuck.get(seat, now_ms) for seat in stuck}
        self._killed &= stuck.keys()
        for (container, attempt), since_ms in self._stuck.items():
            if now_ms - since_ms >= GRACE_MS:
                why = _WHY[stuck[container, attempt]]
                if (container, attempt) not in self._killed:
                    _log.warning(f"killing a container that {why}", container=container, attempt=attempt)
                self._killed.add((container, attempt))
                self._job.kill(container, attempt, f"container {container} {why}")
                self._stuck[container, attempt] = now_ms  # if that doesn't help, it is killed again later


def why_hopeless(failures: Sequence[AttemptFailure], registered: dict[int, int]) -> InfrastructureError | None:
    """The error to end the app with, if a container's last attempts all failed before they could register."""
    for container, attempt in registered.items():
        early = [f for f in failures if f.container == container and f.attempt > attempt]
        explained = [f for f in early if _TRACEBACK in f.message or not _LOSS.search(f.message)]
        if len(explained) >= EXPLAINED_MAX or len(early) >= UNEXPLAINED_MAX:
            last = (explained or early)[-1]
            return InfrastructureError(
                f"container {container} failed {len(early)} times in a row before it could register:\n{last.message}",
                hint="every executor needs the same Python, Headrace and your app's own modules (the folder of the "
                "script is on the path of local containers; on a cluster use spark.submit.pyFiles or an image)",
            )
    return None
