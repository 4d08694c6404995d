"""Run a plan in containers on Spark: open Spark, start the coordinator, host the containers, watch, end.

The calling thread watches: it waits for changes in the coordinator, shows progress and handles Ctrl-C (once: drain, or
end if nothing runs yet; twice: stop at once). The Spark job of the containers has a daemon thread; the coordinator's
server has its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark import SparkContext

from headrace.api.specs import Graph
from headrace.core.errors import InfrastructureError
from headrace.core.log import current_settings, logger
from headrace.metadata.store import MetadataStore
from headrace.plan.heritage import NO_CONSENT, Consent
from headrace.plan.model import Plan
from headrace.runners.app_systems import check_snapshots
from headrace.runners.coordinated import coordinated
from headrace.runners.coordination.endpoint import AS_USUAL, Endpoint, Wanted
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.server import Coordinator
from headrace.runners.dashboard.pages import page_url
from headrace.runners.interrupts import Interrupts
from headrace.runners.memos import record_memos
from headrace.runners.no_shared_disk import check_no_shared_disk
from headrace.runners.planning import Deployment, check_not_ended
from headrace.runners.prepare import held_by_driver, prepare_streams, stops_by_itself
from headrace.runners.progress import announce
from headrace.runners.spark.container_main import ContainerPayload, container_main
from headrace.runners.spark.dataframes import copy_dataframes
from headrace.runners.spark.hosting import ContainerJob
from headrace.runners.spark.parcel import user_folders
from headrace.runners.spark.session import close_context, conf_of, open_context
from headrace.runners.spark.settings import driver_endpoint, is_on_this_machine
from headrace.runners.spark.shipping import ship
from headrace.runners.spark.slots import check_slots, usable_slots
from headrace.runners.spark.supervision import watch
from headrace.stores.objects.opening import check_objects

END_GRACE_S = 10.0
SAID_AT_START = "interrupted: ends once Spark has started; Ctrl-C again ends it at once"

_log = logger(__name__)

Progress = Callable[[AppStatus], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where and how to run. ``stages`` limits the deployment to these; empty means all.

    ``consent`` is what the user accepts to lose of what an earlier version of the app keeps.
    """

    master: str | None = None
    containers: int | None = None
    stages: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None
    consent: Consent = NO_CONSENT
    savepoint: str = ""
    """The name of a savepoint to take at the end."""
    wanted: Wanted = AS_USUAL
    """Where the coordinator listens and is called, if not on loopback, and on a cluster where Spark's driver is."""


def run_on_spark(graph: Graph, metadata: MetadataStore, options: SparkOptions) -> AppStatus:
    """Run until the app has ended or has been drained; returns its last status. Raises what made it fail."""
    deployment = Deployment(graph, metadata, options.consent)
    first = deployment.planned(stages=options.stages)
    first.changes.check()  # fail before Spark starts if this can't be run
    check_not_ended(first, metadata)
    check_snapshots(metadata, first.plan)
    check_objects(graph.settings.snapshots)
    theirs = SparkContext._active_spark_context
    with Interrupts(SAID_AT_START if options.progress is not None else "") as interrupts:
        try:
            context = open_context(f"headrace {graph.app}", options.master, options.conf)
        except InfrastructureError as error:
            if not interrupts.requested:
                raise
            _log.info("the signal that asked the app to end has ended Spark as it started", error=error.message)
            return _never_started(first.plan, metadata, options)
        try:
            containers = _container_count(context, first.plan, options)
            changed = deployment.planned(containers, options.stages)
            changed.changes.check()
            planned = changed.plan
            if not is_on_this_machine(str(context.master)):
                check_no_shared_disk(planned, metadata, options.stages, options.savepoint)
            if not copy_dataframes(held_by_driver(planned, options.stages), interrupts):
                return _never_started(planned, metadata, options)
            prepare_streams(planned, options.stages)
            planned = record_memos(metadata, planned)
            stops = stops_by_itself(planned, options.stages)
            with coordinated(
                planned,
                metadata,
                options.stages,
                containers,
                endpoint=_endpoint(context, options),
                until_caught_up=stops,
                savepoint=options.savepoint,
            ) as coordinator:
                deployment.record(changed, options.stages)
                if options.progress is not None:
                    announce(page_url(coordinator.url, coordinator.token))
                return _run(context, coordinator, planned, options, containers, interrupts)
        finally:
            if theirs is None:
                close_context(context)


def _never_started(planned: Plan, metadata: MetadataStore, options: SparkOptions) -> AppStatus:
    """The status of an app that was drained before it ran."""
    with coordinated(planned, metadata, options.stages, 1) as coordinator:
        coordinator.drain()
        return coordinator.status()


def _endpoint(context: SparkContext, options: SparkOptions) -> Endpoint:
    default = driver_endpoint(str(context.master), conf_of(context).get)
    return options.wanted.instead_of(default)


def _container_count(context: SparkContext, planned: Plan, options: SparkOptions) -> int:
    if options.containers is not None:
        check_slots(context, options.containers)
        return options.containers
    tasks = sum(len(s.tasks) for s in planned.stages if not options.stages or s.name in options.stages)
    return usable_slots(context, tasks)


def _run(
    context: SparkContext,
    coordinator: Coordinator,
    planned: Plan,
    options: SparkOptions,
    containers: int,
    interrupts: Interrupts,
) -> AppStatus:
    """Run the containers as one Spark job, and watch it until the app has ended."""
    payload = ContainerPayload(
        plan=planned,
        url=coordinator.url,
        token=coordinator.token,
        python_path=user_folders(),
        log=current_settings(),
    )
    named = f"headrace {planned.graph.app}: {containers} containers"
    job = ContainerJob(context, containers, container_main, ship(payload), named)
    if interrupts.requested:  # nothing runs yet
        coordinator.drain()
        return coordinator.status()
    job.start()
    try:
        interrupts.drain_by(coordinator.drain)
        status = watch(coordinator, job, options.progress)
        if status.error is not None:
            raise status.error.as_error()
        job.wait(END_GRACE_S)
        return coordinator.status()
    finally:
        if not job.wait(0):
            job.cancel()
