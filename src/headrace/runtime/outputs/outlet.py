"""Where results leave a task: rows become stamped frames in the partitions of their keys.

Frames are handed to the container's producers at once and reach the system when the run loop flushes, after
every turn, so that latency stays low. Order within a partition is the order of the calls. Control messages take the
same way, so they never overtake data. Rows for a foreign system have no partition and no frame: they wait in an
outbox for their version's commit.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from headrace.api.specs import Role
from headrace.core.errors import DataError
from headrace.core.frame import ControlMessage, Header, Kind, encode, encode_control, kind_of
from headrace.core.ids import StreamId
from headrace.plan.model import StreamPlan
from headrace.runtime.connections import Connections
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.outputs.publisher import Publisher
from headrace.serdes.hashing import partition_of, split
from headrace.serdes.ipc import encode_rows_into

FRAME_ROWS_MAX = 1 << 16
"""The largest frame. A reader takes whole frames, so its memory is bounded only if they are."""

Stamp = Callable[[StreamId, int, Kind], Header]
"""Gives the header of the next frame to a partition."""


class Outlet:
    """The port of one task, for one attempt. ``number`` is the task's number in its stage."""

    def __init__(
        self,
        outputs: Mapping[str, StreamPlan],
        number: int,
        connections: Connections,
        publisher: Publisher,
        stamp: Stamp,
        metrics: TaskMetrics,
    ) -> None:
        self._outputs = outputs
        self._number = number
        self._connections = connections
        self._publisher = publisher
        self._stamp = stamp
        self._metrics = metrics
        self.written: set[str] = set()
        """The streams to which rows have been written. Announcing that a stream is idle removes it."""
        self.before_rows: dict[str, ControlMessage] = {}
        """What has to be said in a stream before the next rows: that it isn't idle any more."""
        self.silent = False
        """Nothing that leaves the app is written."""

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
        """Write rows to the partitions that ``keys`` hash to; without keys to the task's own partition."""
        target = self._outputs[stream]
        if self.silent and target.spec.role is Role.SINK:
            self._metrics.count("silenced", rows.height)
            return
        if stream in self.before_rows:
            self.control(stream, self.before_rows.pop(stream))
        self.written.add(stream)
        self._metrics.rows_out += rows.height
        self._metrics.rows_to[stream] += rows.height
        if self._publisher.takes(stream):
            self._publisher.write(stream, rows)
            return
        if not keys or target.partitions == 1:
            self._send(target, self._number % target.partitions, rows)
            return
        ids = partition_of(rows, keys, target.partitions)
        for partition, part in split(rows, ids, target.partitions):
            self._send(target, partition, part)

    def control(self, stream: str, message: ControlMessage) -> None:
        """Write a control message to every partition of a stream."""
        target = self._outputs[stream]
        producer = self._connections.record_producer(target.spec.system)
        kind = kind_of(message)
        for partition in range(target.partitions):
            header = self._stamp(target.spec.stream, partition, kind)
            producer.send(target.spec.stream.name, partition, encode_control(header, message))

    def _send(self, target: StreamPlan, partition: int, rows: pl.DataFrame) -> None:
        spec = target.spec
        producer = self._connections.record_producer(spec.system)
        for part in rows.iter_slices(FRAME_ROWS_MAX):
            header = encode(self._stamp(spec.stream, partition, Kind.USER))
            try:
                frame = encode_rows_into(io.BytesIO(header), part)
            except DataError as error:
                raise DataError(f"rows for stream {spec.id!r}: {error.message}", hint=error.hint) from error
            self._metrics.bytes_out += len(frame)
            self._metrics.bytes_to[spec.id] += len(frame)
            producer.send(spec.stream.name, partition, frame)
