"""One container of a run, from its registration with the coordinator to the report of its finished tasks.

The local runner has one session in its own process and calls the coordinator directly. On Spark each container has a
session that reaches the coordinator over HTTP.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from headrace.checkpoint.founding import Cut
from headrace.core.clock import WallClock
from headrace.core.descriptors import make_room
from headrace.core.ids import TaskName
from headrace.core.log import logger
from headrace.plan.model import Plan
from headrace.runners.coordination import messages
from headrace.runners.coordination.startpoint_messages import OutcomeReport
from headrace.runners.holdups import STILL_MS, Doing, Standstill, held_by_run_loop, holding_all, older
from headrace.runners.log_outbox import LogOutbox
from headrace.runners.reporting import task_status
from headrace.runners.tables.answering import TableAnswers
from headrace.runtime.at_work import AtWork, Movement, Work
from headrace.runtime.calls.lanes import Blocked
from headrace.runtime.container import Container
from headrace.runtime.host.task_host import TaskHost
from headrace.runtime.operators.user_code.source_line import in_debugger, line_now
from headrace.runtime.standbys import Standbys
from headrace.systems.slot_reports import Shards
from headrace.systems.startpoint import Grant, Outcome

_log = logger(__name__)

FILES_A_TASK = 2
"""At least: a lock, and until the first commit an input in a log. The tasks share other files of logs. A database takes
ten more."""
TASKS_MEASURED = 5000
"""The largest number of tasks in one container that was tried."""
STATUS_MS_MAX = 5000.0
STATUS_MS_A_TASK = 25.0
"""The maximum age of an idle task's status, and so of the ages and lags in it. In containers with many tasks it is
larger, so that idle tasks cost no more than 40 statuses a second."""


class CoordinatorLink(Protocol):
    """The coordinator's part of a session: the coordinator itself, or its client."""

    def register(self, message: messages.Register) -> messages.Assignment:
        """Become the current incarnation of the container."""
        ...

    def generation(self, message: messages.GenerationRequest) -> messages.TaskGrant:
        """Issue a new generation for a task."""
        ...

    def outcomes(self, message: OutcomeReport) -> messages.Orders:
        """Record the outcome of a task's startpoints."""
        ...

    def finished(self, message: messages.Finished) -> messages.Orders:
        """Note that tasks have ended."""
        ...


class SessionThread(Protocol):
    """A thread that runs beside a run loop, or beside the driver."""

    def start(self) -> None:
        """Start the thread."""
        ...

    def close(self) -> None:
        """End the thread and wait for it."""
        ...


