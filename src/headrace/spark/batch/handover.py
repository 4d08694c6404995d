"""What a backfill hands over to the live run that goes on from it: a savepoint, where history ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as T

from headrace.api.operators.spec import EventTime
from headrace.api.specs import StreamSpec
from headrace.core.clock import WallClock, utc_text
from headrace.core.errors import UsageError
from headrace.core.ids import SSP, TaskName
from headrace.life.folder import Shelf
from headrace.plan.inventory import Inventory
from headrace.plan.model import Plan
from headrace.protocol.record import SourceEntry
from headrace.rows.pieces import Piece
from headrace.run.coordinated import Interrupts
from headrace.run.planning import held_by_driver
from headrace.run.savepoints.writing import FromBatch, save
from headrace.run.spark.dataframes import copy_dataframes, without_maps
from headrace.spark.batch.expressions import quoted
from headrace.task.batch import Left, Said, Seam, left_in
from headrace.task.connections import Connections
from headrace.task.event_time import FOREVER, NEVER, UNHEARD, Progress, decode_times

Tables = Mapping[str, DataFrame | str]
"""The history of inputs, by their ids: DataFrames, names of tables, or ``format:path``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What a live run is to go on from, when the results of a batch run are published: a savepoint.

    ``before`` is the app's inventory in its present ``timeline``. Inputs are history up to ``at_ms``.
    """

    savepoint: str
    publishes: bool
    tables: Tables
    at_ms: int
    plan: Plan
    before: Inventory
    timeline: int
    say: Callable[[str], None]

    def given(self, spark: SparkSession, interrupts: Interrupts) -> Mapping[str, DataFrame] | None:
        """The history of inputs that isn't read from themselves, by id. None if a signal has ended that."""
        if not copy_dataframes(held_by_driver(self.plan), interrupts):
            return None
        specs = {id_: self.plan.streams[id_].spec for id_ in self.tables}
        return {id_: history(spark, spec, self.tables[id_], self.at_ms) for id_, spec in specs.items()}

    def seam(self, folder: Path) -> Seam:
        """Where the batch stops; tasks leave their state in the folder."""
        with closing(Connections()) as connections:
            given = {ssp: said for id_ in self.tables for ssp, said in self._beginnings(connections, id_)}
        return Seam(WallClock().now_ms(), str(folder), given)

    def finish(self, pieces: Iterable[Piece]) -> None:
        """Make the savepoint from the tasks' final state, unless it exists already."""
        left = {TaskName.parse(one.task): one for one in map(left_in, pieces)}
        version = max((one.record.version for one in left.values()), default=0)
        app = self.plan.graph.app
        shelf = Shelf(Path(self.plan.graph.settings.home), app)
        if self.savepoint not in shelf.names():
            job = FromBatch(plan=self.plan, before=self.before, timeline=self.timeline, version=version, left=left)
            save(shelf, self.savepoint, job)
        self.say(f"made savepoint {self.savepoint} of {app}, {_time_of(left.values())}")

    def _beginnings(self, connections: Connections, id_: str) -> Iterable[tuple[SSP, Said]]:
        """Where an input is read live whose history is in a table: newer rows came later, but for the lateness."""
        stream = self.plan.streams[id_]
        spec = stream.spec
        admin = connections.admin(spec.system)
        for ssp, extent in zip(stream.ssps(), admin.extents(spec.stream.name), strict=True):
            offset = max(extent.oldest, min(extent.upcoming, admin.offset_at(ssp, self.at_ms - spec.lateness_ms)))
            first = admin.time_of(ssp, extent.oldest) if extent.trimmed and offset == extent.oldest else None
            if first is not None and first > self.at_ms:
                raise UsageError(
                    f"{ssp} begins at {utc_text(first)}, and the table of input {id_!r} is read up to "
                    f"{utc_text(self.at_ms)}: the messages in between would be missing",
                    hint="backfill up to a later time",
                )
            yield ssp, Said(progress=Progress(self.at_ms), entry=SourceEntry.at(ssp, offset, since_ms=self.at_ms))


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
