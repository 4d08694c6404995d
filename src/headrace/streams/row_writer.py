"""Writes batches of rows as user frames, each to the partition where it belongs.

A writer outside of an app is producer 0, generation 0, and no checkpoint governs its frames. Each call of ``write``
ends with a flush: when it returns, the rows are in the stream.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from headrace.core.frame import Header, Kind, encode
from headrace.core.ids import Offset, StreamId
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import encode_rows_into
from headrace.systems.base import StreamInfo, System

FRAME_ROWS = 1 << 16
_HEADER = encode(Header(Kind.USER))


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """A frame that was acknowledged."""

    partition: int
    rows: int
    bytes: int


class RowWriter:
    """Writes to one stream. By key, to one partition, or a frame to each partition in turn."""

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
        self._keys = list(keys)
        self._fixed = partition
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
            WrittenFrame(partition, part.height, self._send(partition, part))
            for batch in rows.iter_slices(FRAME_ROWS)
            for partition, part in self._routed(batch)
            if part.height
        ]
        self.flush()
        return frames

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

    def _send(self, partition: int, rows: pl.DataFrame) -> int:
        buffer = io.BytesIO()
        buffer.write(_HEADER)
        payload = encode_rows_into(buffer, rows)
        self._producer.send(self._stream, partition, payload)
        return len(payload)
