"""A DataFrame into a stream: Spark's tasks stage frames, and the driver publishes all of them as one version, or none.

What a task writes is invisible until then, so tasks may fail, run twice, or be killed. Only the driver is a producer of
the protocol (see ``streams/committed_writer.py``). Spark pickles a writer for its tasks; its ``commit`` runs in a
process of the driver's machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, HeadraceError, StreamNotFoundError, UsageError
from headrace.core.ids import StreamId
from headrace.core.log import logger
from headrace.serdes.given_rows import given_rows
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import encode_rows
from headrace.serdes.rows import concat_rows
from headrace.serdes.schema import Schema
from headrace.spark.staging import StagedFile, read_staged, remove_staged, staging_folder
from headrace.spark.types import to_polars_columns
from headrace.spark.write_options import WriteOptions
from headrace.streams.committed_writer import CommittedWriter, open_committed_writer
from headrace.streams.place import open_log
from headrace.streams.row_writer import FRAME_ROWS, key_for
from headrace.streams.writer_slots import borrowed_writer
from headrace.systems.base import StreamInfo
from headrace.systems.home_log import LOG

FRAME_BYTES = 32 << 20
"""A task collects rows up to this size, or to ``FRAME_ROWS``, and makes a frame for each partition of them."""

_log = logger(__name__)


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """A task's message to the driver: the name of its staged file ("" if it had no rows), and its number of rows."""

    name: str
    rows: int


