"""The local runner: a whole plan in this process, in one container, without Spark.

For debugging and small work: breakpoints and print work, and the same code runs that Spark's containers run. It has
a coordinator, too, so that commands find it and a second run is refused. The run loop has the calling thread; the
coordinator's server and the answers about tables have threads of their own.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from headrace.api.specs import Graph
from headrace.core.clock import WallClock
from headrace.core.errors import StorageError
from headrace.core.ids import TaskName
from headrace.metadata.store import MetadataStore
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.coordination.address import publish
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.messages import AppStatus, Finished, GenerationRequest, Heartbeat, Register
from headrace.runners.coordination.server import Coordinator
from headrace.runners.facts import gather_facts
from headrace.runners.prepare import check_stages, prepare_streams
from headrace.runners.reporting import task_status
from headrace.runners.tables.answering import AnswerThread, TableAnswers
from headrace.runners.tables.catalogue import catalogue
from headrace.runtime.container import Container
from headrace.runtime.host.task_host import TaskHost


def run_local(
    graph: Graph,
    metadata: MetadataStore,
    stages: Sequence[str] = (),
    progress: Callable[[AppStatus], None] | None = None,
) -> AppStatus:
    """Run until everything has finished, or until SIGINT or SIGTERM has drained it; returns the last status.

    ``stages`` limits the run to these; the others run elsewhere, as deployments of their own.
    """
    planned = plan(graph, gather_facts(graph))
    check_stages(planned, stages)
    prepare_streams(planned, stages)
    mine = {s.name: [t.name for t in s.tasks] for s in planned.stages if not stages or s.name in stages}
    started_at = time.time_ns() // 1_000_000
    ledger = Ledger(graph.app, mine, 1, started_at=started_at, guarantee=graph.settings.guarantee)
    with Coordinator(ledger, metadata, tables=catalogue(planned)) as coordinator:
        published = publish(
            Path(graph.settings.home),
            graph.app,
            coordinator.url,
            coordinator.token,
            stages=list(mine),
            all_stages=not stages,
            started_at=started_at,
        )
        try:
            return _Run(planned, coordinator, progress).run()
        except StorageError as error:
            error.then("then start the app again: it goes on from its last checkpoint")
            raise
        finally:
            published.close()


class _Run:
    """The one container of a run, beside its coordinator."""

    def __init__(self, planned: Plan, coordinator: Coordinator, progress: Callable[[AppStatus], None] | None) -> None:
        self._coordinator = coordinator
        self._progress = progress
        self._clock = WallClock()
        self._me = uuid.uuid4().hex
        register = Register(container=0, attempt=0, host=socket.gethostname(), pid=os.getpid(), incarnation=self._me)
        assignment = coordinator.register(register)
        self._granted = {TaskName.parse(grant.name): grant.generation for grant in assignment.tasks}
        self._container = Container(planned, list(self._granted), self._next_generation, self._clock)

    def run(self) -> AppStatus:
        """Run until all has finished or was drained; the last status."""
        container = self._container
        answers = AnswerThread(
            self._coordinator.listen,
            self._coordinator.hang_up,
            0,
            self._me,
            TableAnswers(container.hosts, self._clock),
        )
        answers.start()
        try:
            with self._draining():
                container.run(self._publish)
            over = [str(host.name) for host in container.hosts if host.finished or container.drained]
            self._coordinator.finished(Finished(container=0, incarnation=self._me, tasks=over))
            return self._coordinator.status()
        finally:
            answers.close()
            container.close()

    def _next_generation(self, task: TaskName) -> int:
        """The one that came with the assignment; after a rollback a new one."""
        if task in self._granted:
            return self._granted.pop(task)
        request = GenerationRequest(container=0, incarnation=self._me, task=str(task))
        return self._coordinator.generation(request).generation

    def _publish(self, hosts: Sequence[TaskHost]) -> None:
        """Take a snapshot, show it, and obey."""
        now = self._clock.monotonic_ms()
        tasks = [task_status(host, now) for host in hosts]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        orders = self._coordinator.heartbeat(
            Heartbeat(
                container=0,
                incarnation=self._me,
                sent_ms=now,
                tasks=tasks,
                cpu_ms=int((usage.ru_utime + usage.ru_stime) * 1000),
                rss_bytes=usage.ru_maxrss * 1024,
                wants_shutdown=any(host.wants_shutdown for host in hosts),
            )
        )
        if orders.stop:
            self._container.stop()
        elif orders.drain:
            self._container.drain()
        if self._progress is not None:
            self._progress(self._coordinator.status())

    @contextmanager
    def _draining(self) -> Iterator[None]:
        """SIGINT and SIGTERM drain; a second SIGINT is Python's own."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def drain(number: int, frame: FrameType | None) -> None:
            self._coordinator.drain()
            self._container.drain()
            signal.signal(signal.SIGINT, signal.default_int_handler)

        before = {number: signal.signal(number, drain) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
