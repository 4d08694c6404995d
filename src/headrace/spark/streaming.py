"""Streams as streaming DataFrames, and streaming queries into streams.

Reading: each micro-batch is a range of every partition. Spark keeps an offset of ours for each batch (JSON): for each
partition how far it was read, and the position of its reader. To know that position, the driver reads the frames of a
batch too, but not their rows. A batch begins where the last one ended, after a restart at Spark's offset, and only when
there are rows: an app at rest still writes watermarks and checkpoints.

Writing: each of Spark's batches is a version, and is written once however often it runs. Spark tells only ``commit``
the number of the batch, and calls it on a new object in a process of its own. After a crash it runs the last batch
again, with the same number: the writer's record says then that it is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.errors import DataError, DeploymentError
from headrace.core.ids import Offset
from headrace.protocol.record import ReaderPosition
from headrace.spark.reading import Part, ReadOptions, RowsOfParts, StreamSource, scan, split, warnings_shown
from headrace.spark.writing import Destination, StagedRows, WriteOptions
from headrace.streams.committed_writer import open_committed_writer
from headrace.streams.ranges import Place, RangeReader

# -- stream reading ----------------------------------------------------------------------------------
OFFSET_FORMAT = 1
_QUIET_BYTES_MAX = 1 << 20
"""A batch without rows begins after this many bytes, so that a restart needn't read them again."""
Json = dict[str, Any]


class _PlaceForm(msgspec.Struct, frozen=True, kw_only=True):
    end: Offset
    position: str


class _OffsetForm(msgspec.Struct, frozen=True, kw_only=True):
    """The durable form of an offset. Spark allows no lists in it, so a position is a text."""

    format: int
    stream: str
    committed: bool
    partitions: dict[str, _PlaceForm]


@dataclass(slots=True)
class _Scan:
    """How far the driver has read a partition for the next batch, which begins at ``start``."""

    start: Place
    reader: RangeReader[int]
    rows: int = 0


class StreamingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches. The driver's object lives as long as the query; executors get copies."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._source = StreamSource(options)
        self._rows = RowsOfParts(self._source, schema)
        self._scans: dict[int, _Scan] = {}
        self._last: list[Offset] | None = None

    @override
    def initialOffset(self) -> Json:
        offsets = self._source.resolve(self._source.options.start)
        return self._encode({number: Place.at(offset) for number, offset in enumerate(offsets)})

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._source.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._upcoming()

    @override
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        ends = self._upcoming() if self._last is None else self._last
        places = self._all_places(self._decode(start), len(ends))
        shares = _shares(limit, [end - places[number].end for number, end in enumerate(ends)])
        with warnings_shown():
            found = {number: self._advance(number, places[number], end, shares) for number, end in enumerate(ends)}
        return self._encode(places | found)

    @override
    def reportLatestOffset(self) -> Json:
        return {str(number): end for number, end in enumerate(self._upcoming())}

    @override
    def partitions(self, start: Json, end: Json) -> Sequence[Part]:
        ends = self._decode(end)
        places = self._all_places(self._decode(start), len(ends))
        with warnings_shown():
            return split(self._source, [Part(number, places[number], place.end) for number, place in ends.items()])

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _upcoming(self) -> list[Offset]:
        return [extent.upcoming for extent in self._source.extents()]

    def _all_places(self, known: Mapping[int, Place], partitions: int) -> dict[int, Place]:
        """The places, with partitions added since then, which are read from their beginning."""
        if len(known) >= partitions:
            return dict(known)
        extents = self._source.extents()
        return {n: known[n] if n in known else Place.at(extents[n].oldest) for n in range(partitions)}

    def _advance(self, partition: int, start: Place, end: Offset, shares: Sequence[int] | None) -> Place:
        state = self._scans.get(partition)
        if state is None or state.start != start:
            state = self._scans[partition] = _Scan(start, scan(self._source, partition, start))
        share = None if shares is None else shares[partition]
        if share is None or state.rows < share:
            with closing(state.reader.read(end)) as shown:
                for heights in shown:
                    state.rows += sum(heights)
                    if share is not None and state.rows >= share:
                        break
        place = state.reader.place
        if state.rows == 0 and place.end - start.end < _QUIET_BYTES_MAX:
            return start
        state.start, state.rows = place, 0
        return place

    def _encode(self, places: Mapping[int, Place]) -> Json:
        form = _OffsetForm(
            format=OFFSET_FORMAT,
            stream=str(self._source.stream),
            committed=self._source.options.committed,
            partitions={
                str(number): _PlaceForm(end=place.end, position=place.position.encode().decode())
                for number, place in sorted(places.items())
            },
        )
        found: Json = msgspec.to_builtins(form)
        return found

    def _decode(self, offset: Json) -> dict[int, Place]:
        if offset.get("format") != OFFSET_FORMAT:
            raise DataError(
                f"Spark's checkpoint has an offset of format {offset.get('format')!r}; this version of Headrace reads "
                f"{OFFSET_FORMAT}",
                hint="upgrade Headrace, or start the query with another checkpointLocation",
            )
        try:
            form = msgspec.convert(offset, _OffsetForm)
            places = {
                int(number): Place(each.end, ReaderPosition.decode(each.position.encode()))
                for number, each in form.partitions.items()
            }
        except (msgspec.ValidationError, ValueError) as error:
            raise DataError(f"Spark's checkpoint has an offset that can't be read: {error}: {offset!r:.200}") from error
        options = self._source.options
        if (form.stream, form.committed) != (str(self._source.stream), options.committed):
            raise DeploymentError(
                f"Spark's checkpoint is of {form.stream}, committed={form.committed}; "
                f"the query reads {self._source.stream}, committed={options.committed}",
                hint="use another checkpointLocation for another stream, or for another way to read it",
            )
        return places


def _shares(limit: ReadLimit, backlogs: Sequence[int]) -> list[int] | None:
    """How many rows the batch may have of each partition, by how far each is behind; None: all that there are."""
    if not isinstance(limit, ReadMaxRows):
        return None
    behind = [max(0, backlog) for backlog in backlogs]
    total = max(1, sum(behind))
    return [ceil(limit.max_rows * backlog / total) for backlog in behind]


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: a version for each batch, under the option ``writer`` or the name of the query."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._to = Destination(WriteOptions.of(options, streaming=True, overwrite=overwrite), schema)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return self._to.stage(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        options = self._to.options
        try:
            name = options.writer or writer_of(options.checkpoint_location or "")
            with open_committed_writer(options.home, options.stream, name) as writer:
                self._to.publish(writer, batchId, messages)
        finally:
            self._to.clean(messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._to.clean(messages)


def writer_of(location: str) -> str:
    """The name of the query with this ``checkpointLocation``: its id, or a hash if it isn't on this machine.

    So a query that starts over, because its checkpoint was deleted, is another one.
    """
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        path = Path(location if not parts.scheme else unquote(parts.path)) / "metadata"
        try:
            return f"query-{json.loads(path.read_bytes())['id']}"
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} doesn't name the query it belongs to: {error}",
                hint='name the query yourself: option("writer", ...)',
            ) from error
    return f"checkpoint-{blake2b(location.rstrip('/').encode(), digest_size=16).hexdigest()}"
