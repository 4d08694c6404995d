"""The local runner: a whole plan in this process, in one container, without Spark.

For debugging and small work: breakpoints and print work, and the same code runs as in Spark's containers. A local run
has a coordinator, too, so that commands find it and a second run is refused. The run loop has the calling thread; the
coordinator's server, the answers about tables and the heartbeats have their own threads. So a function that takes long
shows in the status, and one that takes too long, or holds up a drain, is interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

from headrace.api.specs import Graph
from headrace.core.errors import StorageError, UserFunctionError
from headrace.metadata.store import MetadataStore
from headrace.plan.heritage import NO_CONSENT, Consent
from headrace.plan.model import Plan
from headrace.runners.app_systems import check_snapshots
from headrace.runners.container_session import ContainerSession
from headrace.runners.coordinated import coordinated
from headrace.runners.coordination.client import HeartbeatThread
from headrace.runners.coordination.endpoint import AS_USUAL, ON_THIS_MACHINE, Wanted
from headrace.runners.coordination.messages import AppStatus, Orders
from headrace.runners.coordination.server import Coordinator
from headrace.runners.dashboard.pages import page_url
from headrace.runners.interrupts import Interrupts
from headrace.runners.memos import record_memos
from headrace.runners.planning import Deployment, check_not_ended
from headrace.runners.prepare import held_by_driver, prepare_streams, stops_by_itself
from headrace.runners.progress import announce
from headrace.runners.tables.answering import AnswerThread
from headrace.runtime.operators.user_code.source_line import users_line
from headrace.stores.objects.opening import check_objects

Progress = Callable[[AppStatus], None]


def run_local(
    graph: Graph,
    metadata: MetadataStore,
    stages: Sequence[str] = (),
    progress: Progress | None = None,
    consent: Consent = NO_CONSENT,
    savepoint: str = "",
    wanted: Wanted = AS_USUAL,
) -> AppStatus:
    """Run until everything has finished, or until SIGINT or SIGTERM has drained it; returns the last status.

    ``stages`` limits the run to these; the others run elsewhere, in their own deployments. ``consent`` is what the user
    accepts to lose of what an earlier version keeps. Raises ``PlanError`` if that isn't enough. ``savepoint`` is the
    name of one to take at the end. ``wanted`` says where commands reach it.
    """
    endpoint = wanted.instead_of(ON_THIS_MACHINE)
    deployment = Deployment(graph, metadata, consent)
    changed = deployment.planned(1, stages)
    changed.changes.check()
    check_not_ended(changed, metadata)
    check_snapshots(metadata, changed.plan)
    check_objects(graph.settings.snapshots)
    planned = changed.plan
    if held := held_by_driver(planned, stages):
        from headrace.runners.spark.dataframes import copy_dataframes  # Spark isn't needed otherwise

        copy_dataframes(held)
    prepare_streams(planned, stages)
    planned = record_memos(metadata, planned)
    stops = stops_by_itself(planned, stages)
    with coordinated(
        planned,
        metadata,
        stages,
        1,
        endpoint=endpoint,
        until_caught_up=stops,
        savepoint=savepoint,
        replaced=False,
    ) as coordinator:
        deployment.record(changed, stages)
        if progress is not None:
            announce(page_url(coordinator.url, coordinator.token))
        try:
            return _run(planned, coordinator, progress)
        except StorageError as error:
            error.then("then start the app again: it resumes from its last checkpoint")
            raise


def _run(planned: Plan, coordinator: Coordinator, progress: Progress | None) -> AppStatus:
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

    answers = AnswerThread(
        coordinator.listen, coordinator.hang_up, session.number, session.incarnation, session.answers()
    )
    heartbeats = HeartbeatThread(
        coordinator.heartbeat,
        lambda: None,
        session.heartbeat,
        _obedient(session),
        session.lose,
        session.assignment.heartbeat_ms / 1000,
    )
    with session.beside(answers, heartbeats), Interrupts() as interrupts:
        interrupts.drain_by(drain)
        try:
            session.run(report)
        except KeyboardInterrupt:
            if (failed := coordinator.status().error) is not None:
                raise failed.as_error() from None
            raise
        except SystemExit as error:
            raise UserFunctionError(
                f"the app's code called sys.exit({error.code!r}){users_line(error)}",
                hint="raise an error instead: the app's code can't end the app in this way",
            ) from error
        session.finish()
        status = coordinator.status()
        if status.error is not None:  # the coordinator has ended the app
            raise status.error.as_error()
        return status


def _obedient(session: ContainerSession) -> Callable[[Orders], None]:
    """Return what obeys orders. It interrupts a function of the app that an order to stop finds at work."""
    runs_in = threading.get_ident()

    def obey(orders: Orders) -> None:
        session.obey(orders)
        if orders.stop and session.calling and runs_in == threading.main_thread().ident:
            # As a second Ctrl-C does: nothing else ends a function that sleeps.
            signal.pthread_kill(runs_in, signal.SIGINT)

    return obey
