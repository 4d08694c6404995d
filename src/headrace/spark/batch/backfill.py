"""Compute an app's state from history in a batch job, and make a savepoint of it, from which the app goes on live.

An input's history is what it holds before its *end* (``ends_of``), and the rest is read live. Or it is a table of
Spark: rows older than ``until`` come from the table, and of what comes live older ones are left out. A table has no
partitions, so steps that keep state can't be right behind such an input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from headrace.api.specs import Graph, Role
from headrace.coordinator.startpoints import check_none_waits, warn_of_unapplied
from headrace.core.clock import WallClock, check_past
from headrace.core.errors import PlanError, UsageError
from headrace.life.folder import Shelf
from headrace.life.metadata import MetadataStore
from headrace.life.timelines import Timelines
from headrace.plan.chain_plan import batch_order_of
from headrace.plan.inventory import NO_CONSENT
from headrace.plan.model import Plan
from headrace.run.batch_ends import Until
from headrace.run.planning import Deployment
from headrace.run.savepoints.restoring import Restoring, recorded, restore
from headrace.run.savepoints.writing import check_can_be_saved
from headrace.spark.batch.handover import Handover, Tables
from headrace.spark.batch.runner import BatchOptions, Journal, run_planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What is to be backfilled. ``publish``: results of the history leave the app, too."""

    savepoint: str
    until: Until
    tables: Tables = field(default_factory=dict)
    publish: bool = True

    @classmethod
    def of(cls, until: str | None, tables: Tables | None, savepoint: str = "backfill", *, publish: bool = True) -> Self:
        if until is None:
            raise UsageError(
                "a backfill needs the time up to which inputs are history",
                hint='write until="now", or a time: until="2026-01-31T12:00Z"',
            )
        return cls(savepoint=savepoint, until=Until.of(until), tables=tables or {}, publish=publish)


def backfill(graph: Graph, metadata: MetadataStore, options: BatchOptions, asked: Backfill) -> None:
    """Compute the history of an app, publish its results, and make the savepoint."""
    check_can_be_saved(graph)
    now_ms = WallClock().now_ms()
    at_ms = now_ms if asked.until.at_ms is None else check_past(asked.until.at_ms, now_ms)
    deployment = Deployment(graph, metadata, NO_CONSENT)
    changed = deployment.planned()
    changed.changes.check()
    if asked.publish and deployment.inventory:
        raise UsageError(
            f"app {graph.app!r} has run in this home, so its results would appear twice",
            hint="create only the savepoint, with --no-publish, and restore it: headrace savepoint restore --help",
        )
    warn_of_unapplied(metadata, graph.app, "a backfill")
    home = Path(graph.settings.home)
    last = Journal(home, graph.app).read()
    if last is None or last.state != "computed":
        Shelf(home, graph.app).check_free(asked.savepoint)
    _check_tables(changed.plan, asked.tables)
    if asked.tables and asked.until.offsets:
        raise UsageError(
            f"until={str(asked.until)!r} names offsets, but a table is divided by event time", hint="give a time"
        )
    handover = Handover(
        savepoint=asked.savepoint,
        publishes=asked.publish,
        tables=asked.tables,
        at_ms=at_ms,
        plan=changed.plan,
        before=deployment.inventory,
        timeline=deployment.timeline,
        say=options.say,
    )
    run_planned(changed.plan, options, handover)


def begin_with_backfill(graph: Graph, metadata: MetadataStore, options: BatchOptions, asked: Backfill) -> None:
    """Backfill an app that has never run, and let its next start go on from there. Does so only once."""
    timelines = Timelines(metadata, graph.app)
    current = timelines.get(timelines.current)
    if current is not None and current.savepoint == asked.savepoint:
        options.say(f"{graph.app} continues from savepoint {asked.savepoint}, which is restored already")
        return
    home = Path(graph.settings.home)
    if recorded(metadata, graph.app, timelines.current):
        raise UsageError(
            f"app {graph.app!r} has run in this home, so its history isn't computed again",
            hint="start it without the backfill; to replace its state, see the page 'From history to live'",
        )
    check_none_waits(metadata, graph.app)
    last = Journal(home, graph.app).read()
    unfinished = last is not None and last.state == "computed"
    if unfinished or asked.savepoint not in Shelf(home, graph.app).names():
        backfill(graph, metadata, options, asked)
    restore(Restoring(home=home, app=graph.app, metadata=metadata, name=asked.savepoint))


def _check_tables(plan: Plan, tables: Tables) -> None:
    inputs = [spec.id for spec in plan.graph.streams.values() if spec.role is Role.SOURCE]
    for id_ in tables:
        if id_ not in inputs:
            raise UsageError(
                f"{id_!r} isn't an input of app {plan.graph.app!r} that can have its history in a table",
                hint=f"such inputs: {', '.join(sorted(inputs))}",
            )
        spec = plan.streams[id_].spec
        where = f"input {id_!r} ({spec.location}) can't have its history in a table"
        if spec.event_time is None:
            raise PlanError(
                f"{where}: it has no event time to separate history from live messages",
                hint="declare it: app.input(..., event_time=...)",
            )
        if spec.slots or spec.system.held is not None:
            raise PlanError(
                f"{where}: its positions aren't known, so a live run couldn't continue",
                hint="leave it out of the tables",
            )
        for stage in plan.stages:
            if id_ in stage.inputs and batch_order_of(plan, stage).timed:
                raise PlanError(
                    f"{where}: stage {stage.name!r} keeps state for each of its partitions, but a table has no "
                    "partitions",
                    hint="put a partition_by between the input and the first step with state",
                )
