"""A plan as Spark DataFrames: each stage is a ``mapInArrow`` over the pieces of its inputs.

Pieces are placed by task (``repartitionById``) and sorted by time inside it; a stage that needs no order runs where its
input is read. So Spark's own shuffle, spilling, retries, dynamic allocation and UI apply. Everything is lazy: nothing
runs before rows are requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.api.specs import Role
from headrace.core.errors import PlanError
from headrace.core.ids import SSP, TaskName
from headrace.plan.batch import order_of, ranks_of, readers_of
from headrace.plan.model import Plan, StagePlan
from headrace.runners.spark.batch.pushdown import leading_steps, narrowed
from headrace.runners.spark.batch.work import (
    DecodedRows,
    DecodeRows,
    MapRows,
    MapSources,
    ReadPartitions,
    ReadRows,
    RunTask,
    Work,
    Worker,
)
from headrace.runners.spark.dataframes import key_of, without_maps
from headrace.runtime.batch.notes import FOR_DRIVER
from headrace.runtime.event_time.watermark import NEVER
from headrace.serdes.pieces import SCHEMA

_COLUMNS = from_arrow_schema(SCHEMA)
_TASK = "task"


class BatchJob:
    """The DataFrames of one plan. ``given`` are the inputs that are DataFrames already, by id."""

    def __init__(
        self, spark: SparkSession, plan: Plan, payload: bytes, given: Mapping[str, DataFrame], *, seam: bool = False
    ) -> None:
        """``seam``: all tasks leave their state, also those whose inputs are all given."""
        self._spark = spark
        self._plan = plan
        self._payload = payload
        self._given = given
        self._seam = seam
        self._readers = readers_of(plan)
        self._stages: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def rows(self, stream: str) -> DataFrame:
        """The rows that the app writes to one of its streams, in no order."""
        spec = self._plan.streams[stream].spec
        if spec.schema is None:
            raise PlanError(
                f"the columns of {stream!r} ({spec.location}) aren't known", hint="declare the schema of what is sent"
            )
        schema = from_arrow_schema(spec.schema.empty().to_arrow().schema)
        rows = DecodedRows(stream, to_arrow_schema(schema))
        writers = [self._plan.stage(name) for name in self._plan.streams[stream].writers]
        if any(self._plan.streams[id_].readers for stage in writers for id_ in stage.outputs):
            return self.pieces([stream]).mapInArrow(DecodeRows(rows), schema)
        # No other reader needs the output of these stages, so their workers decode it themselves.
        parts = [self._made(stage, rows) for stage in writers]
        return reduce(DataFrame.unionAll, parts) if parts else self._spark.createDataFrame([], schema)

    def pieces(self, streams: Sequence[str]) -> DataFrame:
        """The pieces of some streams that the app writes."""
        writers = dict.fromkeys(name for id_ in streams for name in self._plan.streams[id_].writers)
        return self._together([self._written(self._plan.stage(name), streams) for name in writers])

    def last_pieces(self, outputs: Sequence[str]) -> DataFrame:
        """The pieces of the outputs, when all stages are run."""
        between = {id_ for stage in self._plan.stages for id_ in (*stage.inputs, *stage.side_inputs)}
        last = [s for s in self._plan.stages if set(s.outputs) & set(outputs) or not set(s.outputs) & between]
        return self._together([self._written(stage, outputs) for stage in last])

    def close(self) -> None:
        """Release data that was kept for several readers."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    # -- stages

    def _written(self, stage: StagePlan, streams: Sequence[str]) -> DataFrame:
        return self._stage(stage).where(sf.col("stream").isin([*streams, *FOR_DRIVER]))

    def _stage(self, stage: StagePlan) -> DataFrame:
        """The pieces that a stage writes. What several others read is computed once, and kept on disk."""
        if stage.name not in self._stages:
            made = self._made(stage)
            readers = {name for id_ in stage.outputs for name in self._plan.streams[id_].readers}
            outside = any(self._plan.streams[id_].spec.role is Role.SINK for id_ in stage.outputs)
            if len(readers) + outside > 1:
                made = made.persist(StorageLevel.DISK_ONLY)
                self._kept.append(made)
            self._stages[stage.name] = made
        return self._stages[stage.name]

    def _made(self, stage: StagePlan, rows: DecodedRows | None = None) -> DataFrame:
        """What a stage writes: pieces, or the rows of one stream."""
        between = [id_ for id_ in (*stage.inputs, *stage.side_inputs) if self._plan.streams[id_].writers]
        if not order_of(self._plan, stage).timed and not between:
            return self._mapped(stage, rows)
        sources = [id_ for id_ in (*stage.inputs, *stage.side_inputs) if id_ not in between]
        parts = [self.pieces([id_]) for id_ in between] + [self._source(id_, stage) for id_ in sources]
        return self._run(self._in_order(self._together(parts), stage), RunTask(stage.name), rows)

    def _mapped(self, stage: StagePlan, rows: DecodedRows | None) -> DataFrame:
        """A stage that needs no order, over its sources. DataFrames stay in the partitions that Spark has them in."""
        given = [id_ for id_ in stage.inputs if id_ in self._given]
        parts = [self._run(self._narrowed(id_, stage), MapRows(stage.name, id_), rows) for id_ in given]
        if len(given) < len(stage.inputs) or self._seam:
            work = MapSources(stage.name, frozenset(given))
            parts.append(self._run(self._numbers(len(stage.tasks)), work, rows))
        return self._together(parts)

    def _source(self, input_: str, stage: StagePlan) -> DataFrame:
        """The pieces of a source that a stage reads in order."""
        if input_ in self._given:
            return self._run(self._narrowed(input_, stage), ReadRows(input_, key_of(self._plan.streams[input_].spec)))
        mine = {ssp for task in stage.tasks for ssp in task.inputs}
        ssps = tuple(ssp for ssp in self._plan.streams[input_].ssps() if ssp in mine)
        return self._run(self._numbers(len(ssps)), ReadPartitions(ssps))

    def _narrowed(self, input_: str, stage: StagePlan) -> DataFrame:
        """An input that is a DataFrame, without what Spark can leave out for the stage: it may skip files then."""
        schema = self._plan.streams[input_].spec.schema
        columns = {} if schema is None else schema.columns
        given = without_maps(self._given[input_], columns) if columns else self._given[input_]
        if input_ in stage.side_inputs:
            return given
        return narrowed(given, leading_steps(self._plan, stage, input_), columns)

    def _in_order(self, pieces: DataFrame, stage: StagePlan) -> DataFrame:
        """Pieces in the Spark partitions of their tasks, in the order in which a task takes them."""
        ranks = ranks_of(self._plan, stage)
        first = [id_ for id_, rank in ranks.items() if rank == 0]
        rank = sf.when(sf.col("rows") == 0, -1)  # notes
        rank = (rank.when(sf.col("stream").isin(first), 0) if first else rank).otherwise(1)
        placed = pieces.withColumn(_TASK, self._task_of(stage)).withColumn("rank", rank)
        return (
            placed.unionAll(self._beginnings(len(stage.tasks)))
            .repartitionById(len(stage.tasks), _TASK)
            .sortWithinPartitions("first", "rank", "writer", "number")
            .select(*SCHEMA.names)
        )

    def _beginnings(self, tasks: int) -> DataFrame:
        """An empty piece for each task, before all others: a task without messages runs, too."""
        number = sf.col("id").cast("int")
        values: dict[str, Column] = {
            "stream": sf.lit(""),
            "partition": number,
            "first": sf.lit(NEVER),
            "last": sf.lit(NEVER),
            "rows": sf.lit(0),
            "writer": sf.lit(""),
            "number": sf.lit(0).cast("long"),
            "body": sf.lit(b""),
            _TASK: number,
            "rank": sf.lit(-1),
        }
        return self._spark.range(tasks).select(*(value.alias(name) for name, value in values.items()))

    def _task_of(self, stage: StagePlan) -> Column:
        """The number of the task that takes a piece; one row for each if several do."""
        tasks = self._tasks_of(stage)
        if all(numbers == [partition] for (_, partition), numbers in tasks.items()):
            return sf.col("partition")
        known = sf.create_map(
            *(
                part
                for (stream, partition), numbers in tasks.items()
                for part in (sf.lit(f"{stream}/{partition}"), sf.array(*map(sf.lit, numbers)))
            )
        )
        return sf.explode(sf.element_at(known, sf.concat_ws("/", sf.col("stream"), sf.col("partition"))))

    def _tasks_of(self, stage: StagePlan) -> dict[tuple[str, int], list[int]]:
        """The tasks that take the pieces of a partition. Dead letters of a source pass through any of them."""
        inputs = (*stage.inputs, *stage.side_inputs)
        letters = {self._plan.streams[id_].spec.dead_letter for id_ in inputs} - {None}
        return (
            {
                (id_, partition): [task.number for task in self._tasks_reading(ssp) if task.stage == stage.name]
                for id_ in inputs
                for partition, ssp in enumerate(self._plan.streams[id_].ssps())
            }
            | {
                (id_, partition): [partition % len(stage.tasks)]
                for id_ in letters
                if id_ is not None
                for partition in range(self._plan.streams[id_].partitions)
            }
            | {(note, 0): [0] for note in FOR_DRIVER}
        )

    def _tasks_reading(self, ssp: SSP) -> tuple[TaskName, ...]:
        return self._readers.get(ssp, ())

    # -- Spark

    def _numbers(self, count: int) -> DataFrame:
        """The numbers below ``count``, each in a Spark partition of its own."""
        return self._spark.range(0, count, 1, count)

    def _run(self, frame: DataFrame, work: Work, rows: DecodedRows | None = None) -> DataFrame:
        columns = _COLUMNS if rows is None else from_arrow_schema(rows.schema)
        return frame.mapInArrow(Worker(self._payload, work, rows), columns)

    def _together(self, parts: Sequence[DataFrame]) -> DataFrame:
        if not parts:
            return self._spark.createDataFrame([], _COLUMNS)
        return reduce(DataFrame.unionAll, parts)
