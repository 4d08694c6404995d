"""Run a plan in containers on Spark: open Spark, start the coordinator, host the containers, watch, end.

The calling thread watches and handles Ctrl-C (once: drain, or end if nothing runs yet; twice: stop at once). The Spark
job of the containers has a daemon thread, and so has the coordinator's server.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pyspark import SparkContext

from headrace.coordinator.messages import AppStatus
from headrace.coordinator.server import Coordinator
from headrace.core.errors import InfrastructureError
from headrace.core.log import current_settings, logger
from headrace.plan.model import Plan
from headrace.run.coordinated import RunControl, coordinated, ledger_of, started
from headrace.run.no_shared_disk import check_no_shared_disk, check_standby, shares_no_disk
from headrace.run.planning import Checked, held_by_driver
from headrace.run.progress import Progress, announce, say
from headrace.run.run import RunOptions
from headrace.run.spark.container_main import ContainerPayload, container_main, user_folders
from headrace.run.spark.dataframes import copy_dataframes
from headrace.run.spark.hosting import ContainerJob, watch
from headrace.run.spark.session import conf_of, let_go, take_context
from headrace.run.spark.settings import driver_endpoint, is_on_this_machine
from headrace.run.spark.shipping import ship
from headrace.run.spark.slots import Asked, check_promised_slots, decide

END_GRACE_S = 10.0
_log = logger(__name__)


def run_on_spark(checked: Checked, options: RunOptions, progress: Progress | None, control: RunControl) -> AppStatus:
    """Run until the app has ended or has been drained; returns its last status. Raises what made it fail."""
    metadata, stages = checked.metadata, checked.stages
    if options.master is not None and options.containers is not None:
        check_promised_slots(options.master, options.containers)
    with control:
        try:
            context = take_context(f"headrace {checked.graph.app}", options.master, options.conf)
        except InfrastructureError as error:
            if not control.requested:
                raise
            _log.info("the signal that asked the app to end has ended Spark as it started", error=error.message)
            return _never_started(checked.planned.plan, checked, control, options)
        try:
            containers = _container_count(context, checked, options, progress, control)
            if containers is None:
                return _never_started(checked.planned.plan, checked, control, options)
            changed = checked.deployment.planned(containers, stages)
            changed.changes.check()
            on_cluster = not is_on_this_machine(str(context.master))
            if on_cluster:
                check_no_shared_disk(changed.plan, metadata, stages, options.savepoint)
                check_standby(changed.plan)
            if not copy_dataframes(held_by_driver(changed.plan, stages), control):
                return _never_started(changed.plan, checked, control, options)
            at = options.wanted.instead_of(driver_endpoint(str(context.master), conf_of(context).get))
            with started(
                checked,
                changed,
                containers,
                progress,
                control,
                endpoint=at,
                savepoint=options.savepoint,
                scattered=on_cluster and shares_no_disk(checked.graph.settings),
            ) as begun:
                return _run(context, *begun, progress, containers, control)
        finally:
            let_go(context)


def _never_started(planned: Plan, checked: Checked, control: RunControl, options: RunOptions) -> AppStatus:
    if options.savepoint:
        _log.warning(
            "no savepoint was taken: the app was asked to end before it could start",
            savepoint=options.savepoint,
            hint="start it again, and end it when its tasks run",
        )
    ledger = ledger_of(planned, checked.metadata, checked.stages, 1)
    with coordinated(planned, checked.metadata, checked.stages, ledger) as coordinator:
        control.attach(coordinator)
        coordinator.drain()
        return coordinator.status()


def _container_count(
    context: SparkContext, checked: Checked, options: RunOptions, progress: Progress | None, control: RunControl
) -> int | None:
    stages = checked.planned.plan.stages
    asked = Asked(
        app=checked.graph.app,
        tasks=sum(len(s.tasks) for s in stages if not checked.stages or s.name in checked.stages),
        containers=options.containers,
        beside=options.beside,
    )
    # A savepoint needs the tasks, so a run that is to take one begins even if it has been asked to end.
    found = decide(context, asked, partial(say, progress=progress), lambda: control.requested and not options.savepoint)
    if found is None:
        return None
    containers, note = found
    if note and progress is not None:
        announce(note, progress)
    elif note:
        _log.warning(note)
    return containers


def _run(
    context: SparkContext,
    planned: Plan,
    coordinator: Coordinator,
    progress: Progress | None,
    containers: int,
    control: RunControl,
) -> AppStatus:
    payload = ContainerPayload(
        plan=planned,
        url=coordinator.url,
        token=coordinator.token,
        python_path=user_folders(),
        log=replace(current_settings(), sent=not is_on_this_machine(str(context.master))),
    )
    named = f"headrace {planned.graph.app}: {containers} containers"
    job = ContainerJob(context, containers, container_main, ship(payload), named)
    if control.requested and not coordinator.saving:  # nothing runs yet, and nothing is to be kept
        coordinator.drain()
        return coordinator.status()
    job.start()
    try:
        control.drain_by(coordinator.drain)
        status = watch(coordinator, job, progress)
        if status.error is not None:
            raise status.error.as_error()
        job.wait(END_GRACE_S)
        return coordinator.status()
    finally:
        if not job.wait(0):
            job.cancel()
