"""Receive frames for a task: the protocol judges them one by one, and the accepted ones are decoded together.

Frames that come early wait here for their version. The order of each partition is kept. All on the run-loop thread;
nothing blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from msgspec import UNSET

from headrace.api.specs import Role
from headrace.core.errors import DataError, DeploymentError, FrameError, ProtocolError
from headrace.core.frame import (
    ControlMessage,
    EndOfStream,
    Header,
    Kind,
    Restore,
    Watermark,
    body_of,
    decode_control,
    decode_header,
)
from headrace.core.ids import SSP, Offset
from headrace.protocol.instructions import Forget, Verdict
from headrace.protocol.machine import ProtocolMachine
from headrace.protocol.record import Detour, SourceEntry
from headrace.systems.base import Ended, Records, Rows
from headrace.systems.slot_reports import Shards
from headrace.task.inputs.chooser import BufferedFrame, Chooser, Frames, SingleFrame, VersionBuffer
from headrace.task.inputs.intake import CommittedSource, Intakes
from headrace.task.metrics import TaskMetrics
from headrace.task.task import Task

FEED_BYTES = 4 << 20  # how much of a label is decoded at once: it may have been too much for the memory


@dataclass(eq=False)
class FrameReceiver:
    """The receiving side of one task, for one attempt."""

    _machine: ProtocolMachine
    _task: Task
    _intakes: Intakes
    _chooser: Chooser
    _metrics: TaskMetrics
    buffer: VersionBuffer
    positions: dict[SSP, Offset] = field(default_factory=dict)  # how far each input has been processed
    shards: dict[SSP, Shards] = field(default_factory=dict)  # how far the shards of each slot have been processed
    detours: dict[SSP, Detour] = field(default_factory=dict)  # those that read a past range again, and what follows
    _sources: dict[SSP, CommittedSource] = field(default_factory=dict)
    _since: dict[SSP, int] = field(default_factory=dict)
    _ended: set[SSP] = field(default_factory=set)

    def resume(self, positions: dict[SSP, Offset], saved: Mapping[SSP, SourceEntry]) -> None:
        self.positions = positions
        self._sources = {
            ssp: CommittedSource(ssp, positions[ssp], saved.get(ssp))
            for ssp, spec in self._task.specs.items()
            if spec.role is not Role.INTERMEDIATE
        }
        self.detours = {ssp: entry.detour for ssp, entry in saved.items() if entry.detour is not UNSET}
        self._ended.clear()
        self._since.clear()
        for ssp, entry in saved.items():
            self._leave_out(ssp, entry)

    def detoured(self, ssp: SSP) -> bool:
        """What another app wrote before the end may be decided behind it. If the partition has ended, it never is."""
        return ssp in self._ended or not self._sources[ssp].undecided_before(self.detours[ssp].until)

    def rejoin(self, ssp: SSP) -> None:
        detour = self.detours.pop(ssp)
        entry = SourceEntry.at(ssp, detour)
        self.positions[ssp] = detour.offset
        self._sources[ssp] = CommittedSource(ssp, detour.offset, entry)
        self._ended.discard(ssp)
        self._leave_out(ssp, entry)

    def published(self) -> dict[SSP, Offset]:
        """Positions without what waits for its version, which slows down writers who close versions by the clock.
        Others must go on, because this task may be waiting for the version that they close next."""
        if self.buffer.empty:
            return self.positions
        by_clock = self._task.scope.written_by_clock
        return self.positions | {ssp: at for ssp, at in self._machine.early().items() if ssp in by_clock}

    def frames(self, frames: Frames) -> None:
        ssp = frames.ssp
        if self._task.specs[ssp].role is not Role.INTERMEDIATE:
            self._source(ssp, frames.offsets, frames.payloads, frames.next)
            return
        afters = [*frames.offsets[1:], frames.next]
        turn: list[int] = []
        for i, payload in enumerate(frames.payloads):
            if self._machine.due:
                rest = frames.payloads[i:]
                self._chooser.put_back(Frames(ssp, frames.offsets[i:], rest, frames.next, sum(map(len, rest))))
                break
            offset, after = frames.offsets[i], afters[i]
            header = _header(ssp, offset, payload)
            verdict = self._machine.receive(ssp, offset, after, header)
            self.positions[ssp] = after
            if verdict is Verdict.PROCESS:
                turn.append(i)
            elif verdict is Verdict.BUFFER:
                self.buffer.put(header, BufferedFrame(ssp, offset, after, payload))
            else:
                self._metrics.count("duplicates")
        if turn:
            offsets = [frames.offsets[i] for i in turn]
            self._intakes.frames(ssp, offsets, [frames.payloads[i] for i in turn], afters[turn[-1]])
            self.positions[ssp] = afters[turn[-1]]

    def control(self, frame: SingleFrame) -> None:
        ssp = frame.ssp
        if self._task.specs[ssp].role is not Role.INTERMEDIATE:
            self._source(ssp, [frame.offset], [frame.payload], frame.next)
            return
        header, message = _control(ssp, frame.offset, frame.payload)
        verdict = self._machine.receive(ssp, frame.offset, frame.next, header, message)
        self.positions[ssp] = frame.next
        match verdict:
            case Verdict.PROCESS:
                self._tell(ssp, message)
            case Verdict.BUFFER:
                self.buffer.put(header, BufferedFrame(ssp, frame.offset, frame.next, frame.payload))
            case Verdict.ROLLBACK:
                self._metrics.count("rollbacks")
            case Forget(producer=producer, seq=seq):
                self.buffer.forget(ssp, producer, seq)
                self._tell(ssp, message)
            case Verdict.DROP:
                self._metrics.count("duplicates")
            case Verdict.TAKEN:
                if isinstance(message, Restore):
                    self._tell(ssp, message)
            case _:
                assert_never(verdict)

    def _tell(self, ssp: SSP, message: ControlMessage) -> None:
        try:
            self._task.control(ssp, message)
        except ProtocolError as error:
            if not isinstance(message, Watermark | EndOfStream):
                raise
            # The frame itself was in order, but its facts about its stage belong to another version of the app.
            raise DeploymentError(error.message, hint=error.hint) from error

    def table(self, table: Rows) -> None:
        self.stands(table)
        self._intakes.table(table)
        self.positions[table.ssp] = table.next

    def stands(self, table: Rows) -> None:
        if table.shards is not None:
            self._task.slot(table.ssp, table.shards.keys(), table.holding)
            self.shards[table.ssp] = table.shards

    def end(self, end: Ended) -> None:
        """Note that a partition has ended. On a detour it hasn't yet for the task, which will meet its end again."""
        if end.ssp in self.detours:
            self._ended.add(end.ssp)
        else:
            self._task.end(end.ssp)
        self.positions[end.ssp] = end.next

    def feed(self, label: int, held: Collection[tuple[SSP, int]] = ()) -> None:
        waiting: list[BufferedFrame] = []
        size = 0
        for frame in self.buffer.take(label, held):
            user = frame.payload[0] == Kind.USER
            if waiting and (not user or frame.ssp != waiting[0].ssp or size >= FEED_BYTES):
                self._feed_rows(waiting)
                waiting, size = [], 0
            if user:
                waiting.append(frame)
                size += len(frame.payload)
                continue
            self._tell(frame.ssp, _control(frame.ssp, frame.offset, frame.payload)[1])
            self._task.advance()
        if waiting:
            self._feed_rows(waiting)

    def learn(self, records: Records) -> None:
        for offset, payload in zip(records.offsets, records.payloads, strict=True):
            if payload and payload[0] == Kind.RESTORE:
                header, message = _control(records.ssp, offset, payload)
                if isinstance(message, Restore):
                    self._machine.learn(records.ssp, header, message)

    def source_entries(self) -> tuple[SourceEntry, ...]:
        return tuple(self._source_entry(ssp, source) for ssp, source in self._sources.items())

    def _leave_out(self, ssp: SSP, entry: SourceEntry) -> None:
        if entry.since_ms is not UNSET:
            self._since[ssp] = entry.since_ms
            self._intakes.begin_at(ssp, entry.since_ms)

    def _source(self, ssp: SSP, offsets: list[Offset], payloads: list[bytes], after: Offset) -> None:
        released_offsets, released = self._sources[ssp].receive(offsets, payloads, after)
        if released:
            self._intakes.frames(ssp, released_offsets, released, after)
        self.positions[ssp] = after

    def _source_entry(self, ssp: SSP, source: CommittedSource) -> SourceEntry:
        entry = source.entry()
        if ssp in self._since:
            entry = msgspec.structs.replace(entry, since_ms=self._since[ssp])
        if ssp in self.detours:
            entry = msgspec.structs.replace(entry, detour=self.detours[ssp])
        if source.undecided:
            return entry
        if ssp in self.shards:
            entry = msgspec.structs.replace(entry, shards=dict(self.shards[ssp]))
        return msgspec.structs.replace(entry, offset=self.positions[ssp])  # rows and ends move it too

    def _feed_rows(self, frames: list[BufferedFrame]) -> None:
        offsets, payloads = [frame.offset for frame in frames], [frame.payload for frame in frames]
        self._intakes.frames(frames[0].ssp, offsets, payloads, frames[-1].after)


def _header(ssp: SSP, offset: Offset, payload: bytes) -> Header:
    try:
        return decode_header(payload)
    except FrameError as error:
        raise DataError(f"{ssp} at offset {offset}: {error.message}", hint=error.hint) from error


def _control(ssp: SSP, offset: Offset, payload: bytes) -> tuple[Header, ControlMessage]:
    header = _header(ssp, offset, payload)
    try:
        return header, decode_control(header.kind, body_of(payload))
    except FrameError as error:
        raise DataError(f"{ssp} at offset {offset}: {error.message}", hint=error.hint) from error