class Destination:
    """A stream that a DataFrame is written to: what the DataFrame's rows become, and where they wait. Can be pickled.

    Raises ``StreamNotFoundError``, ``UsageError``, and ``DataError`` or ``DeclarationError`` for a column that doesn't
    fit. Creates the stream if the options say so.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.stream = StreamId(LOG, options.stream)
        self._job = uuid.uuid4().hex
        self.folder = staging_folder(options.home, options.stream)
        names = schema.fieldNames()
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(
                f"the DataFrame has several columns named {twice!r}", hint="rename or drop all but one of them"
            )
        given = to_polars_columns(schema)
        self._info = self._there(given)
        self.options = replace(options, keys=key_for(self._info, self.stream, options.keys))
        columns = self._info.columns
        self._schema = None if columns is None else Schema(columns)
        self._given = {name: _as_written(dtype, (columns or {}).get(name)) for name, dtype in given.items()}
        self._check_fit()

    def _there(self, columns: dict[str, pl.DataType]) -> StreamInfo:
        """Return the stream; create it if it doesn't exist and the options give a partition count."""
        admin, wanted, name = open_log(self.options.home).admin(), self.options.partitions, self.options.stream
        info = admin.describe(name)
        if info is not None:
            if wanted not in (None, info.partitions):
                raise UsageError(
                    f"option partitions is {wanted}, but {self.stream} has {info.partitions} partitions",
                    hint="leave out partitions, which is only for streams that don't exist yet",
                )
            return info
        if wanted is None:
            raise StreamNotFoundError(
                f"there is no stream {self.stream} in {self.options.home}",
                hint='check option home, or let this write create the stream: option("partitions", 4)',
            )
        return admin.create(name, wanted, columns, self.options.keys)

    def _check_fit(self) -> None:
        rows = pl.DataFrame(schema=self._given)
        rows = self._conformed(given_rows(rows, self._schema, str(self.stream), self._info.added))
        if self.options.keys:
            try:
                partition_of(rows, self.options.keys, self._info.partitions)
            except DeclarationError as error:
                raise UsageError(f"option key: {error.message}", hint=error.hint) from error

    def _conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the stream's columns."""
        if self._schema is None:
            return rows
        try:
            fitted, mismatch = self._schema.conform(rows, self._info.added)
        except DataError as error:
            raise DataError(f"{self.stream}: {error.message}", hint=error.hint) from error
        if mismatch is not None:
            raise mismatch.error()
        return fitted

    # -- on executors ----------------------------------------------------------------------------------

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
        """Write the rows of a Spark task to a staged file."""
        pieces = self._pieces(batches)
        first = next(pieces, None)
        if first is None:
            return StagedRows("", 0)
        context = TaskContext.get()
        own = (0 if context is None else context.partitionId()) % self._info.partitions
        with StagedFile(self.folder, self._info.partitions, self._job) as file:
            for piece in chain((first,), pieces):
                for partition, rows in self._routed(piece, own):
                    file.add(partition, rows.height, encode_rows(rows))
            file.finish()
        return StagedRows(file.name, file.rows)

    def _pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        """The rows, in pieces that are neither too small nor too large to be frames."""
        waiting: list[pl.DataFrame] = []
        height = size = 0
        for batch in batches:
            rows = self._as_given(batch)
            if not rows.height:
                continue
            waiting.append(rows)
            height, size = height + rows.height, size + int(rows.estimated_size())
            if height >= FRAME_ROWS or size >= FRAME_BYTES:
                yield from self._cut(concat_rows(waiting), size)
                waiting, height, size = [], 0, 0
        if waiting:
            yield from self._cut(concat_rows(waiting), size)

    def _cut(self, rows: pl.DataFrame, size: int) -> Iterator[pl.DataFrame]:
        step = max(1, min(FRAME_ROWS, FRAME_BYTES * rows.height // max(size, 1)))
        for piece in rows.iter_slices(step):
            yield self._conformed(piece)

    def _as_given(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """A batch as Spark has it. Its timestamps come in the time zone of the session; they are instants."""
        rows = pl.from_arrow(batch)
        assert isinstance(rows, pl.DataFrame)
        cast = rows.cast({name: dtype for name, dtype in self._given.items() if rows.schema[name] != dtype})
        for name, dtype in self._given.items():
            if isinstance(dtype, pl.Duration) and rows.schema[name] != dtype:
                _check_same(rows[name], cast[name])
        return cast

    def _routed(self, rows: pl.DataFrame, own: int) -> list[tuple[int, pl.DataFrame]]:
        if not self.options.keys:
            return [(own, rows)]
        count = self._info.partitions
        return split(rows, partition_of(rows, self.options.keys, count), count)

    # -- on the driver ---------------------------------------------------------------------------------

    def frames(self, messages: Sequence[WriterCommitMessage | None]) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that the tasks have staged, task by task."""
        for staged in _staged(messages):
            yield from read_staged(self.folder, staged.name, staged.rows, self._info.partitions)

    def publish(self, writer: CommittedWriter, version: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged frames, unless the version is the writer's last one already."""
        position = writer.position()
        if version < position:
            raise UsageError(
                f"version {version} of writer {writer.name!r} follows version {position}, which {self.stream} has: "
                "the versions of a writer must increase",
                hint="for another series of writes, or for a streaming query whose checkpoint was deleted, use another "
                'name: option("writer", ...)',
            )
        rows = sum(staged.rows for staged in _staged(messages))
        if writer.publish(version, self.frames(messages)):
            _log.info("published", stream=str(self.stream), writer=writer.name, version=version, rows=rows)
        else:
            _log.warning(
                "writing nothing, because this version was published before",
                stream=str(self.stream),
                writer=writer.name,
                version=version,
                rows=rows,
            )

    def clean(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files of the job, and abandoned ones.

        In a batch this object knows the job; of a streaming query's batch, the messages of its tasks do.
        """
        remove_staged(self.folder, [self._job, *(staged.name for staged in _staged(messages))])


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: one version, under the name and number that the options give, or under a borrowed name."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._to = Destination(WriteOptions.of(options, streaming=False, overwrite=overwrite), schema)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return self._to.stage(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            options = self._to.options
            if options.writer is not None and options.version is not None:
                with open_committed_writer(options.home, options.stream, options.writer) as writer:
                    self._to.publish(writer, options.version, messages)
            elif _staged(messages):
                self._publish_as_new(messages)
        finally:
            self._to.clean(messages)

    def _publish_as_new(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        options = self._to.options
        with borrowed_writer(options.home, options.stream, self._to.folder) as writer:
            version = writer.position() + 1
            try:
                self._to.publish(writer, version, messages)
            except HeadraceError as error:
                # This write can't be repeated under its name. If it was decided, an error would lead to a second write.
                if writer.position() < version:
                    raise
                _log.warning(
                    "published, but couldn't notify readers: the next write to the stream does",
                    stream=str(self._to.stream),
                    reason=error.message,
                )

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._to.clean(messages)


def _as_written(dtype: pl.DataType, expected: pl.DataType | None) -> pl.DataType:
    """The type for Spark's column that the stream's column can be cast from: its zone, or the unit of its durations."""
    if isinstance(dtype, pl.Datetime) and isinstance(expected, pl.Datetime) and dtype.time_zone and expected.time_zone:
        return pl.Datetime(dtype.time_unit, expected.time_zone)
    return expected if isinstance(dtype, pl.Duration) and isinstance(expected, pl.Duration) else dtype


def _check_same(given: pl.Series, cast: pl.Series) -> None:
    lost = cast.cast(given.dtype).ne_missing(given).arg_true()
    if len(lost):
        raise DataError(
            f"column {given.name!r}: {given[lost[0]]!r} can't be written as {cast.dtype} without a change",
            hint="round the values before you write them, or write to a stream whose column has a finer unit",
        )


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """The messages of tasks that had rows; tasks that failed have none."""
    return [message for message in messages if isinstance(message, StagedRows) and message.name]
