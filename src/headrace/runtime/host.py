"""Hosts one task in a container: polls its partitions, feeds it in order, takes its checkpoints.

What is ordered: envelopes of a partition, always; flush, then changes, then the commit record. What may block:
``start`` (restoring), ``commit`` (acknowledgements). All on the container's run-loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from headrace.api.specs import Role, StreamSpec
from headrace.core.clock import Clock
from headrace.core.errors import DataError, FrameError
from headrace.core.frame import (
    UNVERSIONED,
    ControlMessage,
    EndOfStream,
    Header,
    Kind,
    Watermark,
    body_of,
    decode_control,
    decode_header,
)
from headrace.core.ids import SSP, Offset
from headrace.plan.model import Plan, StagePlan, TaskPlan
from headrace.runtime.backpressure import Backpressure
from headrace.runtime.chooser import Chooser
from headrace.runtime.connections import Connections
from headrace.runtime.envelope import ControlFrame, Frames, PartitionEnd, Table, envelopes
from headrace.runtime.intake import Intake
from headrace.runtime.journal import Journal
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import changelog_ssp
from headrace.runtime.outlet import Outlet
from headrace.runtime.task import Task
from headrace.runtime.timing import Every
from headrace.runtime.watermark import NEVER
from headrace.systems.base import Consumer, Edge

WATERMARK_INTERVAL_MS = 10
REPORT_INTERVAL_MS = 20
WAITING_BYTES_MAX = 8 << 20
POLL_BYTES_MAX = 4 << 20


class TaskHost:
    """One task with everything around it."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        task: TaskPlan,
        generation: int,
        connections: Connections,
        backpressure: Backpressure,
        clock: Clock,
    ) -> None:
        now_ms = clock.monotonic_ms()
        self._clock = clock
        self.plan = plan
        self.stage = stage
        self.name = task.name
        self.metrics = TaskMetrics()
        self.backpressure = backpressure
        self.finished = False
        self.restored = False
        self.checkpoints = 0
        self.commit_took_ms = 0.0
        self.started_ms = now_ms
        self.committed_ms: float | None = None
        self._producer_id = task.producer
        self._connections = connections
        self._seqs: dict[tuple[str, int], int] = {}
        self._outlet = Outlet(plan, task.name, connections, self._stamp, self.metrics)
        self.task = Task(plan, stage, task, self._outlet, self.metrics)
        self._intakes = {ssp: Intake(spec, self.metrics, self._outlet.write) for ssp, spec in self.task.specs.items()}
        self._chooser = Chooser(self.task.specs)
        self._consumers: dict[str, Consumer] = {}
        self._by_consumer: dict[str, list[SSP]] = {}
        self._hungry: dict[str, bool] = {}
        self.generation = generation
        self.positions: dict[SSP, Offset] = {}
        self._reported: dict[SSP, Offset] = {}
        self._downstream = [id_ for id_ in stage.outputs if plan.streams[id_].spec.role is Role.INTERMEDIATE]
        self._sent_watermark: tuple[int, bool] = (NEVER, False)
        self._heard_ms: dict[SSP, float] = dict.fromkeys(self.task.specs, now_ms)
        self._watermark_every = Every(WATERMARK_INTERVAL_MS, now_ms)
        self._report_every = Every(REPORT_INTERVAL_MS, now_ms)
        self._commit_every = Every(plan.graph.settings.checkpoint_interval_ms, now_ms)
        self._dirty = False
        changelog, system = changelog_ssp(plan, task.name)
        self._changelog_system = system
        self._journal = Journal(
            changelog,
            connections.admin(system),
            connections.record_producer(system),
            producer_id=task.producer,
            generation=generation,
        )

    # -- life

    def start(self) -> None:
        """Restore from the last checkpoint and begin to read behind it."""
        consumer = self._connections.consumer(self._changelog_system)
        try:
            record = self._journal.restore(consumer, self.task.chain.stores())
        finally:
            consumer.close()
        saved: Mapping[str, Offset] = {}
        if record is not None:
            self.restored = True
            self.task.load(record.times)
            saved = record.positions
            self.finished = self.task.finished = record.finished
        for ssp, spec in self.task.specs.items():
            system = spec.system.name
            if system not in self._consumers:
                self._consumers[system] = self._connections.consumer(spec.system)
                self._by_consumer[system] = []
                self._hungry[system] = True
            self._by_consumer[system].append(ssp)
            self._consumers[system].register(ssp, saved.get(str(ssp), _first_position(spec)))
            self.positions[ssp] = self._consumers[system].position(ssp)

    def close(self) -> None:
        """Stop reading. What was not committed will be read again."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()

    def filenos(self) -> list[int]:
        """Descriptors that turn readable when there may be something to poll."""
        numbers = [consumer.fileno() for consumer in self._consumers.values()]
        return [number for number in numbers if number is not None]

    def lag(self, ssp: SSP) -> int | None:
        """How far the processed position of an input is behind its end; None when unknown."""
        consumer = self._consumers.get(self.task.specs[ssp].system.name)
        if consumer is None:
            return None
        behind = consumer.lag(ssp)
        return None if behind is None else behind + consumer.position(ssp) - self.positions[ssp]

    # -- one turn

    def poll(self) -> None:
        """Take what has arrived, unless enough waits already."""
        for system, consumer in self._consumers.items():
            wanted = [ssp for ssp in self._by_consumer[system] if self._chooser.waiting_bytes(ssp) < WAITING_BYTES_MAX]
            if not wanted:
                continue
            found = consumer.poll(wanted, POLL_BYTES_MAX)
            self._hungry[system] = bool(found) or len(wanted) < len(self._by_consumer[system])
            for polled in found:
                for envelope in envelopes(polled):
                    self._chooser.offer(envelope)

    @property
    def busy(self) -> bool:
        """There is work now, or the last poll found something: don't sleep."""
        if self.finished or self.backpressure.blocked_by is not None:
            return False
        return bool(len(self._chooser)) or any(self._hungry.values())

    @property
    def owes(self) -> bool:
        """Something done has not been told downstream yet: a watermark waits for its interval."""
        return not self.finished and (self._watermark_news() or self.task.finished)

    def step(self, now_ms: float) -> bool:
        """Process one envelope; False when there is none, or the stage has to wait for its readers."""
        if self.finished or self.backpressure.check(now_ms):
            return False
        envelope = self._chooser.choose()
        if envelope is None:
            return False
        ssp = envelope.ssp
        self._dirty = True
        self._heard_ms[ssp] = now_ms
        match envelope:
            case Frames(offsets=offsets, payloads=payloads, next=after):
                rows = self._intakes[ssp].decode(ssp, offsets, payloads)
                self.task.rows(ssp, rows, offsets[0], after)
            case Table(rows=rows, offset=offset, next=after, bad=bad):
                accepted = self._intakes[ssp].accept(ssp, rows, offset, bad)
                self.metrics.bytes_in += envelope.bytes
                self.task.rows(ssp, accepted, offset, after)
            case ControlFrame():
                self._control(envelope)
            case PartitionEnd():
                self.task.end(ssp)
            case _:
                assert_never(envelope)
        self.positions[ssp] = envelope.next
        self.task.advance()
        return True

    def on_time(self, now_ms: float, *, commit: bool = False) -> float:
        """Do what is due; returns how long (ms) nothing will be."""
        if self.finished:
            return 1000.0
        self._notice_silence(now_ms)
        self.task.advance()
        if self._watermark_news() and self._watermark_every.due(now_ms):
            self._send_watermark()
        if self._report_every.due(now_ms):
            self._report()
        if self.task.finished:
            self._finish(now_ms)
        elif commit or (self._dirty and self._commit_every.due(now_ms)):
            self.commit(now_ms)
        return self._until_due(now_ms)

    def commit(self, now_ms: float, *, finished: bool = False) -> None:
        """Make the present state durable. Blocks until everything is acknowledged."""
        began = self._clock.monotonic_ms()
        self._connections.flush_all()
        stores = self.task.chain.stores()
        self._journal.commit(stores, self.positions, self.task.save(), finished=finished)
        self._report()
        self.checkpoints += 1
        self.committed_ms = now_ms
        self.commit_took_ms = self._clock.monotonic_ms() - began
        self._dirty = False

    # -- inside

    def _control(self, envelope: ControlFrame) -> None:
        ssp = envelope.ssp
        if self.task.specs[ssp].role is not Role.INTERMEDIATE:
            self.task.rows(
                ssp,
                self._intakes[ssp].decode(ssp, [envelope.offset], [envelope.payload]),
                envelope.offset,
                envelope.next,
            )
            return
        try:
            header = decode_header(envelope.payload)
            message = decode_control(header.kind, body_of(envelope.payload))
        except FrameError as error:
            raise DataError(f"{ssp} at offset {envelope.offset}: {error.message}", hint=error.hint) from error
        if header.kind in (Kind.WATERMARK, Kind.END_OF_STREAM):
            self.task.control(ssp, message)

    def _notice_silence(self, now_ms: float) -> None:
        for ssp, spec in self.task.specs.items():
            timeout = spec.idle_timeout_ms
            if timeout is None or self.task.times[ssp].idle or self.task.times[ssp].closed:
                continue
            if now_ms - self._heard_ms[ssp] >= timeout:
                self.task.idle(ssp)

    def _watermark_news(self) -> bool:
        return bool(self._downstream) and self._watermark_now() != self._sent_watermark

    def _watermark_now(self) -> tuple[int, bool]:
        return self.task.watermark, self.task.times.idle

    def _send_watermark(self) -> None:
        timestamp, idle = self._watermark_now()
        self._sent_watermark = (timestamp, idle)
        for stream in self._downstream:
            self._outlet.control(stream, self._named(Watermark, timestamp=timestamp, idle=idle))

    def _finish(self, now_ms: float) -> None:
        for stream in self._downstream:
            self._outlet.control(stream, self._named(EndOfStream, stream_id=stream))
        self.commit(now_ms, finished=True)
        self.finished = True

    def _named(self, message: type[ControlMessage], **fields: object) -> ControlMessage:
        return message(task_name=str(self.name), task_count=len(self.stage.tasks), **fields)  # type: ignore[arg-type]

    def _report(self) -> None:
        for ssp, position in self.positions.items():
            spec = self.task.specs[ssp]
            if self._reported.get(ssp) != position:
                self._reported[ssp] = position
                admin = self._connections.admin(spec.system)
                admin.report_position(ssp, self.plan.graph.app, position)

    def _until_due(self, now_ms: float) -> float:
        due = [now_ms + 1000.0]
        if self._watermark_news():
            due.append(self._watermark_every.next_ms)
        if self.positions != self._reported:
            due.append(self._report_every.next_ms)
        if self._dirty:
            due.append(self._commit_every.next_ms)
        if self.backpressure.blocked_by is not None:
            due.append(now_ms + 5)
        for ssp, spec in self.task.specs.items():
            if spec.idle_timeout_ms is not None and not self.task.times[ssp].idle:
                due.append(self._heard_ms[ssp] + spec.idle_timeout_ms)
        return max(0.0, min(due) - now_ms)

    def _stamp(self, stream: str, partition: int, kind: Kind) -> Header:
        seq = self._seqs[stream, partition] = self._seqs.get((stream, partition), 0) + 1
        return Header(kind, self._producer_id, self.generation, UNVERSIONED, seq)


def _first_position(spec: StreamSpec) -> Edge:
    if spec.role is Role.INTERMEDIATE:
        return Edge.OLDEST
    return Edge.OLDEST if spec.start == "oldest" else Edge.UPCOMING