class ContainerSession:
    """A registered container. ``open`` creates its tasks, ``run`` runs them, ``finish`` reports the ended ones."""

    def __init__(
        self,
        link: CoordinatorLink,
        container: int = 0,
        attempt: int = 0,
        left: Mapping[str, messages.LastWords] = MappingProxyType({}),
        outbox: LogOutbox | None = None,
    ) -> None:
        """Register with the coordinator. ``assignment`` has the tasks to run, perhaps none.

        ``left`` are the last words of former incarnations here. ``outbox`` has log lines for the driver.
        """
        self._link = link
        self._outbox = outbox or LogOutbox()
        self.number = container
        self._clock = WallClock()
        self.incarnation = uuid.uuid4().hex
        self.assignment = link.register(
            messages.Register(
                container=container,
                attempt=attempt,
                host=socket.gethostname(),
                pid=os.getpid(),
                incarnation=self.incarnation,
                left=dict(left),
            )
        )
        tasks = " ".join(grant.name for grant in self.assignment.tasks)
        _log.info("the container has registered", incarnation=self.incarnation, tasks=tasks, host=socket.gethostname())
        self._granted = {TaskName.parse(grant.name): _grant(grant) for grant in self.assignment.tasks}
        self._lock = threading.Lock()
        self._statuses: list[messages.TaskStatus] = []
        self._observed_ms = self._clock.monotonic_ms()
        self._still = Standstill()
        self._taken: dict[TaskHost, tuple[float, int, messages.TaskStatus]] = {}
        """When, and after how many turns, the last status of each task was taken."""
        # Until the container is created, which takes a while, the heartbeat has no calls to report.
        self._at_work = AtWork()
        self._blocked: Callable[[float], Blocked | None] = lambda now: None
        self._movement = Movement()
        self._runs_in = 0
        """The thread of the run loop."""
        self._wants_shutdown = False
        self._cut: str | None = None
        """The id of the ordered cut, and whether the container can't take part in it."""
        self._apart = False
        self._shards: list[list[Shards]] = []
        self.has_news = False
        """Whether the coordinator should get the latest snapshot at once, because tasks wait for its consequences."""
        self._lost: Exception | None = None
        self._standbys: Standbys | None = None

    def open(self, plan: Plan, keep: Callable[[Work | None], None] = lambda work: None) -> None:
        """Create the container and its tasks. ``keep`` is given each call of the app's own code."""
        make_room(FILES_A_TASK * len(self._granted), f"{len(self._granted)} tasks in a container")
        if len(self._granted) > TASKS_MEASURED:
            _log.warning(
                "the container has more tasks than was ever measured: use more containers",
                tasks=len(self._granted),
                measured=TASKS_MEASURED,
            )
        self._container = Container(
            plan, list(self._granted), self._next_generation, self._clock, keep, self._report_outcomes
        )
        self._at_work = self._container.connections.at_work
        self._blocked = self._container.connections.calls.blocked
        if plan.graph.settings.standby:
            self._standbys = Standbys(plan, self._clock)
        self.obey(self.assignment.orders)

    def answers(self) -> TableAnswers:
        """The thread that answers queries of the container's tables."""
        return TableAnswers(self._container.hosts, self._clock)

    @contextmanager
    def beside(self, *threads: SessionThread) -> Iterator[None]:
        """Keep these threads running for the block; then close them, the last one first, and the container."""
        with ExitStack() as stack:
            stack.callback(self._container.close)
            if self._standbys is not None:
                stack.callback(self._standbys.close)
            for thread in threads:
                stack.callback(thread.close)
            for thread in threads:
                thread.start()
            yield

    def run(self, observed: Callable[[], None] | None = None) -> None:
        """Run until all tasks have finished, or until an order ends it. Raises what ``lose`` was called with.

        ``observed`` is called on this thread whenever there is a new snapshot for ``heartbeat``.
        """

        def observe(hosts: Sequence[TaskHost]) -> None:
            self._take_snapshot(hosts)
            if observed is not None:
                observed()

        self._runs_in = threading.get_ident()
        self._observed_ms = self._clock.monotonic_ms()
        self._container.run(observe)
        if self._lost is not None:
            raise self._lost

    def finish(self) -> list[str]:
        """Report the tasks that have finished or were drained; return their names."""
        container = self._container
        over = [str(host.name) for host in container.hosts if host.finished or container.drained]
        if over and not container.stopped:
            self._link.finished(messages.Finished(container=self.number, incarnation=self.incarnation, tasks=over))
        return over

    # -- from any thread

    def heartbeat(self, *, last: bool = False) -> messages.Heartbeat:
        """Return the last snapshot of the tasks, with the run loop's present activity if it takes long.

        ``last``: with the log lines of the heartbeat before, which may not arrive.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now = self._clock.monotonic_ms()
        with self._lock:
            statuses, observed_ms, wants_shutdown = self._statuses, self._observed_ms, self._wants_shutdown
        if self._apart and (cut := self._cut) is not None:
            mark = messages.CutStatus(id=cut, state="apart")
            statuses = [msgspec.structs.replace(status, cut=mark) for status in statuses]
        statuses = [older(one, round(now - observed_ms)) for one in statuses]
        if (holdup := held_by_run_loop(self._doing(now, observed_ms), self._clock.now_ms())) is not None:
            statuses = holding_all(statuses or self._starting, holdup)
        lines, dropped = self._outbox.take(again=last)
        return messages.Heartbeat(
            container=self.number,
            incarnation=self.incarnation,
            sent_ms=now,
            tasks=statuses,
            cpu_ms=int((usage.ru_utime + usage.ru_stime) * 1000),
            rss_bytes=usage.ru_maxrss * 1024,
            wants_shutdown=wants_shutdown,
            logs=lines,
            logs_dropped=dropped,
            standbys=[] if self._standbys is None else list(self._standbys.looks),
        )

    def observed_within(self, ms: float) -> bool:
        """Whether the run loop has turned, and there was a new snapshot, in this time."""
        return self._clock.monotonic_ms() - self._observed_ms < ms

    def obey(self, orders: messages.Orders) -> None:
        """Stop or drain the container, or restart tasks of it, if the coordinator ordered that."""
        self._take_part(orders.cut)
        self._container.direct(
            {TaskName.parse(task): (one.generation, one.number, one.slots) for task, one in orders.slots.items()}
        )
        self._container.restart({TaskName.parse(task): number for task, number in orders.restart.items()})
        if self._standbys is not None:
            self._standbys.order([] if orders.stop else orders.keep)
        if orders.stop:
            self._container.stop()
        elif orders.drain:
            self._container.drain()

    def _take_part(self, cut: Cut | None) -> None:
        """Take part in this cut, unless its folder doesn't exist here, because it is on another machine.

        This is checked when the cut is ordered, before the folder gets its final name.
        """
        if cut is None or cut.id != self._cut:
            self._cut = None if cut is None else cut.id
            self._apart = cut is not None and not Path(cut.folder).is_dir()
        self._container.cut(None if self._apart else cut)

    @property
    def calling(self) -> bool:
        """Return whether a function of the app is being called, or a turn of the run loop takes long."""
        return self._at_work.now is not None or self._clock.monotonic_ms() - self._observed_ms >= STILL_MS

    def drain(self) -> None:
        """Finish the work in progress, commit, and let ``run`` return."""
        self._container.drain()

    def lose(self, error: Exception) -> None:
        """Stop: the coordinator can't be reached, or another incarnation is current. ``run`` raises the error."""
        _log.warning("no heartbeat reaches the coordinator; the container stops", error=str(error))
        self._lost = self._lost or error
        if self._standbys is not None:  # another container may be told to keep them
            self._standbys.order([])
        self._container.stop()

    # -- inside

    def _doing(self, now: float, observed_ms: float) -> Doing:
        work, runs_in = self._at_work.now, self._runs_in
        blocked = self._blocked(now)
        blocked_in = runs_in if blocked is None else blocked.thread
        return Doing(
            now_ms=now,
            turned_ms=observed_ms,
            work=work,
            moved_ms=None if work is None else self._movement.moved_ms(work, now),
            line=partial(line_now, runs_in, called=work is not None),
            debugged=in_debugger(runs_in) or in_debugger(blocked_in),
            calls_since_ms=None if blocked is None else blocked.since_ms,
            calls_line=partial(line_now, blocked_in),
        )

    @property
    def _starting(self) -> list[messages.TaskStatus]:
        """Return the statuses of tasks before their first snapshot."""
        return [
            messages.TaskStatus(name=grant.name, state="starting", generation=grant.generation)
            for grant in self.assignment.tasks
        ]

    def _take_snapshot(self, hosts: Sequence[TaskHost]) -> None:
        now, epoch_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        statuses = [self._status_of(host, now, epoch_ms) for host in hosts]
        shards = [[slot.shards for slot in status.slots.values()] for status in statuses]
        # It has taken a while for thousands of tasks, and they aren't older for that.
        observed_ms = self._clock.monotonic_ms()
        with self._lock:
            self.has_news = shards != self._shards or any(host.slots.unsettled(host.task) for host in hosts)
            self._shards = shards
            self._statuses, self._observed_ms = statuses, observed_ms
            self._wants_shutdown = any(host.task.chain.wants_shutdown for host in hosts)

    def _status_of(self, host: TaskHost, now: float, epoch_ms: int) -> messages.TaskStatus:
        """Return the status of a task: for a while the last one, if the run loop hasn't visited the task since then."""
        taken_ms, turns, status = self._taken.get(host, (0.0, -1, None))
        age_ms_max = max(STATUS_MS_MAX, STATUS_MS_A_TASK * len(self._container.hosts))
        if status is None or turns != host.turns or now - taken_ms > age_ms_max:
            status = task_status(host, now, self._still, epoch_ms, traced=self.assignment.traced)
            self._taken[host] = now, host.turns, status
        return status

    def _next_generation(self, task: TaskName) -> Grant:
        """Return the generation of the assignment with its startpoints; after a rollback, new ones."""
        if task in self._granted:
            return self._granted.pop(task)
        request = messages.GenerationRequest(container=self.number, incarnation=self.incarnation, task=str(task))
        granted = self._link.generation(request)
        return _grant(granted)

    def _report_outcomes(self, task: TaskName, outcomes: Sequence[Outcome]) -> None:
        self._link.outcomes(
            OutcomeReport(container=self.number, incarnation=self.incarnation, task=str(task), outcomes=tuple(outcomes))
        )


def _grant(granted: messages.TaskGrant) -> Grant:
    return Grant(generation=granted.generation, orders=granted.orders, silent=granted.silent)
