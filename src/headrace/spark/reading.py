"""A stream as a DataFrame: what a batch read covers is settled when it is planned, and each Spark task reads a part.

A part is a range of one partition (see ``streams/ranges.py``), so a task that Spark starts again reads the same rows.
Rows leave as Arrow batches of the types that Spark expects. Only the reading of a part runs on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, FrameError, HeadraceError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset, StreamId
from headrace.core.log import OFF, LogSettings, current_settings, logging_to
from headrace.serdes.ipc import decode_runs
from headrace.spark.arrow_rows import ArrowRows
from headrace.spark.read_options import LATEST, OLDEST, Bound, ReadOptions
from headrace.spark.types import to_spark_schema
from headrace.streams.frames import Frame
from headrace.streams.place import open_log
from headrace.streams.ranges import Place, RangeReader
from headrace.systems.base import Extent, StreamInfo, System
from headrace.systems.finding import require_stream
from headrace.systems.home_log import LOG

_BYTES_PER_BATCH = 2 << 20
"""Frames are decoded together, about so many bytes of them: one by one, small ones take three times as long."""

PARTITION, OFFSET = "_partition", "_offset"
POSITION_FIELDS = (StructField(PARTITION, IntegerType()), StructField(OFFSET, LongType()))
"""The columns that ``includePosition`` adds. All rows of a frame have its offset."""


class Part(InputPartition):
    """What one Spark task reads: a range of one partition."""

    def __init__(self, partition: int, start: Place, end: Offset) -> None:
        super().__init__(partition)
        self.partition = partition
        self.start = start
        self.end = end


class StreamSource:
    """A stream of a home as a reader is asked for it. Can be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.stream = StreamId(LOG, options.stream)
        self.info: StreamInfo = require_stream(self.open(), self.stream, options.home)

    def open(self) -> System:
        """The log that the stream is in."""
        return open_log(self.options.home)

    def extents(self) -> Sequence[Extent]:
        """The present offsets of each partition."""
        return self.open().admin().extents(self.stream.name)

    def schema(self) -> StructType:
        """The columns that Spark gets. Raises ``UsageError`` if the stream declares none."""
        if self.info.columns is None:
            raise UsageError(
                f"{self.stream} has no declared schema",
                hint='declare its columns: spark.read.format("headrace").schema("name STRING, euros DOUBLE")',
            )
        schema = to_spark_schema(self.info.columns)
        if not self.options.with_position:
            return schema
        self._check_position_names(self.info.columns)
        return StructType([*schema.fields, *POSITION_FIELDS])

    def _check_position_names(self, columns: Mapping[str, pl.DataType]) -> None:
        if taken := [name for name in (PARTITION, OFFSET) if name in columns]:
            raise UsageError(
                f"{self.stream} already has a column {taken[0]!r}, which includePosition would add",
                hint='leave out the option includePosition, or name the columns you want: .schema("...")',
            )

    def resolve(self, bound: Bound) -> list[Offset]:
        """Return the offset in each partition. Raises ``UsageError`` for an offset that can't be one."""
        extents = self.extents()
        if bound.time_ms is not None:
            admin = self.open().admin()
            return [admin.offset_at(SSP(self.stream, number), bound.time_ms) for number in range(len(extents))]
        if bound.offsets is not None and bound.offsets.keys() != set(range(len(extents))):
            raise UsageError(
                f"option {bound.option} names partitions {', '.join(map(str, sorted(bound.offsets)))}; "
                f"{self.stream} has 0 to {len(extents) - 1}",
                hint=f"name each partition of the stream; {OLDEST} is the oldest offset, {LATEST} the end",
            )
        return [self._offset(bound, number, extent) for number, extent in enumerate(extents)]

    def _offset(self, bound: Bound, partition: int, extent: Extent) -> Offset:
        offset = bound.everywhere if bound.offsets is None else bound.offsets[partition]
        if offset == OLDEST:
            return extent.oldest
        if offset == LATEST or offset is None:
            return extent.upcoming
        if offset >= extent.oldest:
            # Where records are trimmed away, reading says what is lost, and may go on if it is allowed to.
            self.open().admin().check_offset(SSP(self.stream, partition), offset)
        return offset


