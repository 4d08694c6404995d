"""What Spark runs in its Python workers for a batch job: tables of pieces in, tables of pieces out.

Each function here gets one Spark partition. If a worker dies, Spark calls it again for the same partition, with the
same pieces: what it writes is the same, and counts once. State is in a folder of the call's own, deleted with it.
The plan comes inside Spark's own closure, from the driver that made it. Nothing else is unpickled here.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from typing_extensions import override

from headrace.api.specs import StreamSpec
from headrace.core.ids import SSP, Offset
from headrace.core.log import OFF, LogSettings, logging_to
from headrace.plan.batch import order_of
from headrace.plan.model import Plan
from headrace.runners.spark.parcel import unpacked
from headrace.runtime.batch.fed_task import FedTask, fed, mapped
from headrace.runtime.batch.notes import note_of_counts
from headrace.runtime.batch.piece_writer import PieceWriter
from headrace.runtime.batch.reading import Reading, put_source
from headrace.runtime.batch.seam import Seam
from headrace.runtime.connections import Connections
from headrace.runtime.metrics import TaskMetrics
from headrace.serdes.pieces import TIME, Piece, as_batch, pieces_in

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
    """The payload. A worker lives for several Spark partitions."""
    payload: BatchPayload = unpacked(data)
    return payload


Tables = Iterable[pa.RecordBatch]


class Work(ABC):
    """What is done with one Spark partition."""

    @abstractmethod
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        """Yield the pieces that result from the tables of the Spark partition with this number."""


@dataclass(frozen=True)
class DecodedRows:
    """The rows of pieces of one stream, in the types that Spark expects."""

    stream: str
    schema: pa.Schema

    def tables(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """Those rows; what isn't of this stream is left out."""
        for piece in pieces:
            if piece.stream == self.stream:
                rows = piece.frame.drop(TIME).to_arrow()
                yield from rows.select(self.schema.names).cast(self.schema).to_batches()


@dataclass(frozen=True)
class Worker:
    """A function for ``DataFrame.mapInArrow``. It gives pieces, or the rows of one stream."""

    payload: bytes
    work: Work
    rows: DecodedRows | None = None

    def __call__(self, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called by Spark with the tables of a Spark partition."""
        context = TaskContext.get()
        payload = _decoded(self.payload)
        number = 0 if context is None else context.partitionId()
        with logging_to(payload.log, fields={"batch": number}):
            pieces = self.work.pieces(payload, number, tables)
            yield from _tables(pieces) if self.rows is None else self.rows.tables(pieces)


def _tables(pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    some: list[Piece] = []
    for piece in pieces:
        some.append(piece)
        if len(some) == _PIECES_AT_ONCE:
            yield as_batch(some)
            some = []
    if some:
        yield as_batch(some)


@dataclass(frozen=True)
class ReadPartitions(Work):
    """Reads source partitions into pieces: the n-th of ``ssps`` for each number n that comes."""

    ssps: tuple[SSP, ...]

    @override
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        with closing(Connections()) as connections:
            reading = Reading(payload.plan, payload.ends, connections)
            for n in _numbers(tables):
                yield from reading.pieces(self.ssps[n], TaskMetrics(str(self.ssps[n])))


@dataclass(frozen=True)
class MapSources(Work):
    """Runs tasks of a stage that needs no order over their sources: the n-th task for each number n that comes.

    ``without`` are inputs that come otherwise.
    """

    stage: str
    without: frozenset[str]

    @override
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        stage = payload.plan.stage(self.stage)
        without = {payload.plan.streams[id_].spec.stream for id_ in self.without}
        with closing(Connections()) as connections, tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder:
            reading = Reading(payload.plan, payload.ends, connections)
            for n in _numbers(tables):
                task = stage.tasks[n]
                ssps = [ssp for ssp in task.inputs if ssp.stream not in without]
                home, now_ms = Path(folder) / str(n), payload.now_ms
                yield from mapped(payload.plan, stage, task, ssps, reading, home, now_ms, payload.seam)


@dataclass(frozen=True)
class RunTask(Work):
    """Runs one task of a stage over the sorted pieces of its inputs. The first of them is empty, and says which task.

    The number of the Spark partition doesn't: in a union it is another one.
    """

    stage: str

    @override
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        stage = payload.plan.stage(self.stage)
        pieces = chain.from_iterable(pieces_in(table) for table in tables)
        task = stage.tasks[next(pieces).partition]
        order = order_of(payload.plan, stage)
        with tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder:
            home, now_ms = Path(folder), payload.now_ms
            yield from fed(payload.plan, stage, task, pieces, order, home, now_ms, payload.seam)


@dataclass(frozen=True)
class ReadRows(Work):
    """Rows of a DataFrame into pieces of an input. With a ``key`` its rows are in one partition."""

    input: str
    key: tuple[str, ...]

    @override
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        stream = payload.plan.streams[self.input]
        partition = number % stream.partitions
        name, metrics = f"{self.input}#{number}", TaskMetrics()
        writer = PieceWriter(payload.plan.graph, payload.plan.streams, name)
        for rows in _accepted(payload, self.input, partition, writer, metrics, tables):
            put_source(writer, stream, partition, rows, self.key)
            yield from writer.take()
        yield from writer.take(all_of_it=True)
        if metrics.counters:
            yield note_of_counts(metrics.counters, name)


@dataclass(frozen=True)
class MapRows(Work):
    """Rows of a DataFrame through a stage that needs no order, and has this input alone."""

    stage: str
    input: str

    @override
    def pieces(self, payload: BatchPayload, number: int, tables: Tables) -> Iterator[Piece]:
        plan = payload.plan
        stage, stream = plan.stage(self.stage), plan.streams[self.input]
        task = stage.tasks[number % len(stage.tasks)]
        ssp = next(ssp for ssp in task.inputs if ssp.stream == stream.spec.stream)
        with (
            tempfile.TemporaryDirectory(prefix="headrace-batch-") as folder,
            FedTask(plan, stage, task, Path(folder), payload.now_ms, f"{task.name}#{number}") as run,
        ):
            yield from run.map(ssp, _accepted(payload, self.input, ssp.partition, run.port, run.metrics, tables))
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


@dataclass(frozen=True)
class DecodeRows:
    """For ``mapInArrow``: from pieces to rows."""

    rows: DecodedRows

    def __call__(self, tables: Tables) -> Iterator[pa.RecordBatch]:
        """Called by Spark with the tables of a Spark partition."""
        yield from self.rows.tables(chain.from_iterable(pieces_in(table) for table in tables))
