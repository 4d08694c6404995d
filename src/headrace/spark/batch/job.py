"""A plan as Spark DataFrames, and what Spark's Python workers do for it: tables of pieces in, tables of pieces out.

Each stage is a ``mapInArrow`` over the pieces of its inputs. Pieces are placed by task (``repartitionById``) and sorted
by time inside it; a stage that needs no order runs where its input is read. Everything is lazy: nothing runs before
rows are requested.

A worker gets one Spark partition. If it dies, Spark calls it again with the same pieces: what it writes is the same,
and counts once. State is in a folder of the call's own, deleted with it. The plan comes inside Spark's own closure,
from the driver that made it. Nothing else is unpickled here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from itertools import chain, islice
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.api.specs import Role, StreamSpec
from headrace.core.clock import WallClock
from headrace.core.errors import PlanError
from headrace.core.ids import SSP, Offset
from headrace.core.log import OFF, LogSettings, current_settings, logging_to
from headrace.plan.chain_plan import batch_order_of, ranks_of, readers_of
from headrace.plan.model import Plan, StagePlan
from headrace.rows.pieces import SCHEMA, TIME, Piece, as_batch, pieces_in
from headrace.run.batch_ends import Until, ends_of
from headrace.run.spark.container_main import unpacked, user_folders
from headrace.run.spark.dataframes import key_of, without_maps
from headrace.run.spark.session import prepare_session
from headrace.run.spark.shipping import ship
from headrace.spark.batch.expressions import leading_steps, narrowed
from headrace.task.batch import FOR_DRIVER, FedTask, PieceWriter, Reading, Seam, fed, mapped, note_of_counts, put_source
from headrace.task.connections import Connections
from headrace.task.event_time import NEVER
from headrace.task.metrics import TaskMetrics

_PIECES_AT_ONCE = 8
"""How many pieces go to Spark in one table: it holds all of one in memory."""
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 18, 16 << 20
"""How much of a DataFrame a stage takes at once. Spark's own tables have 10,000 rows."""


@dataclass(frozen=True, slots=True)
class BatchPayload:
    """What the driver sends to every worker. ``ends``: up to where sources are read that don't end by themselves."""

    plan: Plan
    ends: Mapping[SSP, Offset]
    now_ms: int
    python_path: tuple[str, ...] = ()
    log: LogSettings = OFF
    seam: Seam | None = None
    """Where a live run goes on; None: inputs end where they are read to."""


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> BatchPayload:
    """A worker lives for several Spark partitions."""
    payload: BatchPayload = unpacked(data)
    return payload


Tables = Iterable[pa.RecordBatch]
Work = Callable[[BatchPayload, int, Tables], Iterator[Piece]]
"""What is done with the tables of one Spark partition, which has this number."""


