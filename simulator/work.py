"""What a simulated task does with its inputs: choose, receive, process, keep state, send on."""

from __future__ import annotations

from collections import defaultdict

from headrace.checkpoint import instructions as do
from headrace.checkpoint.machine import MachineConfig, ProtocolMachine
from headrace.core.frame import (
    UNVERSIONED,
    ControlMessage,
    EndOfStream,
    Header,
    Kind,
    Restore,
    Watermark,
    body_of,
    decode_control,
    decode_header,
    encode,
    encode_control,
)
from headrace.core.ids import SSP, Offset, StreamId
from headrace.runtime.event_time.watermark import InputTimes, PartitionTime
from simulator.cluster import Cluster, Incarnation
from simulator.message import decode_message, encode_message
from simulator.processors import PROCESSORS
from simulator.shapes import TaskShape
from simulator.storage import STEP
from simulator.story import answer, frame
from simulator.world import SimFailure

_PROTOCOL_CONTROLS = frozenset({Kind.CHECKPOINT, Kind.RESTORE})

Early = tuple[SSP, Offset, Header, bytes]


class Worker(Incarnation):
    """An incarnation with a protocol, inputs, a processor and uncommitted state."""

    node_class = ProtocolMachine

    def __init__(self, cluster: Cluster, shape: TaskShape, number: int, host: int) -> None:
        super().__init__(cluster, shape, number, host)
        self.machine = self.make_node()
        self.folder = cluster.open_folder(self)
        self.positions: dict[SSP, Offset] = {}
        self.source_positions: dict[SSP, int] = {}
        self.scanned: dict[SSP, Offset] = {}
        self.done: dict[tuple[SSP, int], int] = {}
        self.equip()
        self.drop_uncommitted()

    def equip(self) -> None:
        """Get ready what outlasts a rollback."""

    def make_node(self) -> ProtocolMachine:
        """The protocol."""
        settings = self.cluster.settings
        config = MachineConfig(
            task=self.shape.name,
            task_count=self.shape.stage.tasks,
            producer=self.shape.producer,
            inputs=self.shape.inputs,
            outputs=self.shape.outputs,
            interval_ms=settings.interval_ms,
            exactly_once=settings.exactly_once,
        )
        return self.node_class(config, f"w{self.number}")

    def drop_uncommitted(self) -> None:
        """Forget everything since the last commit."""
        self.overlay: dict[str, int | None] = {}
        self.early: dict[int, list[Early]] = defaultdict(list)
        self.processor = PROCESSORS[self.shape.stage.does](self)
        self.changes: list[tuple[str, int | None]] = []
        self.consumed: list[int] = []
        self.emitted: list[int] = []
        self.label = -1
        self.finished = False
        self.done.clear()
        self.times = self.new_times()

    def new_times(self) -> InputTimes:
        """Bookkeeping of a task that has seen nothing."""
        partitions = [PartitionTime(ssp, stages) for ssp, stages in self.shape.writers.items()]
        return InputTimes(partitions + [PartitionTime(ssp) for ssp in self.shape.sources])

    # -- input -------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Take something from one input; False when there is nothing."""
        chance = self.world.chance
        choices = [ssp for ssp, offset in self.positions.items() if offset < self.cluster.logs[ssp].end]
        choices += [ssp for ssp in self.shape.sources if self.cluster.source_ready(ssp, self.source_positions[ssp])]
        if not choices:
            return False
        ssp = choices[int(chance.random() * len(choices))]
        if ssp in self.positions:
            for _ in range(1 + int(chance.random() * 3)):
                self._receive(ssp)
                if self.machine.due or self.positions[ssp] >= self.cluster.logs[ssp].end:
                    break
        else:
            self._source(ssp)
        return True

    def _receive(self, ssp: SSP) -> None:
        log = self.cluster.logs[ssp]
        offset = log.first(self.positions[ssp])
        if offset is None:
            self.positions[ssp] = log.end
            return
        payload = log.read(offset)
        header = decode_header(payload)
        control = decode_control(header.kind, body_of(payload)) if header.kind in _PROTOCOL_CONTROLS else None
        before = self.machine.version
        verdict = self.machine.receive(ssp, offset, offset + STEP, header, control)
        self.positions[ssp] = offset + STEP
        if self.world.story is not None:
            self.world.tell(self.name, f"{ssp}@{offset} {frame(header, control)}: {answer(verdict)}")
        if verdict is do.Verdict.PROCESS:
            if header.version <= before and header.version != UNVERSIONED:
                self.cluster.oracle.late(self.shape, header.producer, header.version, before)
            self.process(ssp, header, payload)
        elif verdict is do.Verdict.BUFFER:
            self.early[header.version].append((ssp, offset, header, payload))
        elif verdict is do.Verdict.ROLLBACK:
            self.rolled_back(ssp, header, control)
        elif isinstance(verdict, do.Forget):
            self.forget(verdict)

    def rolled_back(self, ssp: SSP, header: Header, control: ControlMessage | None) -> None:
        """A restore has undone something that was processed."""
        assert isinstance(control, Restore)
        if self.done.get((ssp, header.producer), 0) <= control.seq:
            self.cluster.oracle.fail(self.name, f"rolls back for {frame(header, control)}, which undoes nothing")
        key = (header.producer, header.generation)
        self.cluster.oracle.rolled_back(self.shape, self.number, ssp, key, self.scanned.get(ssp, 0))

    def forget(self, what: do.Forget) -> None:
        """Drop buffered frames that are void."""
        for label, frames in self.early.items():
            self.early[label] = [
                early
                for early in frames
                if not (early[0] == what.ssp and early[2].producer == what.producer and early[2].seq > what.seq)
            ]

    def process(self, ssp: SSP, header: Header, payload: bytes) -> None:
        """A frame whose turn it is, received or fed."""
        self.label = max(self.label, header.version)
        self.done[ssp, header.producer] = max(header.seq, self.done.get((ssp, header.producer), 0))
        times = self.times[ssp]
        if header.kind is Kind.USER:
            message, key, time = decode_message(body_of(payload))
            if time < times.watermark and self.cluster.settings.exactly_once:
                raise SimFailure(f"{self.name}: message {message} at {time} is older than the watermark of {ssp}")
            self.consumed.append(message)
            self.processor.message(ssp.stream.name, key, time)
            return
        control = decode_control(header.kind, body_of(payload))
        if isinstance(control, Watermark):
            times.on_watermark(control.task_name, control.task_count, control.timestamp)
            self._advance()
        elif isinstance(control, EndOfStream):
            times.on_end_of_stream(control.task_name, control.task_count)
            self._advance()

    def _source(self, ssp: SSP) -> None:
        position = self.source_positions[ssp]
        messages = self.cluster.sources[ssp]
        if position < len(messages):
            message, key, time, _ = messages[position]
            self.source_positions[ssp] = position + 1
            self.consumed.append(message)
            self.processor.message(ssp.stream.name, key, time)
            self.times[ssp].advance(time - 5)
        else:
            self.source_positions[ssp] = position + 1
            self.times[ssp].end()
        self._advance()

    def _advance(self) -> None:
        risen = self.times.rise()
        if risen is None:
            return
        self.processor.watermark(risen)
        if self.world.chance.random() < 0.4:
            for stream, count in self.shape.outputs.items():
                message = Watermark(task_name=str(self.shape.name), task_count=self.shape.stage.tasks, timestamp=risen)
                self.broadcast(stream, count, message)

    # -- what a processor may ask for ---------------------------------------------------------------------

    def get(self, key: str) -> int:
        """See ``Port``."""
        assert self.folder is not None
        if key in self.overlay:
            return self.overlay[key] or 0
        value: int = self.folder.state.get(key, 0)
        return value

    def put(self, key: str, value: int | None) -> None:
        """See ``Port``."""
        self.overlay[key] = value
        self.changes.append((key, value))

    def names(self) -> list[str]:
        """See ``Port``."""
        assert self.folder is not None
        merged = dict(self.folder.state) | self.overlay
        return sorted(key for key, value in merged.items() if value is not None)

    def emit(self, key: int, time: int) -> None:
        """See ``Port``."""
        cluster, chance = self.cluster, self.world.chance
        stream, count = list(self.shape.outputs.items())[int(chance.random() * len(self.shape.outputs))]
        partition = int(chance.random() * count)
        message = cluster.new_message()
        cluster.oracle.emitted(message, stream.name, key)
        self.emitted.append(message)
        header = self.machine.stamp(stream, partition)
        cluster.oracle.labelled(self.shape, header.generation, header.version)
        payload = encode(header, encode_message(message, key, time))
        self.channel(cluster.logs[SSP(stream, partition)]).send(payload)

    def broadcast(self, stream: StreamId, count: int, message: Watermark | EndOfStream) -> None:
        """Send a control message to every partition of a stream."""
        kind = Kind.WATERMARK if isinstance(message, Watermark) else Kind.END_OF_STREAM
        for partition in range(count):
            header = self.machine.stamp(stream, partition, kind)
            self.channel(self.cluster.logs[SSP(stream, partition)]).send(encode_control(header, message))
