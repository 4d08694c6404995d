"""Streams and tables of running apps as DataFrames.

What a batch read covers is settled when it is planned, and each Spark task reads a range of one partition, so a task
that Spark starts again reads the same rows. Only that runs on executors.

Of a table, each Spark task asks one task of the app for its rows, page by page, from committed state (see
``run.tables``). The rows of one page are of one commit; a later page may be of a later one.

Spark passes options as text, with names in lower case. They are named like those of Spark's Kafka source.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructField, StructType
from typing_extensions import override

from headrace.coordinator.messages import LIMIT_MAX, LIMIT_MS_MAX
from headrace.core.deployment import home_of
from headrace.core.errors import DataError, DeclarationError, FrameError, HeadraceError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset, StreamId
from headrace.core.log import OFF, LogSettings, current_settings, logging_to
from headrace.life.metadata import existing_metadata
from headrace.rows.given import concat_rows
from headrace.rows.ipc import decode_runs
from headrace.rows.schema import Schema, nulls
from headrace.run.table_routing import TableColumns
from headrace.run.tables import TableReader, find_table
from headrace.spark.types import as_spark_has_it, to_polars_columns, to_spark_schema
from headrace.streams.committed_writer import VERSION_MAX, open_log
from headrace.streams.ranges import Place, RangeReader
from headrace.streams.reader import Frame
from headrace.systems.base import Extent, StreamInfo, System
from headrace.systems.registry import LOG, require_stream

T = TypeVar("T")

# -- read options ------------------------------------------------------------------------------------
OLDEST = -2
LATEST = -1
"""What these numbers mean as offsets, as in Spark's Kafka source."""

READING: tuple[str, ...] = (
    "home",
    "subscribe",
    "path",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "committed",
    "includePosition",
)
"""The options of readers. ``path`` is what ``load`` is given."""
_WORDS = {"earliest": OLDEST, "latest": LATEST}
_ONLY_BATCH = ("endingOffsets", "endingTimestamp")
_ONLY_STREAM = ("maxOffsetsPerTrigger",)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: at a time (ms since the epoch), or at an offset for each partition.

    ``everywhere`` is the offset of partitions that ``offsets`` doesn't name; None: it has to name all of them.
    """

    option: str
    everywhere: Offset | None = None
    offsets: Mapping[int, Offset] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader is asked for."""

    home: Path
    stream: str
    start: Bound
    end: Bound
    rows_per_trigger: int | None
    partitions_min: int | None
    fails_on_loss: bool
    committed: bool
    with_position: bool

    @classmethod
    def of(cls, options: Mapping[str, str], home: str | None = None, *, streaming: bool | None) -> ReadOptions:
        """Read the options. ``home`` is the folder of the log if they name none; ``streaming`` None: not known yet.

        Raises ``UsageError`` for an unknown option, and for a value that makes no sense.
        """
        given = _Given(options, streaming=streaming)
        return cls(
            home=home_of(given.text("home") or home).absolute(),
            stream=given.stream(),
            start=given.bound("starting", LATEST if streaming else OLDEST),
            end=given.bound("ending", LATEST),
            rows_per_trigger=given.count("maxOffsetsPerTrigger"),
            partitions_min=given.count("minPartitions"),
            fails_on_loss=given.flag("failOnDataLoss", default=True),
            committed=given.flag("committed", default=True),
            with_position=given.flag("includePosition", default=False),
        )


