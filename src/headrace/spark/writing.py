"""A DataFrame into a stream: Spark's tasks stage frames, and the driver publishes all of them as one version, or none.

What a task writes is invisible until then, so tasks may fail, run twice, or be killed. Only the driver is a producer of
the protocol (see ``streams/committed_writer.py``). Spark pickles a writer for its tasks; its ``commit`` runs in a
process of the driver's machine.

A staged file has the frames of one Spark task, complete and on the disk before the driver publishes them::

    "HRST" | format uint8 | partitions uint32                           partitions: how many the stream has
    partition int32 | rows uint32 | bytes uint64 | crc32 uint32 | body  for each frame
    -1 int32 | frames uint32 | rows uint64 | 0 uint32                   the end

All numbers are big-endian. A task writes a file under a random name into the folder of the stream in the home, and
tells the driver the name. It begins with that of the job, whose files are all removed at its end: those of tasks that
Spark has killed, too. The next write removes forgotten files when they are a day old.
"""

from __future__ import annotations

import json
import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Self

import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.deployment import home_of
from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    HeadraceError,
    InfrastructureError,
    StorageError,
    StreamNotFoundError,
    UsageError,
)
from headrace.core.files import make_private_folder, open_private, sync_folder, writing
from headrace.core.ids import StreamId, check_id
from headrace.core.log import logger
from headrace.rows.given import concat_rows, given_rows
from headrace.rows.hashing import partition_of, split
from headrace.rows.ipc import encode_rows
from headrace.rows.schema import Schema
from headrace.spark.reading import check_known, whole
from headrace.spark.types import to_polars_columns
from headrace.streams.committed_writer import CommittedWriter, borrowed_writer, open_committed_writer, open_log
from headrace.streams.writer import FRAME_ROWS, key_for
from headrace.systems.base import StreamInfo
from headrace.systems.registry import LOG

# -- staging -----------------------------------------------------------------------------------------
STAGED_FORMAT = 1
ABANDONED_AFTER_S = 24 * 3600.0
_MARK = b"HRST"
_HEAD = struct.Struct(">4sBI")
_FRAME = struct.Struct(">iIQI")
_END = -1
_SUFFIX = ".staged"
_log = logger(__name__)


def staging_folder(home: Path, stream: str) -> Path:
    return home / "staged" / stream


class StagedFile:
    """A staged file that is being written; if a block with it raises, it is removed. ``job`` has no hyphen."""

    def __init__(self, folder: Path, partitions: int, job: str) -> None:
        self.name = f"{job}-{uuid.uuid4().hex}{_SUFFIX}"
        self._path = folder / self.name
        self._frames = self.rows = 0
        with writing(self._path):
            make_private_folder(folder)
            self._file: BinaryIO = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        self._write(_HEAD.pack(_MARK, STAGED_FORMAT, partitions))

    def add(self, partition: int, rows: int, body: bytes) -> None:
        self._write(_FRAME.pack(partition, rows, len(body), zlib.crc32(body)), body)
        self._frames += 1
        self.rows += rows

    def finish(self) -> None:
        """Complete the file: it is on the disk when this returns."""
        self._write(_FRAME.pack(_END, self._frames, self.rows, 0))
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._path.parent)

    def _write(self, *parts: bytes) -> None:
        with writing(self._path):
            self._file.writelines(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):  # closing flushes, and the disk may be full
                self._file.close()
            self._path.unlink(missing_ok=True)


def read_staged(folder: Path, name: str, rows: int, partitions: int) -> Iterator[tuple[int, bytes]]:
    """Yield each frame's partition and body.

    Raises ``InfrastructureError`` if the file isn't there, ``CorruptLogError`` if it isn't as it was written, and
    ``DataError`` if it was written for a stream of another partition count. ``rows`` is what its task has written.
    """
    path = folder / name
    try:
        with path.open("rb") as file:
            yield from _frames(file, path, rows, partitions)
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"{path} is missing, though a Spark task has written it",
            hint="let driver and executors share the folder under this path, and publish within a day of writing; "
            "then run the job again",
        ) from error
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}") from error


def _frames(file: BinaryIO, path: Path, rows: int, partitions: int) -> Iterator[tuple[int, bytes]]:
    mark, number, of = _HEAD.unpack(_exactly(file, _HEAD.size, path))
    if mark != _MARK or number != STAGED_FORMAT:
        raise DataError(
            f"{path} is not a staged file of format {STAGED_FORMAT} ({mark!r}, {number})",
            hint="install the same version of Headrace for driver and executors",
        )
    if of != partitions:
        raise DataError(
            f"{path} was written for {of} partitions, but the stream now has {partitions}",
            hint="run the job again: partitions were added while it ran",
        )
    frames = seen = 0
    while True:
        partition, count, size, check = _FRAME.unpack(_exactly(file, _FRAME.size, path))
        if partition == _END:
            break
        body = _exactly(file, size, path)
        if zlib.crc32(body) != check:
            raise _damaged(path, f"frame {frames} fails its checksum")
        frames, seen = frames + 1, seen + count
        yield partition, body
    if not (frames, seen) == (count, size) == (count, rows):
        raise _damaged(path, f"it has {frames} frames and {seen} rows, and should have {count} and {rows}")


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise _damaged(path, "it ends too early")
    return data


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("can't remove a staged file", path=str(path), reason=str(error))


