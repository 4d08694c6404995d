"""The local runner: a whole plan in this process, in one container, without Spark.

For debugging and small work: breakpoints and print work, and the same code runs that Spark's containers run.
The run loop has the calling thread.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from headrace.api.specs import Graph
from headrace.core.clock import WallClock
from headrace.metadata.generations import Generations
from headrace.metadata.store import MetadataStore
from headrace.plan.planner import plan
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.messages import AppStatus, Finished, Heartbeat, Orders, Register
from headrace.runners.facts import gather_facts
from headrace.runners.prepare import check_stages, prepare_streams
from headrace.runners.reporting import task_status
from headrace.runtime.container import Container
from headrace.runtime.host import TaskHost


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
    prepare_streams(planned)
    mine = {s.name: [t.name for t in s.tasks] for s in planned.stages if not stages or s.name in stages}
    generations = Generations(metadata, graph.app)
    names = [task for tasks in mine.values() for task in tasks]
    ledger = Ledger(graph.app, mine, 1, started_at=time.time_ns() // 1_000_000, guarantee=graph.settings.guarantee)
    container = Container(planned, names, lambda task: generations.issue([task])[task], WallClock())
    watch = _Watch(ledger, progress)
    try:
        with _draining(container, ledger):
            container.run(lambda hosts: _obey(container, watch.publish(hosts)))
        return watch.end(container)
    finally:
        container.close()


class _Watch:
    """Keeps the ledger that a coordinator would keep, so that progress looks the same."""

    def __init__(self, ledger: Ledger, progress: Callable[[AppStatus], None] | None) -> None:
        self._ledger = ledger
        self._progress = progress
        self._clock = WallClock()
        self._me = uuid.uuid4().hex
        register = Register(container=0, attempt=0, host=socket.gethostname(), pid=os.getpid(), incarnation=self._me)
        ledger.register(register, self._clock.monotonic_ms())

    def publish(self, hosts: Sequence[TaskHost]) -> Orders:
        """Take a snapshot and show it; what a coordinator would order."""
        now = self._clock.monotonic_ms()
        tasks = [task_status(host, now) for host in hosts]
        shutdown = any(host.wants_shutdown for host in hosts)
        orders = self._ledger.heartbeat(
            Heartbeat(container=0, incarnation=self._me, sent_ms=now, tasks=tasks, wants_shutdown=shutdown), now
        )
        if self._progress is not None:
            self._progress(self._ledger.status(now))
        return orders

    def end(self, container: Container) -> AppStatus:
        """The last status."""
        now = self._clock.monotonic_ms()
        over = [str(host.name) for host in container.hosts if host.finished or container.drained]
        self._ledger.finished(Finished(container=0, incarnation=self._me, tasks=over), now)
        return self._ledger.status(now)


def _obey(container: Container, orders: Orders) -> None:
    if orders.drain:
        container.drain()


@contextmanager
def _draining(container: Container, ledger: Ledger) -> Iterator[None]:
    """SIGINT and SIGTERM drain; a second SIGINT is Python's own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def drain(number: int, frame: FrameType | None) -> None:
        ledger.drain()
        container.drain()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, drain) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
