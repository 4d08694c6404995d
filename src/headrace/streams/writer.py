"""Streams made and filled from Python.

A writer outside of an app is producer 0, generation 0, and no checkpoint governs its frames: they are final as soon as
they are written. The frames of a write that can be continued have a mark: their producer is a hash of the write's id,
and their generation is the number of the input row after those that the frame has. A repeated write reads both from the
stream, so it knows what has been written even if no process was there to be told: rows below a partition's number are
in that partition, or belong elsewhere. The log appends whole frames, those of one partition in order.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Self

import polars as pl

from headrace.api.descriptors import SystemLike
from headrace.core.deployment import home_of
from headrace.core.errors import StorageError, UsageError
from headrace.core.frame import UNVERSIONED, Header, Kind, encode
from headrace.core.ids import SSP, Offset, StreamId, check_id
from headrace.rows.given import Rows, given_rows
from headrace.rows.hashing import partition_of, split
from headrace.rows.ipc import encode_rows_into
from headrace.rows.schema import Schema
from headrace.streams.committed_writer import opened
from headrace.streams.reader import FrameReader, OpenGate, wait_for_more
from headrace.systems.base import Edge, StreamInfo, System
from headrace.systems.registry import require_stream
from headrace.systems.shape import partitioned

_NUMBER_MAX = 2**31 - 1


class WriteMark:
    """The mark in the frames of one write, and the progress of earlier attempts in each partition."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        digest = blake2b(id_.encode(), digest_size=4).digest()
        self._producer = int.from_bytes(digest, "big") % _NUMBER_MAX + 1  # 0 is a write without an id
        self._reached: dict[int, int] = {}

    def find(self, system: System, stream: StreamId, info: StreamInfo) -> None:
        """Read the progress of this write from the stream. Raises ``UsageError`` if it can't be determined."""
        reader = FrameReader(system, stream, OpenGate(), wait_for_more)
        for frames in reader.read({SSP(stream, number): Edge.OLDEST for number in range(info.partitions)}):
            for frame in frames:
                if frame.header.producer == self._producer and frame.header.version == UNVERSIONED:
                    reached = max(frame.header.generation, self.reached(frame.ssp.partition))
                    self._reached[frame.ssp.partition] = reached
        if self.furthest == _NUMBER_MAX:
            what = f"write {self.id!r} to {stream} has more than {_NUMBER_MAX - 1:,} rows, and can't be continued"
            raise UsageError(what, hint="write the rest of its input under another id")

    @property
    def furthest(self) -> int:
        """The highest number that any partition has reached."""
        return max(self._reached.values(), default=0)

    def reached(self, partition: int) -> int:
        """The number of the first row that isn't in this partition yet, even if it belongs there."""
        return self._reached.get(partition, 0)

    def header(self, row_after: int) -> bytes:
        """Return the header of a frame; ``row_after`` is the number of the input row after those that it has."""
        return encode(Header(Kind.USER, self._producer, min(row_after, _NUMBER_MAX)))


FRAME_ROWS = 1 << 16
_HEADER = encode(Header(Kind.USER))
_NUMBER = "__number"


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """A frame that was acknowledged."""

    partition: int
    rows: int
    bytes: int


def key_for(info: StreamInfo, stream: StreamId, keys: Sequence[str], partition: int | None = None) -> tuple[str, ...]:
    """Return the stream's recorded key or the given one. Raises ``UsageError`` if a writer can't choose so."""
    if not info.key or tuple(keys) == info.key:
        return tuple(keys)
    if keys or (partition is not None and info.partitions > 1):
        other = f"the key {', '.join(keys)}" if keys else f"partition {partition}"
        what = f"{stream} is {partitioned(info.key)}, and this writer has {other}: readers would miss rows of a key"
        raise UsageError(what, hint="leave it out: a row then goes where its key belongs")
    return info.key