def _damaged(path: Path, what: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path}: {what}", hint="run the job again: the file was damaged after a Spark task wrote it"
    )


WRITING: tuple[str, ...] = ("home", "topic", "path", "key", "partitions", "writer", "version", "checkpointLocation")
"""The options of writers. ``path`` is what ``save`` or ``start`` is given."""
_SPARKS_OWN = ("queryName",)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer is asked for.

    ``partitions``: create the stream with this many if it doesn't exist. ``version``: of a batch write with a name.
    """

    home: Path
    stream: str
    keys: tuple[str, ...]
    partitions: int | None
    writer: str | None
    version: int | None
    checkpoint_location: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
        """Read the options. Raises ``UsageError`` for an unknown one, and for a value that makes no sense."""
        given = {name.lower(): value for name, value in options.items()}
        check_known(given, (*WRITING, *_SPARKS_OWN), WRITING)
        if overwrite:
            raise UsageError(
                "a stream can't be overwritten: rows are only appended",
                hint='write outputMode("append") or "update"' if streaming else 'write mode("append")',
            )
        writer, version = given.get("writer"), given.get("version")
        location = given.get("checkpointlocation")
        if streaming:
            _check_streaming(writer, version, location)
        else:
            _check_batch(writer, version)
        if writer is not None:
            _checked_id("writer", writer)
        return cls(
            home=home_of(given.get("home")).absolute(),
            stream=_stream(given),
            keys=_columns(given.get("key")),
            partitions=whole("partitions", given.get("partitions"), 1),
            writer=writer,
            version=whole("version", version, 0),
            checkpoint_location=location,
        )


def _check_streaming(writer: str | None, version: str | None, location: str | None) -> None:
    if version is not None:
        raise UsageError(
            "option version can't be used with df.writeStream: versions are the numbers of Spark's batches",
            hint="leave out version",
        )
    if writer is None and not location:
        raise UsageError(
            "a streaming query needs a name that survives restarts, because batches could be repeated otherwise",
            hint='give the option checkpointLocation to the query itself, or a name: option("writer", "orders-by-day")',
        )


def _check_batch(writer: str | None, version: str | None) -> None:
    if (writer is None) != (version is None):
        missing = "version" if version is None else "writer"
        raise UsageError(
            f"options writer and version belong together, and {missing} is missing",
            hint="give both: writer names a series of writes, and version numbers them, such as 20260131. A version is "
            "written once, however often the job runs. Or leave out both: each write is then a new one",
        )


def _stream(given: Mapping[str, str]) -> str:
    names = {name for option in ("path", "topic") if (name := given.get(option))}
    if not names:
        raise UsageError(
            "no stream is named", hint='name one: .save("orders"), .start("orders"), or .option("topic", "orders")'
        )
    if len(names) > 1:
        raise UsageError(f"one stream can be written at a time, not {', '.join(sorted(names))}")
    return _checked_id("stream", names.pop())


def _columns(text: str | None) -> tuple[str, ...]:
    """Read ``member``, ``member,day``, or a list as JSON, for names with a comma."""
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except json.JSONDecodeError:
            names = []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"option key must be one or several columns, not {text!r}",
            hint='write "member", "member,day" or \'["a,b"]\'',
        )
    return tuple(names)


def _checked_id(what: str, text: str) -> str:
    try:
        return check_id(what, text)
    except DeclarationError as error:
        raise UsageError(error.message, hint=error.hint) from error


# -- writing -----------------------------------------------------------------------------------------
FRAME_BYTES = 32 << 20
"""A task collects rows up to this size, or to ``FRAME_ROWS``, and makes a frame for each partition of them."""


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
        rows = self._conformed(
            given_rows(pl.DataFrame(schema=self._given), self._schema, str(self.stream), self._info.added)
        )
        if self.options.keys:
            try:
                partition_of(rows, self.options.keys, self._info.partitions)
            except DeclarationError as error:
                raise UsageError(f"option key: {error.message}", hint=error.hint) from error

    def _there(self, columns: dict[str, pl.DataType]) -> StreamInfo:
        """The stream, which is created if it doesn't exist and the options give a partition count."""
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

    def _conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        if self._schema is None:
            return rows
        try:
            fitted, mismatch = self._schema.conform(rows, self._info.added)
        except DataError as error:
            raise DataError(f"{self.stream}: {error.message}", hint=error.hint) from error
        if mismatch is not None:
            raise mismatch.error()
        return fitted

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedRows:
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

    def frames(self, messages: Sequence[WriterCommitMessage | None]) -> Iterator[tuple[int, bytes]]:
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
        """Remove abandoned files, and those of the job, which for a streaming query only ``messages`` name."""
        for job in {self._job, *(staged.name.partition("-")[0] for staged in _staged(messages))}:
            for path in self.folder.glob(f"{job}-*{_SUFFIX}"):
                _remove(path)
        oldest = time.time() - ABANDONED_AFTER_S
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    _remove(path)


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
    return [message for message in messages if isinstance(message, StagedRows) and message.name]
