"""The one function that Spark runs in each container: bytes in, a report out.

The run loop has the main thread. A second thread sends heartbeats, a third one answers questions about the tables. The
bytes come inside Spark's own task closure, from the driver that made them: a pickle, after the user's folders, whose
modules it needs. Nothing else is unpickled here.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.coordinator.client import CoordinatorClient, HeartbeatThread
from headrace.coordinator.messages import ErrorReport, Failure
from headrace.core.errors import HeadraceError, StorageError, UnavailableError
from headrace.core.log import OFF, LogSettings, logger, logging_to
from headrace.core.worker import at_work
from headrace.plan.model import Plan
from headrace.run.container import BATCH_MAX, WAITING_MAX, ContainerSession, LogOutbox, sending_logs
from headrace.run.last_words import Recorder, folder_of, forget, left_in
from headrace.run.spark.hosting import ContainerArgs
from headrace.run.tables import AnswerThread
from headrace.task.operators.base import RAISED

_log = logger(__name__)


def user_folders() -> tuple[str, ...]:
    return tuple(str(Path(folder).resolve()) for folder in sys.path[:1] if folder)


def packed(folders: Sequence[str], pickled: bytes) -> bytes:
    names = "\n".join(folders).encode()
    return len(names).to_bytes(4, "big") + names + pickled


def unpacked(data: bytes) -> Any:
    size = int.from_bytes(data[:4], "big")
    for folder in data[4 : 4 + size].decode().split("\n"):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    return pickle.loads(data[4 + size :])  # noqa: S301 - our own driver's, in Spark's closure


@dataclass(frozen=True, slots=True)
class ContainerPayload:
    """What the driver sends to every container."""

    plan: Plan
    url: str
    token: str
    python_path: tuple[str, ...]
    log: LogSettings = OFF


def container_main(args: ContainerArgs) -> dict[str, Any]:
    payload: ContainerPayload = unpacked(args.payload)
    fields = {"container": args.container, "attempt": args.attempt}
    outbox = LogOutbox()
    with (
        logging_to(payload.log, fields=fields),
        sending_logs(outbox, payload.log),
        closing(CoordinatorClient(payload.url, payload.token)) as client,
    ):
        return _attempt(args, payload, client, outbox)


def _attempt(
    args: ContainerArgs, payload: ContainerPayload, client: CoordinatorClient, outbox: LogOutbox
) -> dict[str, Any]:
    graph = payload.plan.graph
    folder = folder_of(Path(graph.settings.home), graph.app)
    session = ContainerSession(client, args.container, args.attempt, left_in(folder, args.container), outbox)
    if session.assignment.superseded is not None:
        forget(folder, args.container, session.assignment.superseded)
    if not session.assignment.tasks or not _waited(session, client):
        return {"container": args.container, "tasks": 0}
    try:
        with closing(Recorder(folder, args.container, session.incarnation)) as recorder:
            recorder.start()
            return {"container": args.container, "tasks": _run(session, payload, client, recorder, outbox)}
    except UnavailableError:
        raise  # the driver can't be reached; after an orderly end, Spark would never start the container again
    except RAISED as error:
        # A task may have been fenced off. If another incarnation runs this container, the coordinator refuses the
        # report, and that is raised. Else something outside this run uses the task, and restarting won't help forever.
        if isinstance(error, StorageError):
            error.then("the container restarts by itself until that is done, from its last checkpoint")
        report = ErrorReport.of(error)
        write = _log.info if report.fatal else _log.error  # a fatal error ends the app: the driver raises and shows it
        write("the container fails", error=f"{report.type}: {report.message}")
        _send_rest(outbox, session, client)
        orders = client.failure(Failure(container=args.container, incarnation=session.incarnation, error=report))
        if isinstance(error, HeadraceError) and report.fatal:
            return {"container": args.container, "failed": True}  # the coordinator knows; Spark need not retry
        time.sleep(orders.pause_ms / 1000)  # nothing else runs in this process; Spark starts the next attempt at once
        raise


def _waited(session: ContainerSession, client: CoordinatorClient) -> bool:
    """Wait for as long as the coordinator says, with heartbeats. A drain ends the wait; False: the container ends."""
    never = threading.Event()
    until = time.monotonic() + session.assignment.orders.pause_ms / 1000
    while (left := until - time.monotonic()) > 0:
        orders = client.heartbeat(session.heartbeat())
        if orders.stop or orders.drain:
            return not orders.stop
        never.wait(min(left, session.assignment.heartbeat_ms / 1000))
    return True


def _send_rest(outbox: LogOutbox, session: ContainerSession, client: CoordinatorClient) -> None:
    """Send the final counts and the log lines that wait, before the coordinator takes the container for ended."""
    with suppress(HeadraceError):  # what matters is said by what follows
        for _ in range(WAITING_MAX // BATCH_MAX + 1):
            client.heartbeat(session.heartbeat(last=True))
            outbox.arrived()
            if outbox.empty:
                break


def _run(
    session: ContainerSession,
    payload: ContainerPayload,
    client: CoordinatorClient,
    recorder: Recorder,
    outbox: LogOutbox,
) -> int:
    session.open(payload.plan, recorder.keep)
    heartbeats = HeartbeatThread.over(
        client,
        session.heartbeat,
        on_orders=session.obey,
        on_lost=session.lose,
        interval_s=session.assignment.heartbeat_ms / 1000,
    )
    answers = AnswerThread.over(client, session.number, session.incarnation, session.answers())

    def observed() -> None:
        if session.has_news:
            heartbeats.poke()

    with closing(session), at_work(heartbeats, answers):
        session.run(observed)
        _send_rest(outbox, session, client)
        return len(session.finish())
