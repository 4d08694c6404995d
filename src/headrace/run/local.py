"""The local runner: a whole plan in this process, in one container, without Spark.

It has a coordinator, too, so that commands find it and a second run is refused. The run loop has the calling thread;
the coordinator's server, the answers about tables and the heartbeats have their own threads. So a function that takes
long shows in the status, and one that takes too long, or holds up a drain, is interrupted.
"""

from __future__ import annotations

import signal
import threading
from contextlib import closing

from headrace.coordinator.address import AS_USUAL, ON_THIS_MACHINE, Wanted
from headrace.coordinator.client import HeartbeatThread
from headrace.coordinator.messages import AppStatus, Heartbeat, Orders
from headrace.coordinator.server import Coordinator
from headrace.core.errors import StorageError, UserFunctionError
from headrace.core.worker import at_work
from headrace.plan.model import Plan
from headrace.run.container import ContainerSession
from headrace.run.coordinated import RunControl, started
from headrace.run.planning import Checked, held_by_driver
from headrace.run.progress import Progress
from headrace.run.tables import AnswerThread
from headrace.task.container import OBSERVE_MS_MAX
from headrace.task.operators.functions import users_line


def run_local(
    checked: Checked,
    progress: Progress | None = None,
    savepoint: str = "",
    wanted: Wanted = AS_USUAL,
    control: RunControl | None = None,
) -> AppStatus:
    """Run until everything has finished, or a signal or ``control`` ends it; then take this ``savepoint``."""
    control = control or RunControl()
    if held := held_by_driver(checked.planned.plan, checked.stages):
        from headrace.run.spark.dataframes import copy_dataframes

        copy_dataframes(held)
    at = wanted.instead_of(ON_THIS_MACHINE)
    with started(
        checked, checked.planned, 1, progress, control, endpoint=at, savepoint=savepoint, replaced=False
    ) as begun:
        try:
            return _run(*begun, progress, control)
        except StorageError as error:
            error.then("then start the app again: it resumes from its last checkpoint")
            raise


def _run(planned: Plan, coordinator: Coordinator, progress: Progress | None, control: RunControl) -> AppStatus:
    session = ContainerSession(coordinator)
    session.open(planned)

    def report() -> None:
        session.obey(coordinator.heartbeat(session.heartbeat()))
        if progress is not None:
            progress(coordinator.status())

    def drain() -> None:
        coordinator.drain()
        if not coordinator.saving:
            session.drain()

    def obey(orders: Orders) -> None:
        session.obey(orders)
        if orders.stop and session.calling and runs_in == threading.main_thread().ident:
            # As a second Ctrl-C does: nothing else ends a function that sleeps.
            signal.pthread_kill(runs_in, signal.SIGINT)

    def instead() -> Heartbeat | None:
        # While the run loop turns, it reports by itself.
        return None if session.observed_within(OBSERVE_MS_MAX + every_ms) else session.heartbeat()

    runs_in, every_ms = threading.get_ident(), session.assignment.heartbeat_ms
    answers = AnswerThread(
        coordinator.listen, coordinator.hang_up, session.number, session.incarnation, session.answers()
    )
    heartbeats = HeartbeatThread(coordinator.heartbeat, lambda: None, instead, obey, session.lose, every_ms / 1000)
    with closing(session), at_work(answers, heartbeats), control:
        control.drain_by(drain)
        try:
            session.run(report)
        except BaseException as error:
            # An interrupt may arrive as another error: a library that called the function may have replaced it.
            if (failed := coordinator.status().error) is not None:
                raise failed.as_error() from None
            if not isinstance(error, SystemExit):
                raise
            raise UserFunctionError(
                f"the app's code called sys.exit({error.code!r}){users_line(error)}",
                hint="raise an error instead: the app's code can't end the app this way",
            ) from error
        session.finish()
        status = coordinator.status()
        if status.error is not None:  # the coordinator has ended the app
            raise status.error.as_error()
        return status
