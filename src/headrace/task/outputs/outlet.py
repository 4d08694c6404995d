"""Where results leave a task, and what it tells other tasks: watermarks, ends and positions.

Frames reach the system when the run loop flushes, after every turn. Control messages take the same way, so they never
overtake data. Rows for a foreign system wait in an outbox.

**Announcer.** Watermarks and ends are held back for a few milliseconds, in wide shuffles for longer (``task.scope``).
Only that a stream isn't idle any more is said at once, before its next rows: readers go on without an idle task, and
must not go on past rows that they have seen.

**Positions.** Readers publish them through the system, whether or not they are committed, so back-pressure works across
containers and deployments. A stream without a reader counts as read up to its oldest offset. Intermediate streams are
trimmed up to what the last commit needs, in large steps, but never a broadcast stream, which has several readers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from headrace.api.specs import Role
from headrace.core.errors import DataError, DeploymentError
from headrace.core.frame import ControlMessage, EndOfStream, Header, Kind, Watermark, encode, encode_control, kind_of
from headrace.core.ids import SSP, Offset, StreamId
from headrace.plan.model import StreamPlan
from headrace.rows.hashing import partition_of, split
from headrace.rows.ipc import encode_rows_into
from headrace.task.connections import Connections
from headrace.task.event_time import NOTHING, UNHEARD, Progress
from headrace.task.metrics import TaskMetrics
from headrace.task.outputs.publisher import Publisher
from headrace.task.scope import Every, TaskScope, watermark_interval_ms

FRAME_ROWS_MAX = 1 << 16  # a reader takes whole frames, so its memory is bounded only if they are
Stamp = Callable[[StreamId, int, Kind], Header]  # gives the header of the next frame to a partition


@dataclass(eq=False)
class Outlet:
    """The port of one task, for one attempt. ``number`` is the task's number in its stage."""

    _outputs: Mapping[str, StreamPlan]
    _number: int
    _connections: Connections
    _publisher: Publisher
    _stamp: Stamp
    _metrics: TaskMetrics
    written: set[str] = field(default_factory=set)  # streams with rows since they were said to be idle
    before_rows: dict[str, ControlMessage] = field(default_factory=dict)  # to say first: the stream isn't idle
    silent: bool = False  # nothing that leaves the app is written

    def write(self, stream: str, rows: pl.DataFrame, keys: Sequence[str] = ()) -> None:
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
        for partition, part in split(rows, partition_of(rows, keys, target.partitions), target.partitions):
            self._send(target, partition, part)

    def control(self, stream: str, message: ControlMessage) -> None:
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


class Announcer:
    """For one attempt, which begins with only committed ends announced."""

    def __init__(self, scope: TaskScope, outlet: Outlet, now_ms: float) -> None:
        self._outlet = outlet
        self._task = str(scope.name)
        self._task_count = scope.task_count
        self._announced: dict[str, Progress | None] = {stream.spec.id: UNHEARD for stream in scope.downstream}
        self._names = {stream.spec.id: str(stream.spec.stream) for stream in scope.downstream}
        self._ended: list[str] = []
        self.every = Every(watermark_interval_ms(scope.frames_beside), now_ms)

    @property
    def ended(self) -> list[str]:
        return sorted(self._names[stream] for stream in self._ended)

    def resume(self, ended: Iterable[str], progress: Mapping[str, Progress]) -> None:
        """Earlier announcements aren't known. A task that was idle may be waiting for one now, without any row."""
        known = set(ended)
        self._announced = dict.fromkeys(self._announced)
        for stream in self._announced:
            self._outlet.before_rows[stream] = self._message(progress.get(stream, NOTHING).woken())
        for stream in [id_ for id_, name in self._names.items() if name in known]:
            if not progress.get(stream, NOTHING).ended:
                raise DeploymentError(
                    f"task {self._task} has written the end of stream {stream!r}, and this version of the app would "
                    "write more",
                    hint="give the step that writes the stream another id, or the app another name",
                )
            del self._announced[stream], self._outlet.before_rows[stream]
            self._ended.append(stream)

    @property
    def open(self) -> list[str]:
        return sorted(self._announced)

    def news(self, progress: Mapping[str, Progress]) -> bool:
        return any(self._is_news(stream, progress.get(stream, NOTHING)) for stream in self._announced)

    def _is_news(self, stream: str, now: Progress) -> bool:
        # Before rows, a stream is said to be awake, so that it is idle has to be said again after them.
        return now != self._announced[stream] or (now.idle and stream in self._outlet.written)

    def announce(self, progress: Mapping[str, Progress], now_ms: float) -> None:
        if not self.news(progress) or not self.every.due(now_ms):
            return
        for stream in list(self._announced):
            now = progress.get(stream, NOTHING)
            if now.ended:
                self._end(stream)
            elif self._is_news(stream, now):
                self._tell(stream, now)

    def _tell(self, stream: str, now: Progress) -> None:
        self._announced[stream] = now
        self._outlet.written.discard(stream)
        self._outlet.before_rows.pop(stream, None)
        if now.idle:
            self._outlet.before_rows[stream] = self._message(now.woken())
        self._outlet.control(stream, self._message(now))

    def _message(self, now: Progress) -> Watermark:
        return Watermark(
            task_name=self._task,
            task_count=self._task_count,
            timestamp=now.watermark,
            idle=now.idle,
            heard=dict(now.heard),
            own=dict(now.own),
        )

    def end(self) -> None:
        for stream in list(self._announced):
            self._end(stream)

    def _end(self, stream: str) -> None:
        del self._announced[stream]
        self._ended.append(stream)
        self._outlet.control(stream, EndOfStream(task_name=self._task, task_count=self._task_count, stream_id=stream))


