"""Compute an app's state from history in a batch job, and make a savepoint of it, from which the app goes on live.

An input's history is what it holds before its *end* (``ends_of``): it is read up to there in the batch and from there
live. Or it is a table of Spark: then rows older than ``until`` come from the table, and others live. The table has all
of them, so older ones that come live are left out. It has no partitions, so steps that keep state can't be right behind
such an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as T
from typing_extensions import override

from headrace.api.operators.spec import EventTime
from headrace.api.specs import Graph, Role, StreamSpec
from headrace.coordinator.startpoints import check_none_waits, warn_of_unapplied
from headrace.core.clock import WallClock, check_past, utc_text
from headrace.core.errors import PlanError, UsageError
from headrace.core.ids import SSP, TaskName
from headrace.life.folder import Shelf
from headrace.life.metadata import MetadataStore
from headrace.life.timelines import Timelines
from headrace.plan.chain_plan import batch_order_of
from headrace.plan.inventory import NO_CONSENT, Inventory
from headrace.plan.model import Plan
from headrace.protocol.record import SourceEntry
from headrace.rows.pieces import Piece
from headrace.run.batch_ends import Until
from headrace.run.coordinated import Interrupts
from headrace.run.planning import Deployment, held_by_driver
from headrace.run.savepoints.restoring import Restoring, recorded, restore
from headrace.run.savepoints.writing import FromBatch, check_can_be_saved, save
from headrace.run.spark.dataframes import copy_dataframes, without_maps
from headrace.spark.batch.expressions import quoted
from headrace.spark.batch.runner import BatchOptions, Handover, Journal, run_planned
from headrace.task.batch import Left, Said, Seam, left_in
from headrace.task.connections import Connections
from headrace.task.event_time import FOREVER, NEVER, UNHEARD, Progress, decode_times

Tables = Mapping[str, DataFrame | str]
"""The history of inputs, by their ids: DataFrames, names of tables, or ``format:path``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What is to be backfilled. ``publish``: results of the history leave the app, too."""

    savepoint: str
    until: Until
    tables: Tables = field(default_factory=dict)
    publish: bool = True

    @classmethod
    def of(cls, until: str | None, tables: Tables | None, savepoint: str = "backfill", *, publish: bool = True) -> Self:
        """What the arguments of ``App.run`` or ``App.backfill`` ask for."""
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
    check_tables(changed.plan, asked.tables)
    if asked.tables and asked.until.offsets:
        raise UsageError(
            f"until={str(asked.until)!r} names offsets, but a table is divided by event time", hint="give a time"
        )
    handover = _Savepoint(changed.plan, deployment.inventory, deployment.timeline, asked, at_ms, options)
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


def check_tables(plan: Plan, tables: Tables) -> None:
    """Raise for tables that can't be the history of an input. Doesn't look into them."""
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


class _Savepoint(Handover):
    """A savepoint of an app. ``before`` is its inventory in its present ``timeline``."""

    def __init__(
        self, plan: Plan, before: Inventory, timeline: int, asked: Backfill, at_ms: int, options: BatchOptions
    ) -> None:
        self.savepoint = asked.savepoint
        self.publishes = asked.publish
        self._plan = plan
        self._before = before
        self._timeline = timeline
        self._asked = asked
        self._at_ms = at_ms
        self._options = options

    @override
    def given(self, spark: SparkSession, interrupts: Interrupts) -> Mapping[str, DataFrame] | None:
        if not copy_dataframes(held_by_driver(self._plan), interrupts):
            return None
        specs = {id_: self._plan.streams[id_].spec for id_ in self._asked.tables}
        return {id_: history(spark, spec, self._asked.tables[id_], self._at_ms) for id_, spec in specs.items()}

    @override
    def seam(self, folder: Path) -> Seam:
        connections = Connections()
        try:
            given = {ssp: said for id_ in self._asked.tables for ssp, said in self._beginnings(connections, id_)}
        finally:
            connections.close()
        return Seam(WallClock().now_ms(), str(folder), given)

    @override
    def finish(self, pieces: Iterable[Piece]) -> None:
        left = {TaskName.parse(one.task): one for one in map(left_in, pieces)}
        version = max((one.record.version for one in left.values()), default=0)
        app = self._plan.graph.app
        shelf = Shelf(Path(self._plan.graph.settings.home), app)
        if self.savepoint not in shelf.names():
            job = FromBatch(plan=self._plan, before=self._before, timeline=self._timeline, version=version, left=left)
            save(shelf, self.savepoint, job)
        self._options.say(f"made savepoint {self.savepoint} of {app}, {_time_of(left.values())}")

    def _beginnings(self, connections: Connections, id_: str) -> Iterable[tuple[SSP, Said]]:
        """Where an input is read live whose history is in a table.

        What is newer than ``until`` was appended after it, but for clocks that differ by no more than the lateness.
        """
        stream = self._plan.streams[id_]
        spec = stream.spec
        admin = connections.admin(spec.system)
        for ssp, extent in zip(stream.ssps(), admin.extents(spec.stream.name), strict=True):
            offset = max(extent.oldest, min(extent.upcoming, admin.offset_at(ssp, self._at_ms - spec.lateness_ms)))
            first = admin.time_of(ssp, extent.oldest) if extent.trimmed and offset == extent.oldest else None
            if first is not None and first > self._at_ms:
                raise UsageError(
                    f"{ssp} begins at {utc_text(first)}, and the table of input {id_!r} is read up to "
                    f"{utc_text(self._at_ms)}: the messages in between would be missing",
                    hint="backfill up to a later time",
                )
            yield ssp, Said(progress=Progress(self._at_ms), entry=SourceEntry.at(ssp, offset, since_ms=self._at_ms))


def history(spark: SparkSession, spec: StreamSpec, table: DataFrame | str, before_ms: int) -> DataFrame:
    """The rows of an input's table that are older. Raises ``UsageError`` if it isn't there, or lacks a column."""
    frame = _opened(spark, spec, table) if isinstance(table, str) else table
    columns = list(spec.schema.columns) if spec.schema is not None else frame.columns
    if missing := [name for name in columns if name not in frame.columns]:
        raise UsageError(
            f"the table for input {spec.id!r} ({spec.location}) has no column {missing[0]!r}",
            hint=f"it has {', '.join(frame.columns)}; rename or add it: give a DataFrame, tables={{{spec.id!r}: df}}",
        )
    rows = without_maps(frame, columns)
    older = None if spec.event_time is None else _older(rows, spec.event_time, before_ms)
    return rows if older is None else rows.where(older)


def _opened(spark: SparkSession, spec: StreamSpec, table: str) -> DataFrame:
    kind, colon, path = table.partition(":")
    try:
        return spark.read.format(kind).load(path) if colon else spark.read.table(table)
    except PySparkException as error:
        said = str(error).splitlines()[0][:300]
        raise UsageError(
            f"Spark can't read {table!r}, the history of input {spec.id!r}: {said}",
            hint="name a table of Spark's catalog, or write parquet:/path, or another format of Spark",
        ) from error


def _older(rows: DataFrame, time_: EventTime, before_ms: int) -> Column | None:
    """A condition that Spark can use to skip files. Rows without a time stay: the input's policy is for them."""
    column, moment = sf.col(quoted(time_.column)), before_ms - time_.offset_ms
    text = utc_text(moment).removesuffix("Z")
    limits: dict[type[T.DataType], str] = {
        T.TimestampType: f"TIMESTAMP '{text}Z'",
        T.TimestampNTZType: f"TIMESTAMP_NTZ '{text}'",
        T.LongType: str(moment),
    }
    limit = limits.get(type(rows.schema[time_.column].dataType))
    return None if limit is None else (column < sf.expr(limit)) | column.isNull()


def _time_of(left: Iterable[Left]) -> str:
    """The progress of event time in words, and what holds it if it hasn't begun."""
    times = [decode_times(one.record.bookkeeping) for one in left]
    timed = [one.watermark for one in times if one.watermark != FOREVER]
    lowest = min(timed, default=NEVER)
    if lowest != NEVER:
        return f"with event time at {utc_text(lowest)}"
    parts = [part for one in times for part in one.partitions if not part.total_tasks]
    empty = sorted({f"{part.stream_id}[{part.partition}]" for part in parts if part.progress == UNHEARD})
    if not empty:
        return "without any event time"
    return f"without any event time, because {empty[0]} is empty: idle_timeout= lets the others go on"