class _Given:
    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        if "paths" in self._values:
            raise UsageError("load got several paths", hint="read each stream separately, and union them")
        check_known(self._values, READING, (*READING, "table"))
        if streaming is None:
            return
        where, elsewhere = ("readStream", _ONLY_BATCH) if streaming else ("read", _ONLY_STREAM)
        for name in elsewhere:
            if name.lower() in self._values:
                raise UsageError(
                    f"option {name} can't be used with spark.{where}",
                    hint="a streaming query ends with its trigger: trigger(availableNow=True) reads the present rows"
                    if streaming
                    else "endingOffsets limits what a batch reads",
                )

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def stream(self) -> str:
        names = [name for option in ("path", "subscribe") if (name := self.text(option))]
        if not names:
            raise UsageError("no stream is named", hint='name one: .load("orders"), or .option("subscribe", "orders")')
        if len(set(names)) > 1 or "," in names[0]:
            raise UsageError(
                f"one stream can be read at a time, not {', '.join(names)}",
                hint="read each stream separately, and union them",
            )
        return names[0]

    def count(self, name: str) -> int | None:
        return whole(name, self.text(name), 1)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise UsageError(f"option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def bound(self, edge: str, default: Offset) -> Bound:
        by_offset, by_time = f"{edge}Offsets", f"{edge}Timestamp"
        offsets, time_text = self.text(by_offset), self.text(by_time)
        if offsets is not None and time_text is not None:
            raise UsageError(f"options {by_offset} and {by_time} contradict each other", hint="leave one of them out")
        if time_text is not None:
            if not time_text.strip().isdigit():
                raise UsageError(f"option {by_time} must be a number of ms since the epoch, not {time_text!r}")
            return Bound(by_time, time_ms=int(time_text))
        if offsets is None:
            return Bound(by_offset, everywhere=default)
        if offsets.lower() in _WORDS:
            return Bound(by_offset, everywhere=_WORDS[offsets.lower()])
        return Bound(by_offset, offsets=_by_partition(by_offset, offsets, self.stream()))


def _by_partition(option: str, text: str, stream: str) -> dict[int, Offset]:
    """Read ``{"0": 4711, "1": -2}``, or the same as Spark's Kafka source writes it: ``{"orders": {"0": 4711}}``."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict) and list(found) == [stream] and isinstance(found[stream], dict):
        found = found[stream]
    entries = found.items() if isinstance(found, dict) else ()
    if entries and all(part.isdigit() and type(offset) is int and offset >= OLDEST for part, offset in entries):
        return {int(partition): offset for partition, offset in entries}
    raise UsageError(
        f"option {option} must be earliest, latest or an offset for each partition, not {text!r:.200}",
        hint=f'write JSON: {{"0": 4711, "1": {OLDEST}}}; {OLDEST} is the oldest offset and {LATEST} the end',
    )


def check_known(given: Iterable[str], known: Sequence[str], listed: Sequence[str]) -> None:
    """Raise ``UsageError`` for an option, in lower case, that isn't ``known``; ``listed`` are those to suggest."""
    names = {name.lower(): name for name in known}
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {names[close[0]]}? " if close else ""
            raise UsageError(f"option {name!r} is unknown", hint=f"{meant}known options: {', '.join(listed)}")


def whole(name: str, text: str | None, lowest: int) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or not lowest <= int(text) <= VERSION_MAX:
        raise UsageError(f"option {name} must be a whole number of at least {lowest}, not {text!r}")
    return int(text)


ROWS_PER_BATCH = 32_768
"""The most rows of one Arrow batch. Spark holds a few batches of each task at a time."""


class ArrowRows:
    """Arrow batches of a schema of Spark: the columns that are asked for, with the same values. Can be pickled."""

    def __init__(
        self, schema: StructType, declared: Mapping[str, pl.DataType] | None, where: str, added: Sequence[str] = ()
    ) -> None:
        """``declared`` are the columns that there are (None: not known), ``added`` those that the caller adds.

        Raises ``DeclarationError`` for a column that isn't there. ``where`` begins the message.
        """
        self.columns = to_polars_columns(schema)
        self._target: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        own = {name: dtype for name, dtype in self.columns.items() if name not in added}
        self._wanted = Schema(own) if own else None
        if declared is not None:
            Schema(declared).require(own, where)

    def conformed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the columns that are asked for, in their order; null where one is missing.

        Raises ``DataError`` for a value that doesn't fit its column.
        """
        if self._wanted is None:
            return pl.DataFrame()
        names = set(rows.columns)
        found = [
            as_spark_has_it(rows.get_column(name)) if name in names else nulls(name, dtype, rows.height)
            for name, dtype in self._wanted.columns.items()
        ]
        fitted, mismatch = self._wanted.conform(pl.DataFrame(found))
        if mismatch is not None:
            raise DataError(
                mismatch.error().message, hint="give the column its own type in .schema(...), and cast it in Spark"
            )
        return fitted

    def table(self, rows: Sequence[pl.DataFrame]) -> pa.Table:
        try:
            return concat_rows(rows).to_arrow().cast(self._target)
        except (pa.ArrowException, ValueError) as error:
            raise DataError(f"the rows don't fit the schema: {error}", hint="check NOT NULL in the schema") from error

    @staticmethod
    def batches(table: pa.Table) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = table.to_batches(max_chunksize=ROWS_PER_BATCH)
        return found


# -- reading -----------------------------------------------------------------------------------------
_BYTES_PER_BATCH = 2 << 20
"""Frames are decoded together, about so many bytes of them: one by one, small ones take three times as long."""
PARTITION, OFFSET = "_partition", "_offset"
POSITION_FIELDS = (StructField(PARTITION, IntegerType()), StructField(OFFSET, LongType()))
"""The columns that ``includePosition`` adds. All rows of a frame have its offset."""


class Part(InputPartition):
    """What one Spark task reads: a range of one partition."""

    def __init__(self, partition: int, start: Place, end: Offset) -> None:
        super().__init__(partition)
        self.partition, self.start, self.end = partition, start, end


class StreamSource:
    """A stream of a home as a reader is asked for it. Can be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.stream = StreamId(LOG, options.stream)
        self.info: StreamInfo = require_stream(self.open(), self.stream, options.home)

    def open(self) -> System:
        return open_log(self.options.home)

    def extents(self) -> Sequence[Extent]:
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
        if taken := [name for name in (PARTITION, OFFSET) if name in self.info.columns]:
            raise UsageError(
                f"{self.stream} already has a column {taken[0]!r}, which includePosition would add",
                hint='leave out the option includePosition, or name the columns you want: .schema("...")',
            )
        return StructType([*schema.fields, *POSITION_FIELDS])

    def resolve(self, bound: Bound) -> list[Offset]:
        """The offset in each partition. Raises ``UsageError`` for an offset that can't be one."""
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
        bounds = list(enumerate(zip(starts, ends, strict=True)))
        for number, (start, end) in bounds:
            if start > end and options.start.everywhere is None:
                raise UsageError(
                    f"{SSP(self._source.stream, number)}: {options.start.option} is at offset {start}, after "
                    f"{options.end.option} at {end}",
                    hint="choose an end after the start",
                )
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
        reader = _reader(self._source, part.partition, part.start, lambda frame: frame)
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
    return _reader(source, partition, start, _height)


def _reader(source: StreamSource, partition: int, start: Place, take: Callable[[Frame], T]) -> RangeReader[T]:
    ssp, options = SSP(source.stream, partition), source.options
    return RangeReader(source.open(), ssp, start, take, committed=options.committed, lossy=not options.fails_on_loss)


def warnings_shown() -> AbstractContextManager[None]:
    """Python workers of Spark have no log of their own: what Headrace warns of goes to their stderr."""
    return logging_to(LogSettings("warning")) if current_settings() == OFF else nullcontext()


def _height(frame: Frame) -> int:
    try:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(pa.BufferReader(frame.body)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FrameError(f"{frame.where}: the body is not an Arrow batch: {error}") from error


OPTION = "table"
_OPTIONS = (OPTION, "home")


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of an app that runs from a home. Can be pickled."""

    home: Path
    app: str
    table: str
    columns: Mapping[str, pl.DataType]
    tasks: tuple[int | None, ...]
    """What to ask one by one: the tasks of the table by their numbers, or None for any one that has all rows."""

    @classmethod
    def of(cls, options: Mapping[str, str], home: str | None = None) -> TableSource:
        """Find the table that the options name. ``home`` is the folder of the app if they name none."""
        for name in options:
            if name.lower() not in _OPTIONS:
                raise UsageError(
                    f"option {name!r} can't be used with {OPTION}",
                    hint=f"a table has the options {', '.join(_OPTIONS)}",
                )
        app, slash, table = options[OPTION].partition("/")
        if not (app and slash and table):
            raise UsageError(f"option {OPTION} must be app/table, not {options[OPTION]!r}", hint='write "shop/prices"')
        there = home_of(options.get("home") or home).absolute()
        with existing_metadata(there, None) as store:
            facts = find_table(store, app, table)[1]
        tasks = (None,) if facts.kind == "global" else tuple(range(len(facts.tasks)))
        return cls(there, app, table, TableColumns(facts).schema, tasks)

    def schema(self) -> StructType:
        return to_spark_schema(self.columns)

    def pages(self, task: int | None) -> Iterator[pl.DataFrame]:
        """The rows of a task, of all rows for None."""
        with TableReader(self.app, self.table, home=self.home, timeout=f"{LIMIT_MS_MAX}ms") as reader:
            yield reader.scan(limit=LIMIT_MAX, partition=task)
            while reader.after is not None:
                yield reader.scan(limit=LIMIT_MAX, partition=task, after=reader.after)


class TableBatchReader(DataSourceReader):
    """Reads a table as of the moment when each of its tasks is asked."""

    def __init__(self, source: TableSource, schema: StructType) -> None:
        self._source = source
        self._rows = ArrowRows(schema, source.columns, f"table {source.table!r} of app {source.app!r}")

    @override
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._source.tasks]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for page in self._source.pages(partition.value):
            if page.height:
                yield from self._rows.batches(self._rows.table([self._rows.conformed(page)]))
