"""The local runner: a whole plan in this process, in one container, without Spark.

For debugging and small work: breakpoints and print work, and the same code runs as in Spark's containers. A local run
has a coordinator, too, so that commands find it and a second run is refused. The run loop has the calling thread; the
coordinator's server and the answers about tables have their own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.api.specs import Graph
from headrace.core.errors import StorageError
from headrace.metadata.store import MetadataStore
from headrace.plan.heritage import NO_CONSENT, Consent
from headrace.plan.model import Plan
from headrace.runners.container_session import ContainerSession
from headrace.runners.coordinated import coordinated
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.server import Coordinator
from headrace.runners.interrupts import Interrupts
from headrace.runners.planning import Deployment
from headrace.runners.prepare import prepare_streams, stops_by_itself
from headrace.runners.tables.answering import AnswerThread

Progress = Callable[[AppStatus], None]


def run_local(
    graph: Graph,
    metadata: MetadataStore,
    stages: Sequence[str] = (),
    progress: Progress | None = None,
    consent: Consent = NO_CONSENT,
) -> AppStatus:
    """Run until everything has finished, or until SIGINT or SIGTERM has drained it; returns the last status.

    ``stages`` limits the run to these; the others run elsewhere, in their own deployments. ``consent`` is what the user
    accepts to lose of what an earlier version keeps. Raises ``PlanError`` if that isn't enough.
    """
    deployment = Deployment(graph, metadata, consent)
    changed = deployment.planned(1, stages)
    changed.changes.check()
    planned = changed.plan
    prepare_streams(planned, stages)
    stops = stops_by_itself(planned, stages)
    with coordinated(planned, metadata, stages, 1, until_caught_up=stops) as coordinator:
        deployment.record(changed, stages)
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
        session.drain()

    answers = AnswerThread(
        coordinator.listen, coordinator.hang_up, session.number, session.incarnation, session.answers()
    )
    with session.beside(answers), Interrupts() as interrupts:
        interrupts.drain_by(drain)
        session.run(report)
        session.finish()
        return coordinator.status()
