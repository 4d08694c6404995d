"""The local runner: a whole plan in this process, in one container, without Spark.

For debugging and small work: breakpoints and print work, and the same code runs that Spark's containers run.
The run loop has the calling thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from headrace.core.clock import WallClock
from headrace.metadata.generations import Generations
from headrace.metadata.store import MetadataStore
from headrace.plan.model import Plan
from headrace.runners.prepare import prepare_streams
from headrace.runtime.container import Container
from headrace.runtime.host import TaskHost


def run_local(
    plan: Plan,
    metadata: MetadataStore,
    stages: Sequence[str] = (),
    observe: Callable[[Sequence[TaskHost]], None] | None = None,
) -> bool:
    """Run until everything has finished (True), or until SIGINT or SIGTERM has drained it (False).

    ``stages`` limits the run to these; the others run elsewhere, as deployments of their own.
    """
    prepare_streams(plan)
    names = [task.name for stage in plan.stages if not stages or stage.name in stages for task in stage.tasks]
    tasks = Generations(metadata, plan.graph.app).issue(names)
    container = Container(plan, tasks, WallClock())
    try:
        with _draining(container):
            container.run(observe)
        return all(host.finished for host in container.hosts)
    finally:
        container.close()


@contextmanager
def _draining(container: Container) -> Iterator[None]:
    """SIGINT and SIGTERM drain; a second SIGINT is Python's own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def drain(number: int, frame: FrameType | None) -> None:
        container.drain()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, drain) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
