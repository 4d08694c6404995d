"""The one function that Spark runs in each container: bytes in, a report out.

It registers with the coordinator, runs the tasks it is handed until they have finished or it is told to end, sends
heartbeats from a second thread, and answers questions about its tables on a third. The run loop has the main thread.
The payload comes inside Spark's own task closure, from the driver that made it; nothing here is unpickled from anywhere
else.
"""

from __future__ import annotations

import os
import pickle
import resource
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, StorageError, UnavailableError
from headrace.core.ids import TaskName
from headrace.core.log import OFF, LogSettings, logger, logging_to
from headrace.plan.model import Plan
from headrace.runners.coordination.client import CoordinatorClient, HeartbeatThread
from headrace.runners.coordination.messages import (
    Assignment,
    ErrorReport,
    Failure,
    Finished,
    GenerationRequest,
    Heartbeat,
    Orders,
    Register,
    TaskStatus,
)
from headrace.runners.reporting import task_status
from headrace.runners.spark.hosting import ContainerArgs
from headrace.runners.tables.answering import AnswerThread, TableAnswers
from headrace.runtime.container import Container
from headrace.runtime.host.task_host import TaskHost

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ContainerPayload:
    """What the driver ships to every container."""

    plan: Plan
    url: str
    token: str
    python_path: tuple[str, ...]
    log: LogSettings = OFF


def container_main(args: ContainerArgs) -> dict[str, Any]:
    """Run one container; returns what it did, for the driver's log."""
    payload = _decode_payload(args.payload)
    fields = {"container": args.container, "attempt": args.attempt}
    with logging_to(payload.log, fields=fields), closing(CoordinatorClient(payload.url, payload.token)) as client:
        return _attempt(args, payload, client)


def _attempt(args: ContainerArgs, payload: ContainerPayload, client: CoordinatorClient) -> dict[str, Any]:
    incarnation = uuid.uuid4().hex
    assignment = client.register(
        Register(
            container=args.container,
            attempt=args.attempt,
            host=socket.gethostname(),
            pid=os.getpid(),
            incarnation=incarnation,
        )
    )
    tasks = " ".join(grant.name for grant in assignment.tasks)
    _log.info("the container has registered", incarnation=incarnation, tasks=tasks, host=socket.gethostname())
    if not assignment.tasks:
        return {"container": args.container, "tasks": 0}
    try:
        return _run(args, payload, client, assignment, incarnation)
    except UnavailableError:
        # The driver can't be reached from here. Raised, because Spark would take an orderly end for the container's
        # last word, and never start another one.
        raise
    except Exception as error:
        # A task may have been fenced off. If another one has this seat, the coordinator refuses the report, and that
        # is raised; else somebody outside of this run is at work on the task, and starting again doesn't help for ever.
        if isinstance(error, StorageError):
            error.then("the container begins again by itself until that is done, from its last checkpoint")
        report = ErrorReport.of(error)
        write = _log.info if report.fatal else _log.error  # a fatal error ends the app: the driver raises and shows it
        write("the container fails", error=f"{report.type}: {report.message}")
        orders = client.failure(Failure(container=args.container, incarnation=incarnation, error=report))
        if isinstance(error, HeadraceError) and report.fatal:
            return {"container": args.container, "failed": True}  # the coordinator knows; Spark need not retry
        time.sleep(orders.pause_ms / 1000)  # nothing else runs here any more; Spark starts the next attempt at once
        raise


def _run(
    args: ContainerArgs,
    payload: ContainerPayload,
    client: CoordinatorClient,
    assignment: Assignment,
    incarnation: str,
) -> dict[str, Any]:
    clock = WallClock()
    granted = {TaskName.parse(grant.name): grant.generation for grant in assignment.tasks}
    names = set(granted)

    def next_generation(task: TaskName) -> int:
        """The one that came with the assignment; after a rollback a new one."""
        if task in granted:
            return granted.pop(task)
        request = GenerationRequest(container=args.container, incarnation=incarnation, task=str(task))
        return client.generation(request).generation

    def lose(error: Exception) -> None:
        """Nobody asks for this container any more: stop, and say why when the run loop has returned."""
        _log.warning("no heartbeat gets through; the container stops", error=str(error))
        lost.append(error)
        container.stop()

    lost: list[Exception] = []
    container = Container(payload.plan, names, next_generation, clock)
    board = _Board(args.container, incarnation, clock)
    heartbeats = HeartbeatThread(
        client,
        board.heartbeat,
        on_orders=lambda orders: _obey(container, orders),
        on_lost=lose,
        interval_s=assignment.heartbeat_ms / 1000,
    )
    answers = AnswerThread.over(client, args.container, incarnation, TableAnswers(container.hosts, clock))
    _obey(container, assignment.orders)
    heartbeats.start()
    answers.start()
    try:
        container.run(board.publish)
        if lost:
            raise lost[0]
        drained = [str(host.name) for host in container.hosts if host.finished or container.drained]
        heartbeats.poke()
        if drained and not container.stopped:
            client.finished(Finished(container=args.container, incarnation=incarnation, tasks=drained))
        return {"container": args.container, "tasks": len(drained)}
    finally:
        answers.close()
        heartbeats.close()
        container.close()


class _Board:
    """The last snapshot of the tasks: written by the run loop, read by the heartbeat thread."""

    def __init__(self, container: int, incarnation: str, clock: WallClock) -> None:
        self._container = container
        self._incarnation = incarnation
        self._clock = clock
        self._lock = threading.Lock()
        self._tasks: list[TaskStatus] = []
        self._wants_shutdown = False

    def publish(self, hosts: Sequence[TaskHost]) -> None:
        """Take a new snapshot."""
        now = self._clock.monotonic_ms()
        tasks = [task_status(host, now) for host in hosts]
        with self._lock:
            self._tasks = tasks
            self._wants_shutdown = any(host.wants_shutdown for host in hosts)

    def heartbeat(self) -> Heartbeat:
        """The last snapshot as a heartbeat."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with self._lock:
            tasks, wants_shutdown = self._tasks, self._wants_shutdown
        return Heartbeat(
            container=self._container,
            incarnation=self._incarnation,
            sent_ms=self._clock.monotonic_ms(),
            tasks=tasks,
            cpu_ms=int((usage.ru_utime + usage.ru_stime) * 1000),
            rss_bytes=usage.ru_maxrss * 1024,
            wants_shutdown=wants_shutdown,
        )


def _obey(container: Container, orders: Orders) -> None:
    if orders.stop:
        container.stop()
    elif orders.drain:
        container.drain()


def encode_payload(payload: ContainerPayload, dumps: Callable[[object], bytes]) -> bytes:
    """The payload as bytes. The user's folders stand first: they are needed to read the rest."""
    folders = "\n".join(payload.python_path).encode()
    return len(folders).to_bytes(4, "big") + folders + dumps(payload)


def _decode_payload(data: bytes) -> ContainerPayload:
    size = int.from_bytes(data[:4], "big")
    for folder in data[4 : 4 + size].decode().split("\n"):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    payload: ContainerPayload = pickle.loads(data[4 + size :])  # noqa: S301 - our own driver's, by Spark's closure
    return payload
