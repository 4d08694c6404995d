"""A task between two beginnings: what a start or a rollback makes anew, and what it goes on from.

Whoever hosts the task (a container's run loop, the simulator) has its I/O and its clocks; this is the rest of what
there is to do at a beginning, with an envelope, and before an instruction. On the run-loop thread; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import assert_never

from headrace.api.specs import Role, StreamSpec
from headrace.checkpoint.instructions import Finish, FlushOutputs, Instruction
from headrace.checkpoint.record import CommitRecord, SourceEntry
from headrace.core.ids import SSP, Offset
from headrace.runtime.event_time.watermark import TimesCheckpoint
from headrace.runtime.inputs.bootstrap import Bootstrap
from headrace.runtime.inputs.chooser import Chooser
from headrace.runtime.inputs.envelope import Envelope, Frames, PartitionEnd, RowBatch, SingleFrame
from headrace.runtime.inputs.frame_receiver import FrameReceiver
from headrace.runtime.inputs.intake import Intake
from headrace.runtime.outputs.outlet import Outlet
from headrace.runtime.outputs.publisher import Publisher
from headrace.runtime.task import Task
from headrace.stores.base import StateStore
from headrace.systems.base import Edge, Position


class Attempt:
    """``settling_ms``: since when an instruction waits for steps that wait for answers; None: none does."""

    def __init__(
        self,
        task: Task,
        outlet: Outlet,
        publishing: Publisher,
        reception: FrameReceiver,
        intake: Callable[..., Intake] = Intake,
    ) -> None:
        """``intake`` makes the way in for each input, as ``Intake`` does."""
        self.task = task
        self.chooser = Chooser(task.specs, task.side_inputs)
        self.bootstrap = Bootstrap(self.chooser)
        self.settling_ms: float | None = None
        self._publishing = publishing
        self._receiver = reception
        self._saved: dict[SSP, SourceEntry] = {}
        publishing.begin(task.chain.tables.written)
        intakes: dict[SSP, Intake] = {}
        for ssp, spec in task.specs.items():
            keys, partial = task.chain.tables.keys_of(spec.id), spec.id in task.plan.combined
            intakes[ssp] = intake(spec, task.metrics, outlet.write, keys=keys, partial=partial)
        reception.begin(task, self.chooser, intakes)

    def stores(self) -> dict[str, StateStore]:
        """Everything that the changelog keeps."""
        return {**self.task.chain.stores(), **self._publishing.stores()}

    def close(self) -> None:
        """Let go: another beginning follows, or none."""
        self.task.chain.close()

    # -- the beginning

    def restore(
        self, record: CommitRecord | None, times: TimesCheckpoint | None, inputs: Mapping[SSP, Offset | None]
    ) -> dict[SSP, Position]:
        """Take up a commit with its event times (None: there was none); returns where each input has to be read on.

        ``inputs`` is what the protocol says of intermediate streams. The stores are filled already.
        """
        task = self.task
        self._publishing.resume(-1 if record is None else record.version)
        positions: dict[SSP, Position] = {}
        for ssp, spec in task.specs.items():
            offset = inputs[ssp] if spec.role is Role.INTERMEDIATE else None
            positions[ssp] = _first_position(spec) if offset is None else offset
        if times is not None:
            task.load(times)
        if record is not None:
            task.finished = record.end_of_stream_sent
            self._saved = {SSP.of(entry.stream, entry.partition): entry for entry in record.sources}
            positions |= {ssp: entry.offset for ssp, entry in self._saved.items() if entry.offset is not None}
        return positions

    def begin(self, positions: dict[SSP, Offset], ends: Mapping[SSP, Offset], now_ms: int) -> None:
        """Go on at these positions; ``ends`` says where the side inputs end now."""
        self._receiver.resume(positions, self._saved)
        if not self.task.finished:
            self.task.chain.tell_time(now_ms)
            self.task.begin()
        self.bootstrap.begin(positions, ends)

    # -- at work

    def take(self, envelope: Envelope, now_ms: int) -> None:
        """Process an envelope that the chooser has chosen."""
        ssp, reception = envelope.ssp, self._receiver
        self.task.chain.tell_time(now_ms)
        match envelope:
            case Frames():
                reception.frames(envelope)
            case SingleFrame():
                reception.control(envelope)
            case RowBatch():
                reception.table(envelope)
            case PartitionEnd():
                self.task.end(ssp)
                reception.positions[ssp] = envelope.next
            case _:
                assert_never(envelope)
        self.bootstrap.note(ssp, reception.positions[ssp], ended=isinstance(envelope, PartitionEnd))

    def ready(self, instruction: Instruction, now_ms: int, monotonic_ms: float) -> bool:
        """False when steps that wait for answers have to be done before this: take nothing, and ask again later."""
        if self._prepared(instruction, now_ms):
            self.settling_ms = None
            return True
        self.settling_ms = monotonic_ms if self.settling_ms is None else self.settling_ms
        return False

    def _prepared(self, instruction: Instruction, now_ms: int) -> bool:
        match instruction:
            case FlushOutputs():
                self.task.chain.collect()
                return not self.task.chain.holding
            case Finish():
                self.task.chain.tell_time(now_ms)
                self.task.advance()
                self.task.chain.collect()
                return self.task.finish()
            case _:
                return True

    @property
    def settling(self) -> bool:
        """A commit or the end is due, and waits for steps that wait."""
        return self.settling_ms is not None

    @property
    def idle(self) -> bool:
        """Nothing comes, and nothing is to come of what came: downstream may go on without this task."""
        return self.task.times.idle and not self.task.chain.holding


def _first_position(spec: StreamSpec) -> Edge:
    return Edge.OLDEST if spec.start == "oldest" else Edge.UPCOMING
