"""Writes batches of rows as user frames, each to the partition where it belongs.

A writer outside of an app is producer 0, generation 0, and no checkpoint governs its frames. Each call of ``write``
ends with a flush: when it returns, the rows are in the stream.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.core.errors import UsageError
from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import Offset, StreamId
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import encode_rows_into
from headrace.streams.marks import WriteMark
from headrace.systems.base import StreamInfo, System
from headrace.systems.shape import partitioned

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
    """Return the key by which a writer chooses partitions: the stream's own, if one is recorded.

    Raises ``UsageError`` for another one, and for a fixed partition of such a stream.
    """
    if not info.key or tuple(keys) == info.key:
        return tuple(keys)
    if keys or (partition is not None and info.partitions > 1):
        other = f"the key {', '.join(keys)}" if keys else f"partition {partition}"
        raise UsageError(
            f"{stream} is {partitioned(info.key)}, and this writer has {other}: readers would miss rows of a key",
            hint="leave it out: a row then goes where its key belongs",
        )
    return info.key


class RowWriter:
    """Writes to one stream. By key, to one partition, or a frame to each partition in turn.

    A stream with a recorded key is written by that key.
    """

    def __init__(
        self,
        system: System,
        stream: StreamId,
        info: StreamInfo,
        keys: Sequence[str] = (),
        partition: int | None = None,
    ) -> None:
        self._stream = stream.name
        self._partitions = info.partitions
        self._keys = key_for(info, stream, keys, partition)
        self._fixed = partition
        self._rows_choose = bool(self._keys) or partition is not None
        """Whether a row always goes to the same partition."""
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

        ``numbers``, ascending, are those of the input rows. Where rows don't choose their partition, each frame is in
        the stream before the next one is sent, so what is there is always the first part of the input.
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
        """The rows that aren't in the stream yet, by partition."""
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