class RowWriter:
    """Writes to one stream: by its recorded key or another, to one partition, or a frame to each one in turn."""

    def __init__(
        self, system: System, stream: StreamId, info: StreamInfo, keys: Sequence[str] = (), partition: int | None = None
    ) -> None:
        self._stream = stream.name
        self._partitions = info.partitions
        self._keys = key_for(info, stream, keys, partition)
        self._fixed = partition
        self._rows_choose = bool(self._keys) or partition is not None  # whether a row always goes to the same partition
        self._producer = system.producer()
        # Begin with the emptiest, so that many short-lived writers don't all write to the same partition.
        extents = system.admin().extents(self._stream)
        filled = [extent.upcoming - extent.oldest for extent in extents]
        self._turn = filled.index(min(filled))
        self.ends: dict[int, Offset] = {}
        """For each partition that the last ``write`` or ``flush`` wrote, the offset after its rows."""

    def write(self, rows: pl.DataFrame) -> list[WrittenFrame]:
        """Append the rows."""
        frames = [
            WrittenFrame(partition, part.height, self._send(partition, part, _HEADER))
            for batch in rows.iter_slices(FRAME_ROWS)
            for partition, part in self._routed(batch)
            if part.height
        ]
        self.flush()
        return frames

    def write_numbered(self, rows: pl.DataFrame, numbers: pl.Series, mark: WriteMark) -> list[WrittenFrame]:
        """Append the rows of a write that can be continued, without those that are in the stream already.

        ``numbers`` ascend. Where rows don't choose their partition, each frame is in the stream before the next one is
        sent, so what is there is always the first part of the input.
        """
        frames: list[WrittenFrame] = []
        for start in range(0, rows.height, FRAME_ROWS):
            batch, of_batch = rows.slice(start, FRAME_ROWS), numbers.slice(start, FRAME_ROWS)
            header = mark.header(int(of_batch[-1]) + 1)
            routed = self._routed(batch) if of_batch[0] >= mark.furthest else self._missing(batch, of_batch, mark)
            frames += [
                WrittenFrame(partition, part.height, self._send(partition, part, header))
                for partition, part in routed
                if part.height
            ]
            if not self._rows_choose:
                self.flush()
        self.flush()
        return frames

    def _missing(self, batch: pl.DataFrame, numbers: pl.Series, mark: WriteMark) -> list[tuple[int, pl.DataFrame]]:
        if not self._rows_choose:
            return self._routed(batch.filter(numbers >= mark.furthest))
        routed = self._routed(batch.with_columns(numbers.alias(_NUMBER)))
        return [(p, part.filter(pl.col(_NUMBER) >= mark.reached(p)).drop(_NUMBER)) for p, part in routed]

    def flush(self) -> None:
        """Wait until everything is acknowledged: what a ``write`` that failed has left, too."""
        self.ends = {partition: offset for (_, partition), offset in self._producer.flush().items()}

    def close(self) -> None:
        """Release the stream."""
        self._producer.close()

    def _routed(self, batch: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
        if self._fixed is not None:
            return [(self._fixed, batch)]
        if self._keys:
            return split(batch, partition_of(batch, self._keys, self._partitions), self._partitions)
        partition, self._turn = self._turn, (self._turn + 1) % self._partitions
        return [(partition, batch)]

    def _send(self, partition: int, rows: pl.DataFrame, header: bytes) -> int:
        buffer = io.BytesIO()
        buffer.write(header)
        payload = encode_rows_into(buffer, rows)
        self._producer.send(self._stream, partition, payload)
        return len(payload)


def create_stream(
    name: str,
    partitions: int,
    schema: object = None,
    *,
    key: str | Sequence[str] = (),
    home: str | Path | None = None,
    system: SystemLike | None = None,
) -> None:
    """Create a stream. Succeeds if one of the same shape exists.

    Parameters
    ----------
    name
        The stream.
    partitions
        How many partitions it has. The count can't be changed later.
    schema
        Its columns: a dict of Polars types, or a dataclass. By default it takes any.
    key
        One column or several, by which all writers choose the partition of a row. Apps that read the stream can keep
        state by this key without ``partition_by``. By default each writer may have a key of its own.
    home
        The folder of the log. By default the deployment's (see the page "Settings"), or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Raises
    ------
    StreamExistsError
        If a stream of this name has another number of partitions, other columns or another key.

    Examples
    --------
    >>> hr.streams.create_stream("orders", 2, {"member": pl.String, "euros": pl.Float64})
    >>> hr.streams.create_stream("orders-by-member", 2, {"member": pl.String, "euros": pl.Float64}, key="member")
    """
    check_id("stream", name)
    columns = None if schema is None else dict(Schema.of(schema).columns)
    _, keeper = opened(system, home_of(home))
    keeper.admin().create(name, partitions, columns, (key,) if isinstance(key, str) else tuple(key))


def add_columns(name: str, schema: object, *, home: str | Path | None = None, system: SystemLike | None = None) -> None:
    """Add columns to a stream. Succeeds if they exist already.

    In rows that were written before, and in rows of writers that don't know the column, it is null. A column can't be
    removed, and its type can't be changed.

    Parameters
    ----------
    name
        The stream.
    schema
        The columns to add: a dict of Polars types, or a dataclass. The stream may have some of them already.
    home
        The folder of the log. By default the deployment's (see the page "Settings"), or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Raises
    ------
    StreamExistsError
        If the stream has a column of that name and another type.

    Examples
    --------
    >>> hr.streams.create_stream("orders", 2, {"member": pl.String, "euros": pl.Float64})
    >>> hr.streams.add_columns("orders", {"voucher": pl.String})
    >>> hr.streams.read_stream("orders").columns
    ['member', 'euros', 'voucher']
    """
    home = home_of(home)
    system_name, keeper = opened(system, home)
    require_stream(keeper, StreamId(system_name, name), home)
    keeper.admin().add_columns(name, dict(Schema.of(schema).columns))


class StreamWriter:
    """Writes rows to one stream. When ``write`` returns, the rows are in the log.

    Parameters
    ----------
    name
        The stream.
    key
        One column or several: rows of one key go to one partition. By default the key with which the stream was
        created; without one, batches go to the partitions in turn.
    home
        The folder of the log. By default the deployment's (see the page "Settings"), or ``.headrace``.
    system
        The system that has the stream, if not that log, such as ``hr.io.kafka_log(...)``.

    Examples
    --------
    >>> with hr.streams.StreamWriter("orders", key="member") as writer:
    ...     ends = writer.write([{"member": "ann", "euros": 5.0}, {"member": "ann", "euros": 2.0}])
    >>> len(ends)  # one key, so one partition
    1
    """

    def __init__(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        home: str | Path | None = None,
        system: SystemLike | None = None,
    ) -> None:
        home = home_of(home)
        system_name, keeper = opened(system, home)
        stream = StreamId(system_name, name)
        info = require_stream(keeper, stream, home)
        self._name = name
        self._admin = keeper.admin()
        self._schema = Schema(info.columns) if info.columns is not None else None
        self._added = info.added
        keys = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else [key]
        unknown = [name for name in keys if not isinstance(name, str) or (info.columns and name not in info.columns)]
        if unknown:
            there = ", ".join(info.columns or {}) or "columns with names"
            raise UsageError(f"key={key!r}: there is no column {unknown[0]!r} in {stream}", hint=f"it has {there}")
        self._closed = False
        self._writer = RowWriter(keeper, stream, info, keys)

    def write(self, rows: Rows) -> dict[int, Offset]:
        """Append rows.

        If the disk is full, the rows are kept in memory, and the next ``write``, or ``close``, writes them first.

        Parameters
        ----------
        rows
            A DataFrame (of Polars, pandas, Spark or Arrow), dicts, or instances of a dataclass. Columns that were added
            to the stream may be missing.

        Returns
        -------
        dict
            For each partition written, the offset after the rows.

        Raises
        ------
        DataError
            If a row doesn't fit the stream's schema, or has a column that the stream doesn't have. None of the rows is
            written then.
        """
        if self._closed:
            raise UsageError(f"this writer of {self._name!r} is closed", hint="open another one")
        table = given_rows(rows, self._schema, self._name, self._added)
        if self._schema is not None:
            table, mismatch = self._schema.conform(table, self._added)
            if mismatch is not None:
                raise mismatch.error()
        if not table.height:
            return {}
        try:
            self._writer.write(table)
        except StorageError as error:
            error.then("then continue: these rows are kept, and the next write, or close, writes them first")
            raise
        return self._writer.ends

    def seal(self) -> None:
        """End the stream: nothing can be written to it any more, and its readers end with its last row."""
        self._writer.flush()
        self._admin.seal(self._name)

    def close(self) -> None:
        """Release the writer. The stream stays open for others."""
        self._closed = True
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
