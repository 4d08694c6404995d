"""How frames reach a task: judged one by one by the protocol, decoded together, held back or dropped as it says.

Frames of intermediate streams go past the protocol; those of sources past a read_committed reader. Early arrivals
wait here for their version. In the order of each partition; all on the run-loop thread, and nothing blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, assert_never

import msgspec

from headrace.api.specs import Role
from headrace.checkpoint.instructions import Forget, Verdict
from headrace.checkpoint.record import SourceEntry
from headrace.core.errors import DataError, FrameError
from headrace.core.frame import ControlMessage, Header, Kind, Restore, body_of, decode_control, decode_header
from headrace.core.ids import SSP, Offset
from headrace.runtime.inputs.chooser import Chooser
from headrace.runtime.inputs.committed_source import CommittedSource
from headrace.runtime.inputs.envelope import Frames, RowBatch, SingleFrame
from headrace.runtime.inputs.intake import Intake
from headrace.runtime.inputs.version_buffer import BufferedFrame, VersionBuffer
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.operators.provenance import Arrival
from headrace.runtime.task import Task
from headrace.serdes.ipc import concat_rows
from headrace.systems.base import Records


class FrameProtocol(Protocol):
    """What the reception asks of the protocol; a ``Node`` is one."""

    @property
    def due(self) -> bool:
        """Instructions wait: receive nothing before they are performed."""
        ...

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> Verdict | Forget:
        """Judge a frame."""
        ...

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """Take note of a restore frame that lies ahead."""
        ...


class FrameReceiver:
    """The receiving side of one task. ``positions`` says how far each input partition has been processed."""

    def __init__(self, machine: FrameProtocol, metrics: TaskMetrics) -> None:
        self.buffer = VersionBuffer()
        self.positions: dict[SSP, Offset] = {}
        self._machine = machine
        self._metrics = metrics
        self._sources: dict[SSP, CommittedSource] = {}
        self._task: Task | None = None
        self._chooser: Chooser | None = None
        self._intakes: Mapping[SSP, Intake] = {}

    def begin(self, task: Task, chooser: Chooser, intakes: Mapping[SSP, Intake]) -> None:
        """Serve a task that begins again from its last commit."""
        self._task, self._chooser, self._intakes = task, chooser, intakes
        self.buffer.clear()

    def resume(self, positions: dict[SSP, Offset], saved: Mapping[SSP, SourceEntry]) -> None:
        """Go on at these positions; ``saved`` is what a checkpoint knows of sources."""
        self.positions = positions
        self._sources = {
            ssp: CommittedSource(ssp, positions[ssp], saved.get(ssp))
            for ssp, spec in self.task.specs.items()
            if spec.role is not Role.INTERMEDIATE
        }

    @property
    def task(self) -> Task:
        """The task that is served."""
        if self._task is None:
            raise ValueError("the reception serves nobody yet")
        return self._task

    # -- envelopes

    def frames(self, frames: Frames) -> None:
        """Process user frames: all of a source's, or as many as the protocol lets through at once."""
        ssp = frames.ssp
        if self.task.specs[ssp].role is not Role.INTERMEDIATE:
            self._source(ssp, frames.offsets, frames.payloads, frames.next)
            return
        behind = [*frames.offsets[1:], frames.next]
        turn: list[int] = []
        for i, payload in enumerate(frames.payloads):
            if self._machine.due:
                self._put_back(frames, i)
                break
            offset, after = frames.offsets[i], behind[i]
            header = _header(ssp, offset, payload)
            verdict = self._machine.receive(ssp, offset, after, header)
            self.positions[ssp] = after
            if verdict is Verdict.PROCESS:
                turn.append(i)
            elif verdict is Verdict.BUFFER:
                self.buffer.put(header.version, BufferedFrame(ssp, offset, after, payload))
            else:
                self._metrics.count("duplicates")
        if turn:
            offsets = [frames.offsets[i] for i in turn]
            self._decoded(ssp, offsets, [frames.payloads[i] for i in turn], behind[turn[-1]])
            self.positions[ssp] = behind[turn[-1]]

    def control(self, frame: SingleFrame) -> None:
        """Process a control frame, or leave it to the protocol."""
        ssp = frame.ssp
        if self.task.specs[ssp].role is not Role.INTERMEDIATE:
            self._source(ssp, [frame.offset], [frame.payload], frame.next)
            return
        header = _header(ssp, frame.offset, frame.payload)
        message = _message(ssp, frame.offset, header, frame.payload)
        verdict = self._machine.receive(ssp, frame.offset, frame.next, header, message)
        self.positions[ssp] = frame.next
        match verdict:
            case Verdict.PROCESS:
                self.task.control(ssp, message)
            case Verdict.BUFFER:
                self.buffer.put(header.version, BufferedFrame(ssp, frame.offset, frame.next, frame.payload))
            case Verdict.ROLLBACK:
                self._metrics.count("rollbacks")
            case Forget(producer=producer, seq=seq):
                self.buffer.forget(ssp, producer, seq)
            case Verdict.DROP:
                self._metrics.count("duplicates")
            case Verdict.TAKEN:
                return
            case _:
                assert_never(verdict)

    def table(self, table: RowBatch) -> None:
        """Process rows of a row system."""
        accepted = self._intakes[table.ssp].accept(table.ssp, table.rows, table.offset, table.bad)
        self._metrics.bytes_in += table.bytes
        self.task.rows(Arrival(table.ssp, table.offset, table.next, accepted.height), accepted)
        self.positions[table.ssp] = table.next

    def feed(self, label: int) -> None:
        """Process early arrivals whose turn has come, neighbouring user frames of a partition together."""
        waiting: list[BufferedFrame] = []
        for frame in self.buffer.take(label):
            user = frame.payload[0] == Kind.USER
            if waiting and (not user or frame.ssp != waiting[0].ssp):
                self._feed_rows(waiting)
                waiting = []
            if user:
                waiting.append(frame)
                continue
            header = _header(frame.ssp, frame.offset, frame.payload)
            self.task.control(frame.ssp, _message(frame.ssp, frame.offset, header, frame.payload))
            self.task.advance()
        if waiting:
            self._feed_rows(waiting)

    def learn(self, ahead: Iterable[Records]) -> None:
        """Tell the protocol of every restore frame that lies ahead."""
        for records in ahead:
            for offset, payload in zip(records.offsets, records.payloads, strict=True):
                if payload and payload[0] == Kind.RESTORE:
                    header = _header(records.ssp, offset, payload)
                    message = _message(records.ssp, offset, header, payload)
                    if isinstance(message, Restore):
                        self._machine.learn(records.ssp, header, message)

    def source_entries(self) -> tuple[SourceEntry, ...]:
        """The positions in sources, as a checkpoint keeps them."""
        return tuple(self._source_entry(ssp, source) for ssp, source in self._sources.items())

    # -- inside

    def _source(self, ssp: SSP, offsets: list[Offset], payloads: list[bytes], after: Offset) -> None:
        released = self._sources[ssp].receive(offsets, payloads, after)
        if released.payloads:
            self._decoded(ssp, released.offsets, released.payloads, after)
        self.positions[ssp] = after

    def _source_entry(self, ssp: SSP, source: CommittedSource) -> SourceEntry:
        entry = source.entry()
        if source.held:
            return entry
        return msgspec.structs.replace(entry, offset=self.positions[ssp])  # rows and ends move it too

    def _put_back(self, frames: Frames, start: int) -> None:
        payloads = frames.payloads[start:]
        rest = Frames(frames.ssp, frames.offsets[start:], payloads, frames.next, sum(map(len, payloads)))
        if self._chooser is not None:
            self._chooser.put_back(rest)

    def _decoded(self, ssp: SSP, offsets: list[Offset], payloads: list[bytes], after: Offset) -> None:
        """Process user frames, all their rows at once."""
        tables = self._intakes[ssp].decode(ssp, offsets, payloads)
        rows = concat_rows(tables)
        heights = [table.height for table in tables]
        self.task.rows(Arrival(ssp, offsets[0], after, rows.height, offsets, heights), rows)

    def _feed_rows(self, frames: list[BufferedFrame]) -> None:
        offsets, payloads = [frame.offset for frame in frames], [frame.payload for frame in frames]
        self._decoded(frames[0].ssp, offsets, payloads, frames[-1].after)


def _header(ssp: SSP, offset: Offset, payload: bytes) -> Header:
    try:
        return decode_header(payload)
    except FrameError as error:
        raise DataError(f"{ssp} at offset {offset}: {error.message}", hint=error.hint) from error


def _message(ssp: SSP, offset: Offset, header: Header, payload: bytes) -> ControlMessage:
    try:
        return decode_control(header.kind, body_of(payload))
    except FrameError as error:
        raise DataError(f"{ssp} at offset {offset}: {error.message}", hint=error.hint) from error
