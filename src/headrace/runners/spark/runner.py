"""Run a plan in containers on Spark: open Spark, start the coordinator, host the containers, watch, end.

The calling thread watches: it waits for the coordinator's news, shows progress and handles Ctrl-C (once: drain, or
end before anything has begun; twice: stop at once). The containers' Spark job has a daemon thread, the coordinator's
server one of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext

from headrace.api.specs import Graph
from headrace.core.log import current_settings
from headrace.metadata.store import MetadataStore
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.coordination.address import publish
from headrace.runners.coordination.ledger import Ledger
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.server import Coordinator
from headrace.runners.facts import gather_facts
from headrace.runners.interrupts import Interrupts
from headrace.runners.prepare import check_stages, prepare_streams
from headrace.runners.spark.container_main import ContainerPayload, container_main
from headrace.runners.spark.hosting import ContainerJob
from headrace.runners.spark.session import close_context, open_context
from headrace.runners.spark.shipping import ship
from headrace.runners.spark.slots import check_slots, usable_slots
from headrace.runners.spark.supervision import watch
from headrace.runners.tables.catalogue import catalogue

END_GRACE_S = 10.0
SAID_AT_START = "interrupted: ends once Spark has started; Ctrl-C again ends it at once"

Progress = Callable[[AppStatus], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where and how to run. ``stages`` limits the deployment to these; empty means all."""

    master: str | None = None
    containers: int | None = None
    stages: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    progress: Progress | None = None


def run_on_spark(graph: Graph, metadata: MetadataStore, options: SparkOptions) -> AppStatus:
    """Run until the app has ended or has been drained; returns its last status. Raises what made it fail."""
    facts = gather_facts(graph)
    check_stages(plan(graph, facts), options.stages)  # what can't be planned must not cost the start of Spark
    theirs = SparkContext._active_spark_context
    with Interrupts(SAID_AT_START if options.progress is not None else "") as interrupts:
        context = open_context(f"headrace {graph.app}", options.master, options.conf)
        try:
            containers = _container_count(context, plan(graph, facts), options)
            planned = plan(graph, facts, containers)
            prepare_streams(planned, options.stages)
            return _Run(context, planned, metadata, options, containers, interrupts).run()
        finally:
            if theirs is None:
                close_context(context)


def _container_count(context: SparkContext, planned: Plan, options: SparkOptions) -> int:
    if options.containers is not None:
        check_slots(context, options.containers)
        return options.containers
    tasks = sum(len(s.tasks) for s in planned.stages if not options.stages or s.name in options.stages)
    return usable_slots(context, tasks)


class _Run:
    """One run of an app on an open Spark."""

    def __init__(
        self,
        context: SparkContext,
        planned: Plan,
        metadata: MetadataStore,
        options: SparkOptions,
        containers: int,
        interrupts: Interrupts,
    ) -> None:
        self._options = options
        self._plan = planned
        self._started_at = time.time_ns() // 1_000_000
        stages = {
            stage.name: [task.name for task in stage.tasks]
            for stage in planned.stages
            if not options.stages or stage.name in options.stages
        }
        app = planned.graph.app
        ledger = Ledger(
            app,
            stages,
            containers,
            started_at=self._started_at,
            guarantee=planned.graph.settings.guarantee,
        )
        self._coordinator = Coordinator(ledger, metadata, tables=catalogue(planned))
        self._stages = list(stages)
        self._context = context
        self._containers = containers
        self._interrupts = interrupts

    def run(self) -> AppStatus:
        self._coordinator.start()
        try:
            settings = self._plan.graph.settings
            published = publish(
                Path(settings.home),
                self._plan.graph.app,
                self._coordinator.url,
                self._coordinator.token,
                stages=self._stages,
                all_stages=not self._options.stages,
                started_at=self._started_at,
            )
            try:
                payload = ContainerPayload(
                    plan=self._plan,
                    url=self._coordinator.url,
                    token=self._coordinator.token,
                    python_path=_user_folders(),
                    log=current_settings(),
                )
                job = ContainerJob(
                    self._context,
                    self._containers,
                    container_main,
                    ship(payload),
                    f"headrace {self._plan.graph.app}: {self._containers} containers",
                )
                if self._interrupts.requested:  # nothing has begun that would have to end
                    self._coordinator.drain()
                    return self._coordinator.status()
                job.start()
                try:
                    self._interrupts.drain_by(self._coordinator.drain)
                    return self._watch(job)
                finally:
                    if not job.wait(0):
                        job.cancel()
            finally:
                published.close()
        finally:
            self._coordinator.close()

    def _watch(self, job: ContainerJob) -> AppStatus:
        status = watch(self._coordinator, job, self._options.progress)
        if status.error is not None:
            raise status.error.as_error()
        job.wait(END_GRACE_S)
        return self._coordinator.status()


def _user_folders() -> tuple[str, ...]:
    """The folder of the user's script, where its own modules are."""
    return tuple(str(Path(folder).resolve()) for folder in sys.path[:1] if folder)