CHECK_MS = 10
CHECK_MS_A_PARTITION = 0.05  # a look at thousands of partitions takes milliseconds, so it is taken more rarely


class Backpressure:
    """Watches the intermediate streams that one stage writes, for all its tasks in a container."""

    def __init__(
        self, app: str, limit: int, streams: Sequence[StreamPlan], connections: Connections, now_ms: float
    ) -> None:
        self._limit = limit
        self._group = app
        self._streams = streams
        self._connections = connections
        interval = max(CHECK_MS, CHECK_MS_A_PARTITION * sum(stream.partitions for stream in streams))
        self._every = Every(interval, now_ms - interval)
        self.blocked_by: str | None = None

    def check(self, now_ms: float) -> bool:
        if self._streams and self._every.due(now_ms):
            self.blocked_by = self._look()
        return self.blocked_by is not None

    def _look(self) -> str | None:
        for stream in self._streams:
            admin = self._connections.admin(stream.spec.system)
            for partition, ahead in enumerate(admin.unread(stream.spec.stream.name, self._group)):
                if ahead > self._limit:
                    return f"{stream.spec.stream}[{partition}] is {ahead} bytes ahead of its reader"
        return None


REPORT_INTERVAL_MS = 20
TRIM_STEP = 32 << 20


class PublishedPositions:
    """The inputs of one task as seen by others."""

    def __init__(self, scope: TaskScope, connections: Connections, now_ms: float, trim_step: int = TRIM_STEP) -> None:
        self._trim_step = trim_step
        self._group = scope.app
        self._reader = f"{scope.app}/{scope.name.stage}"
        self._specs = specs = scope.specs
        self._connections = connections
        self.every = Every(REPORT_INTERVAL_MS, now_ms)
        self._reported: dict[SSP, Offset] = {}
        self._trimmed: dict[SSP, Offset] = {}
        self._sources = {ssp for ssp, spec in specs.items() if spec.role is not Role.INTERMEDIATE}
        self._sealed: dict[SSP, Offset] = {}

    def news(self, positions: Mapping[SSP, Offset]) -> bool:
        return positions != self._reported

    def report(self, positions: Mapping[SSP, Offset], now_ms: float) -> None:
        if not self.news(positions) or not self.every.due(now_ms):
            return
        for ssp, position in positions.items():
            if self._reported.get(ssp) != position:
                self._reported[ssp] = position
                self._connections.admin(self._specs[ssp].system).report_position(ssp, self._group, position)

    def sealed(self, positions: Mapping[SSP, Offset]) -> None:
        self._sealed = {ssp: positions[ssp] for ssp in self._sources & positions.keys()}

    def committed(self, needed: Mapping[SSP, Offset | None]) -> None:
        for ssp, position in self._sealed.items():
            self._connections.admin(self._specs[ssp].system).report_commit(ssp, self._reader, position)
        self._sealed = {}
        for ssp, offset in needed.items():
            spec = self._specs[ssp]
            if offset is None or spec.broadcast or spec.role is not Role.INTERMEDIATE:
                continue
            admin = self._connections.admin(spec.system)
            behind = offset - self._trimmed.setdefault(ssp, 0)
            if behind * admin.bytes_per_offset(ssp.stream.name) >= self._trim_step:
                admin.trim(ssp, offset)
                self._trimmed[ssp] = offset