class BatchReader(DataSourceReader):
    """Reads a stream up to where it ends when the query is planned, or to where the options say."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._source = StreamSource(options)
        self._rows = RowsOfParts(self._source, schema)

    @override
    def partitions(self) -> list[Part]:
        options = self._source.options
        if options.start.everywhere == LATEST or LATEST in (options.start.offsets or {}).values():
            raise UsageError(
                f"option {options.start.option} is the end of the stream: a batch would have no rows",
                hint="begin at earliest, at an offset or at a time; spark.readStream waits for new rows",
            )
        starts, ends = self._source.resolve(options.start), self._source.resolve(options.end)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if start > end and options.start.everywhere is None:
                raise UsageError(
                    f"{SSP(self._source.stream, number)}: {options.start.option} is at offset {start}, after "
                    f"{options.end.option} at {end}",
                    hint="choose an end after the start",
                )
        bounds = enumerate(zip(starts, ends, strict=True))
        return split(self._source, [Part(number, Place.at(start), end) for number, (start, end) in bounds])

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class RowsOfParts:
    """Turns parts into Arrow batches of a schema. Can be pickled."""

    def __init__(self, source: StreamSource, schema: StructType) -> None:
        self._source = source
        declared = source.info.columns
        self._position = [
            field.name for field in POSITION_FIELDS if field.name in set(schema.names) - set(declared or {})
        ]
        self._rows = ArrowRows(schema, declared, str(source.stream), added=self._position)
        missing = {PARTITION, OFFSET} - set(self._position)
        if source.options.with_position and missing:
            lacks = ", ".join(sorted(missing))
            raise UsageError(
                f"option includePosition adds {PARTITION} and {OFFSET}, but the schema lacks {lacks}",
                hint=f'name them in the schema as well: "{PARTITION} INT, {OFFSET} BIGINT"',
            )

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        if not isinstance(part, Part):
            return  # Spark's own partition, in place of none
        try:
            yield from self._read(part)
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"{self._source.stream} existed when the query was planned, but isn't found here: {error.message}",
                hint=f"make {self._source.options.home} a folder that all machines, also executors, see under that "
                "path",
            ) from error

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        options = self._source.options
        ssp = SSP(self._source.stream, part.partition)
        reader = RangeReader(
            self._source.open(), ssp, part.start, _itself, committed=options.committed, lossy=not options.fails_on_loss
        )
        with warnings_shown(), closing(reader.read(part.end)) as shown:
            waiting: list[Frame] = []
            size = 0
            for frame in (frame for together in shown for frame in together):
                waiting.append(frame)
                size += len(frame.body)
                if size >= _BYTES_PER_BATCH:
                    yield from self._batches(waiting)
                    waiting, size = [], 0
            yield from self._batches(waiting)

    def _batches(self, frames: Sequence[Frame]) -> list[pa.RecordBatch]:
        if not frames:
            return []
        try:
            table = self._fitted(frames)
        except HeadraceError:
            for frame in frames:  # one of them says what is wrong with it
                try:
                    self._fitted([frame])
                except (FrameError, DataError, DeclarationError) as error:
                    raise type(error)(f"{frame.where}: {error.message}", hint=error.hint) from error
            raise
        return self._rows.batches(table)

    def _fitted(self, frames: Sequence[Frame]) -> pa.Table:
        """The rows of the frames with the columns that are asked for, as Spark expects them."""
        runs: list[pl.DataFrame] = []
        begin = 0
        for rows, heights in decode_runs([frame.body for frame in frames]):
            end = begin + len(heights)
            runs.append(self._with_position(self._rows.conformed(rows), frames[begin:end], heights))
            begin = end
        return self._rows.table(runs)

    def _with_position(self, rows: pl.DataFrame, frames: Sequence[Frame], heights: Sequence[int]) -> pl.DataFrame:
        if not self._position:
            return rows
        values = {
            PARTITION: np.repeat([frame.ssp.partition for frame in frames], heights),
            OFFSET: np.repeat([frame.offset for frame in frames], heights),
        }
        columns = self._rows.columns
        added = [pl.Series(name, values[name], columns[name]) for name in self._position]
        return pl.DataFrame([*rows.get_columns(), *added]).select(*columns)


def split(source: StreamSource, parts: Sequence[Part]) -> list[Part]:
    """Split parts until there are as many as the option ``minPartitions`` asks for, by size, between frames.

    Where a part begins depends on what is before it, so this reads the whole range.
    """
    filled = [part for part in parts if part.end > part.start.end]
    wanted, total = source.options.partitions_min, sum(part.end - part.start.end for part in filled)
    if wanted is None or wanted <= len(filled):
        return filled
    return [piece for part in filled for piece in _pieces(source, part, total / wanted)]


def _pieces(source: StreamSource, part: Part, size: float) -> Iterator[Part]:
    number = max(1, round((part.end - part.start.end) / size))
    cuts = [part.start.end + (part.end - part.start.end) * n // number for n in range(1, number)]
    reader = scan(source, part.partition, part.start)
    start = part.start
    for cut in cuts:
        for _ in reader.read(cut):
            pass
        if reader.place.end > start.end:
            yield Part(part.partition, start, reader.place.end)
            start = reader.place
    yield Part(part.partition, start, part.end)


def scan(source: StreamSource, partition: int, start: Place) -> RangeReader[int]:
    """A reader that keeps only how many rows a frame has."""
    options = source.options
    return RangeReader(
        source.open(),
        SSP(source.stream, partition),
        start,
        _height,
        committed=options.committed,
        lossy=not options.fails_on_loss,
    )


def warnings_shown() -> AbstractContextManager[None]:
    """Python workers of Spark have no log of their own: what Headrace warns of goes to their stderr."""
    return logging_to(LogSettings("warning")) if current_settings() == OFF else nullcontext()


def _itself(frame: Frame) -> Frame:
    return frame


def _height(frame: Frame) -> int:
    try:
        batches = pa.ipc.open_stream(pa.BufferReader(frame.body))
        return sum(batch.num_rows for batch in batches)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FrameError(f"{frame.where}: the body is not an Arrow batch: {error}") from error