@dataclass(frozen=True)
class DecodedRows:
    """The rows of pieces of one stream, in the types that Spark expects."""

    stream: str
    schema: pa.Schema

    def decoded(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """Those rows; what isn't of this stream is left out."""
        for piece in pieces:
            if piece.stream == self.stream:
                rows = piece.frame.drop(TIME).to_arrow()
                yield from rows.select(self.schema.names).cast(self.schema).to_batches()

    def __call__(self, tables: Tables) -> Iterator[pa.RecordBatch]:
        yield from self.decoded(chain.from_iterable(pieces_in(table) for table in tables))


@dataclass(frozen=True)
class Worker:
    """A function for ``DataFrame.mapInArrow``. It gives pieces, or the rows of one stream."""

    payload: bytes
    work: Work
    rows: DecodedRows | None = None

    def __call__(self, tables: Tables) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        payload = _decoded(self.payload)
        number = 0 if context is None else context.partitionId()
        with logging_to(payload.log, fields={"batch": number}):
            pieces = self.work(payload, number, tables)
            yield from _tables(pieces) if self.rows is None else self.rows.decoded(pieces)


def _tables(pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    while some := list(islice(pieces, _PIECES_AT_ONCE)):
        yield as_batch(some)


def _read_partitions(ssps: Sequence[SSP], payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
    """Source partitions into pieces: the n-th of ``ssps`` for each number n that comes."""
    with closing(Connections()) as connections:
        reading = Reading(payload.plan, payload.ends, connections)
        for n in _numbers(tables):
            yield from reading.pieces(ssps[n], TaskMetrics(str(ssps[n])))


def _map_sources(
    stage_name: str, without: frozenset[str], payload: BatchPayload, number: int, tables: Tables
) -> Iterator[Piece]:
    """Tasks of a stage that needs no order over their sources (but for ``without``): the n-th for each number n."""
    stage = payload.plan.stage(stage_name)
    others = {payload.plan.streams[id_].spec.stream for id_ in without}
    with closing(Connections()) as connections, tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder:
        reading = Reading(payload.plan, payload.ends, connections)
        for n in _numbers(tables):
            task = stage.tasks[n]
            ssps = [ssp for ssp in task.inputs if ssp.stream not in others]
            home, now_ms = Path(folder) / str(n), payload.now_ms
            yield from mapped(FedTask(payload.plan, stage, task, home, now_ms, seam=payload.seam), ssps, reading)


def _run_task(stage_name: str, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
    """One task of a stage over the sorted pieces of its inputs. The first of them is empty, and says which task.

    The number of the Spark partition doesn't: in a union it is another one.
    """
    stage = payload.plan.stage(stage_name)
    pieces = chain.from_iterable(pieces_in(table) for table in tables)
    task = stage.tasks[next(pieces).partition]
    order = batch_order_of(payload.plan, stage)
    with tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder:
        run = FedTask(payload.plan, stage, task, Path(folder), payload.now_ms, seam=payload.seam)
        yield from fed(run, pieces, order)


def _read_rows(
    input_: str, key: tuple[str, ...], payload: BatchPayload, number: int, tables: Tables
) -> Iterator[Piece]:
    """Rows of a DataFrame into pieces of an input. With a ``key`` its rows are in one partition."""
    stream = payload.plan.streams[input_]
    partition = number % stream.partitions
    name, metrics = f"{input_}#{number}", TaskMetrics()
    writer = PieceWriter(payload.plan.graph, payload.plan.streams, name)
    for rows in _accepted(payload, input_, partition, writer, metrics, tables):
        put_source(writer, stream, partition, rows, key)
        yield from writer.take()
    yield from writer.take(all_of_it=True)
    if metrics.counters:
        yield note_of_counts(metrics.counters, name)


def _map_rows(stage_name: str, input_: str, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
    """Rows of a DataFrame through a stage that needs no order, and has this input alone."""
    plan = payload.plan
    stage, stream = plan.stage(stage_name), plan.streams[input_]
    task = stage.tasks[number % len(stage.tasks)]
    ssp = next(ssp for ssp in task.inputs if ssp.stream == stream.spec.stream)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder,
        FedTask(plan, stage, task, Path(folder), payload.now_ms, f"{task.name}#{number}") as run,
    ):
        yield from run.map(ssp, _accepted(payload, input_, ssp.partition, run.port, run.metrics, tables))
        yield from run.finish()


def _accepted(
    payload: BatchPayload, input_: str, partition: int, writer: PieceWriter, metrics: TaskMetrics, tables: Tables
) -> Iterator[pl.DataFrame]:
    """The rows of a DataFrame that fit the input; of a table of history, those before the seam."""
    spec = payload.plan.streams[input_].spec
    ssp, offset = SSP(spec.stream, partition), 0
    with closing(Connections()) as connections:
        intake = Reading(payload.plan, {}, connections).intake(spec, writer.write, metrics)
        for rows in _large(tables):
            accepted = intake.accept(ssp, _filled(rows, spec), offset)
            yield accepted if payload.seam is None else payload.seam.before(ssp, spec, accepted)
            offset += rows.height


def _large(tables: Tables) -> Iterator[pl.DataFrame]:
    """The rows of tables, many at a time: a window counts a batch before it sends it, and the more rows, the less."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for table in tables:
        if table.num_rows:
            some.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield _together(some)
            some, rows, size = [], 0, 0
    if some:
        yield _together(some)


def _together(tables: Sequence[pa.RecordBatch]) -> pl.DataFrame:
    frame = pl.from_arrow(pa.Table.from_batches(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame.rechunk()


def _filled(rows: pl.DataFrame, spec: StreamSpec) -> pl.DataFrame:
    """The rows with all columns of the input. Those that no step reads weren't asked of Spark, and are null."""
    columns = {} if spec.schema is None else spec.schema.columns
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in rows.columns]
    return rows.with_columns(missing) if missing else rows


def _numbers(tables: Tables) -> Iterator[int]:
    for table in tables:
        yield from table.column(0).to_pylist()


_COLUMNS = from_arrow_schema(SCHEMA)
_TASK = "task"


class BatchJob:
    """The DataFrames of one plan. ``given`` are the inputs that are DataFrames already, by id."""

    def __init__(
        self, spark: SparkSession, plan: Plan, payload: bytes, given: Mapping[str, DataFrame], *, seam: bool = False
    ) -> None:
        """``seam``: all tasks leave their state, also those whose inputs are all given."""
        self._spark, self._plan, self._payload = spark, plan, payload
        self._given, self._seam = given, seam
        self._readers = readers_of(plan)
        self._stages: dict[str, DataFrame] = {}
        self._kept: list[DataFrame] = []

    def rows(self, stream: str) -> DataFrame:
        spec = self._plan.streams[stream].spec
        if spec.schema is None:
            raise PlanError(
                f"the columns of {stream!r} ({spec.location}) aren't known", hint="declare the schema of what is sent"
            )
        schema = from_arrow_schema(spec.schema.empty().to_arrow().schema)
        rows = DecodedRows(stream, to_arrow_schema(schema))
        writers = [self._plan.stage(name) for name in self._plan.streams[stream].writers]
        if any(self._plan.streams[id_].readers for stage in writers for id_ in stage.outputs):
            return self.pieces([stream]).mapInArrow(rows, schema)
        # No other reader needs the output of these stages, so their workers decode it themselves.
        parts = [self._made(stage, rows) for stage in writers]
        return reduce(DataFrame.unionAll, parts) if parts else self._spark.createDataFrame([], schema)

    def pieces(self, streams: Sequence[str]) -> DataFrame:
        writers = dict.fromkeys(name for id_ in streams for name in self._plan.streams[id_].writers)
        return self._together([self._written(self._plan.stage(name), streams) for name in writers])

    def last_pieces(self, outputs: Sequence[str]) -> DataFrame:
        between = {id_ for stage in self._plan.stages for id_ in (*stage.inputs, *stage.side_inputs)}
        last = [s for s in self._plan.stages if set(s.outputs) & set(outputs) or not set(s.outputs) & between]
        return self._together([self._written(stage, outputs) for stage in last])

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

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
        between = [id_ for id_ in (*stage.inputs, *stage.side_inputs) if self._plan.streams[id_].writers]
        if not batch_order_of(self._plan, stage).timed and not between:
            return self._mapped(stage, rows)
        sources = [id_ for id_ in (*stage.inputs, *stage.side_inputs) if id_ not in between]
        parts = [self.pieces([id_]) for id_ in between] + [self._source(id_, stage) for id_ in sources]
        return self._run(self._in_order(self._together(parts), stage), partial(_run_task, stage.name), rows)

    def _mapped(self, stage: StagePlan, rows: DecodedRows | None) -> DataFrame:
        """A stage that needs no order, over its sources. DataFrames stay in the partitions that Spark has them in."""
        given = [id_ for id_ in stage.inputs if id_ in self._given]
        parts = [self._run(self._narrowed(id_, stage), partial(_map_rows, stage.name, id_), rows) for id_ in given]
        if len(given) < len(stage.inputs) or self._seam:
            work = partial(_map_sources, stage.name, frozenset(given))
            parts.append(self._run(self._numbers(len(stage.tasks)), work, rows))
        return self._together(parts)

    def _source(self, input_: str, stage: StagePlan) -> DataFrame:
        if input_ in self._given:
            key = key_of(self._plan.streams[input_].spec)
            return self._run(self._narrowed(input_, stage), partial(_read_rows, input_, key))
        mine = {ssp for task in stage.tasks for ssp in task.inputs}
        ssps = tuple(ssp for ssp in self._plan.streams[input_].ssps() if ssp in mine)
        return self._run(self._numbers(len(ssps)), partial(_read_partitions, ssps))

    def _narrowed(self, input_: str, stage: StagePlan) -> DataFrame:
        """An input that is a DataFrame, without what Spark can leave out for the stage: it may skip files then."""
        schema = self._plan.streams[input_].spec.schema
        columns = {} if schema is None else schema.columns
        given = without_maps(self._given[input_], columns) if columns else self._given[input_]
        if input_ in stage.side_inputs:
            return given
        return narrowed(given, leading_steps(self._plan, stage, input_), columns)

    def _in_order(self, pieces: DataFrame, stage: StagePlan) -> DataFrame:
        first = [id_ for id_, rank in ranks_of(self._plan, stage).items() if rank == 0]
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
                (id_, partition): [task.number for task in self._readers.get(ssp, ()) if task.stage == stage.name]
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

    def _numbers(self, count: int) -> DataFrame:
        return self._spark.range(0, count, 1, count)

    def _run(self, frame: DataFrame, work: Work, rows: DecodedRows | None = None) -> DataFrame:
        columns = _COLUMNS if rows is None else from_arrow_schema(rows.schema)
        return frame.mapInArrow(Worker(self._payload, work, rows), columns)

    def _together(self, parts: Sequence[DataFrame]) -> DataFrame:
        if not parts:
            return self._spark.createDataFrame([], _COLUMNS)
        return reduce(DataFrame.unionAll, parts)


def batch_job(
    plan: Plan, spark: SparkSession, until: Until | None, given: Mapping[str, DataFrame], seam: Seam | None = None
) -> BatchJob:
    prepare_session(spark)
    payload = BatchPayload(
        plan=plan,
        ends=ends_of(plan, until, frozenset(given)),
        now_ms=WallClock().now_ms(),
        python_path=user_folders(),
        log=current_settings(),
        seam=seam,
    )
    return BatchJob(spark, plan, ship(payload), given, seam=seam is not None)
