"""The host of a simulated task with real operators and stores.

As ``runtime.host`` it gives its task what has arrived, its stores to the changelog and back, and performs the
protocol's instructions; as ``task`` it does so in steps, around each of which the task may crash, be paused or be
overtaken. Real are the task with its chain of operators and its stores, ``TaskState``, intake, reception, chooser,
outlet, announcer and publishing; only what they reach of the world is simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.api.specs import Role
from headrace.checkpoint import instructions as do
from headrace.checkpoint.changelog import ReplayStep
from headrace.checkpoint.machine import ProtocolMachine
from headrace.checkpoint.protocol import Phase
from headrace.checkpoint.record import CommitRecord, LocalCheckpoint, SourceEntry
from headrace.core.errors import FencedError, InfrastructureError
from headrace.core.frame import UNVERSIONED, ControlMessage, Header, Kind, Restore, body_of, decode_header
from headrace.core.ids import SSP, Offset, StreamId
from headrace.runtime.event_time.idleness import Idleness
from headrace.runtime.event_time.watermark import TimesCheckpoint
from headrace.runtime.host.attempt import Attempt
from headrace.runtime.host.machine_config import machine_config
from headrace.runtime.inputs.envelope import PartitionEnd, envelopes
from headrace.runtime.inputs.frame_receiver import FrameReceiver
from headrace.runtime.inputs.intake import Intake
from headrace.runtime.metrics import TaskMetrics
from headrace.runtime.naming import changelog_ssp
from headrace.runtime.outputs.announcer import Announcer
from headrace.runtime.outputs.outlet import Outlet
from headrace.runtime.outputs.publisher import Publisher
from headrace.runtime.task import Task
from headrace.systems.base import Edge, Records
from simulator.app_cluster import AppCluster
from simulator.calls import VirtualCalls
from simulator.edges import SimConnections
from simulator.local import SimState
from simulator.oracle import Account
from simulator.shapes import TaskShape
from simulator.storage import STEP
from simulator.story import answer, brief, frame
from simulator.task import Held, SimTask
from simulator.world import Steps

_ACCOUNT = msgspec.json.Decoder(Account)
_WAITING_BYTES_MAX = 4096


class WatchedIntake(Intake):
    """Says which frames are decoded: each of them is consumed."""

    def __init__(self, host: AppTask, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._host = host

    @override
    def decode(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes]) -> list[pl.DataFrame]:
        self._host.consume(ssp, offsets, payloads)
        return super().decode(ssp, offsets, payloads)


class AppTask(SimTask):
    """An incarnation of a task of an app."""

    cluster: AppCluster
    state_class = SimState
    publishing_class = Publisher
    task_class = Task
    attempt_class = Attempt
    idleness_class = Idleness
    attempt: Attempt

    def __init__(self, cluster: AppCluster, shape: TaskShape, number: int, host: int) -> None:
        self.plan = cluster.shape.plan
        self.stage_plan, self.task_plan = cluster.shape.place_of(shape.name)
        self.polled: dict[SSP, Offset] = {}
        self._untouched = self._begun = False
        super().__init__(cluster, shape, number, host)

    @override
    def make_node(self) -> ProtocolMachine:
        """The protocol."""
        return self.node_class(machine_config(self.plan, self.stage_plan, self.task_plan), f"w{self.number}")

    @override
    def equip(self) -> None:
        assert self.folder is not None
        plan, name = self.plan, self.shape.name
        self.metrics = TaskMetrics()
        self.calls = VirtualCalls(self.world, self.number)
        connections = SimConnections(self.send_frame, self.cluster.targets, self.calls)
        self.publishing = self.publishing_class(
            plan, self.stage_plan, name, connections, self.metrics.warnings, self.world.chance
        )
        self.outlet = Outlet(plan, name, connections, self.publishing, self.machine.stamp, self.metrics)
        self.state = self.state_class(changelog_ssp(plan, name)[0], self.folder, self.cluster.snapshots[name])
        self.receiver = FrameReceiver(self, self.metrics)
        ids = [id_ for id_ in self.stage_plan.outputs if plan.streams[id_].spec.role is Role.INTERMEDIATE]
        self.announcer = Announcer(self.outlet, name, len(self.stage_plan.tasks), ids, self.world.now)

    @override
    def drop_uncommitted(self) -> None:
        """See ``Worker``. A task that nothing has happened to is as good as a new one."""
        if self._untouched:
            return
        self._untouched = True
        if self._begun:
            self.attempt.close()
        self._begun = True
        parts = self.outlet, self.metrics, self.calls
        self.task = self.task_class(self.plan, self.stage_plan, self.task_plan, *parts)
        self.times = self.task.times
        watched = partial(WatchedIntake, self)
        self.attempt = self.attempt_class(self.task, self.outlet, self.publishing, self.receiver, watched)
        self.idleness = self.idleness_class(self.task, self.world.now)
        self.announcer.reset()
        self.consumed, self.emitted, self.label, self.finished = [], [], -1, False
        self.told: list[tuple[int, int, int, int, int]] = []
        self._latest, self._published = 0, 0.0
        self.done.clear()
        self._waiting: dict[int, list[tuple[SSP, Header]]] = defaultdict(list)

    def _look_at_clock(self) -> int:
        """What the clock shows, for the task to be told."""
        now = int(self.world.now + self.skew)
        self._latest = max(self._latest, now)
        return now

    # -- input -------------------------------------------------------------------------------------------

    @override
    def work(self) -> bool:
        """See ``Worker``: poll, process an envelope, do what is due."""
        chain, attempt = self.task.chain, self.attempt
        if self.machine.phase is Phase.RUNNING:
            chain.collect()
        self._publish()
        polled = self._poll()
        waits = attempt.settling or chain.full is not None
        envelope = None if waits else attempt.chooser.choose()
        if self.world.story is not None and chain.full is not None:
            self.world.tell(self.name, f"is full: {chain.full}")
        if envelope is not None:
            self.idleness.heard(envelope.ssp, self.world.now)
            attempt.take(envelope, self._look_at_clock())
        else:
            self.idleness.notice(attempt.chooser, self.world.now)
            if not attempt.settling:
                chain.on_time(self._look_at_clock())
        running = self.machine.phase is Phase.RUNNING and not self.machine.due
        if running:
            self.task.advance()
        if (running or attempt.settling) and not self.task.finished:
            self.announcer.tell(self.task.output_watermark, idle=attempt.idle, now_ms=self.world.now)
        return polled or envelope is not None

    def _poll(self) -> bool:
        """Take a few frames of one partition, as chance will have it."""
        chance, waiting = self.world.chance, self.attempt.chooser.waiting_bytes
        ready = [s for s, at in self.polled.items() if at < self._end(s) and waiting(s) < _WAITING_BYTES_MAX]
        if not ready:
            return False
        ssp = ready[int(chance.random() * len(ready))]
        offset = self.polled[ssp]
        log = self.cluster.source_logs.get(ssp)
        if log is not None and offset >= log.end:
            self.attempt.chooser.offer(PartitionEnd(ssp, log.end))
            self.polled[ssp] = log.end + STEP
            return True
        most = 1 + int(chance.random() * 6)
        if log is None:
            read, end = self.cluster.logs[ssp].read, self.cluster.logs[ssp].end
            offsets = self.cluster.logs[ssp].offsets(offset, end)[:most]
        else:
            read, end = log.read, log.end_at(self.world.now)
            offsets = list(range(offset, end, STEP))[:most]
        self.polled[ssp] = end if not offsets else offsets[-1] + STEP
        if offsets:
            records = Records(ssp, offsets, [read(at) for at in offsets], self.polled[ssp])
            for envelope in envelopes(records):
                self.attempt.chooser.offer(envelope)
        return bool(offsets)

    def _end(self, ssp: SSP) -> Offset:
        """Where there is nothing yet; the end of a source counts as something."""
        log = self.cluster.source_logs.get(ssp)
        if log is None:
            return self.cluster.logs[ssp].end
        end = log.end_at(self.world.now)
        return end + STEP if end == log.end and log.ends_at <= self.world.now else end

    def _publish(self) -> None:
        self._published = self.world.now
        try:
            self.publishing.advance(self.world.now)
        except InfrastructureError as error:
            raise FencedError(error.message) from error

    # -- what the reception asks of the protocol ----------------------------------------------------------

    @property
    def due(self) -> bool:
        """See ``Receiver``."""
        return self.machine.due

    def learn(self, ssp: SSP, header: Header, restore: Restore) -> None:
        """See ``Receiver``."""
        self.machine.learn(ssp, header, restore)

    def receive(
        self, ssp: SSP, offset: Offset, after: Offset, header: Header, control: ControlMessage | None = None
    ) -> do.Verdict | do.Forget:
        """See ``Receiver``: the protocol judges, and the verdict is passed to the oracle."""
        before = self.machine.version
        verdict = self.machine.receive(ssp, offset, after, header, control)
        if self.world.story is not None:
            self.world.tell(self.name, f"{ssp}@{offset} {frame(header, control)}: {answer(verdict)}")
        if verdict is do.Verdict.PROCESS:
            if header.version <= before and header.version != UNVERSIONED:
                self.cluster.oracle.late(self.shape, header.producer, header.version, before)
            self._note_done(ssp, header)
        elif verdict is do.Verdict.BUFFER:
            self._waiting[header.version].append((ssp, header))
        elif verdict is do.Verdict.ROLLBACK:
            self.rolled_back(ssp, header, control)
        return verdict

    def _note_done(self, ssp: SSP, header: Header) -> None:
        self.label = max(self.label, header.version)
        self.done[ssp, header.producer] = max(header.seq, self.done.get((ssp, header.producer), 0))

    def consume(self, ssp: SSP, offsets: Sequence[Offset], payloads: Sequence[bytes]) -> None:
        """These user frames are being processed."""
        oracle = self.cluster.oracle
        if ssp in self.cluster.source_logs:
            found = (oracle.source_message(ssp, offset) for offset in offsets)
            self.consumed += [message for message in found if message is not None]
        else:
            self.consumed += [oracle.message_of(ssp, payload) for payload in payloads]
        told = self.number, int(self._published), int(self.world.now), int(self.world.now + self.skew), self._latest
        self.told += [told] * (len(self.consumed) - len(self.told))

    # -- output ------------------------------------------------------------------------------------------

    def send_frame(self, stream: StreamId, partition: int, payload: bytes) -> None:
        """A frame leaves the outlet."""
        oracle, ssp = self.cluster.oracle, SSP(stream, partition)
        if payload[0] == Kind.USER:
            message = oracle.message_of(ssp, payload)
            oracle.emitted(message, stream.name, 0)
            self.emitted.append(message)
            oracle.labelled(self.shape, self.machine.generation, decode_header(payload).version)
        if self.world.story is not None:
            self.world.tell(self.name, f"writes {frame(decode_header(payload), None)} to {ssp}")
        self.channel(self.cluster.logs[ssp]).send(payload)

    # -- instructions ------------------------------------------------------------------------------------

    @override
    def perform(self, step: do.Instruction) -> Steps:
        """See ``SimTask``; a doomed task dies in place of it."""
        if self.cluster.doomed.get(self.shape.name) is type(step):
            del self.cluster.doomed[self.shape.name]
            self.world.tell(self.name, "is killed before that")
            self.world.after(0.0, self.die)
            yield 1.0
        yield from super().perform(step)

    @override
    def base(self) -> LocalCheckpoint | None:
        """See ``SimTask``: the real state chooses."""
        self._untouched = False
        return self.state.begin(self.attempt.stores())

    @override
    def rebase(self) -> None:
        self.world.tell(self.name, "finds that its local state doesn't fit the changelog")
        self.drop_uncommitted()
        self._untouched = False
        base = self.state.misfit(self.attempt.stores())
        if base is None and self.changelog.oldest:
            self.cluster.oracle.fail(self.name, "the changelog is trimmed, and there is no snapshot")
        self.machine.rebase(base)

    @override
    def replay(self, entry: ReplayStep, payload: bytes, held: Held) -> None:
        match entry:
            case ReplayStep.HOLD:
                self.state.hold(body_of(payload))
            case ReplayStep.APPLY:
                self.state.apply(self.machine.local)
            case ReplayStep.FORGET:
                self.state.forget()

    @override
    def replayed(self) -> None:
        self.state.read_to(self.machine.local)

    @override
    def resume(self, record: CommitRecord | None, inputs: tuple[tuple[SSP, Offset | None], ...]) -> None:
        """Take up bookkeeping and positions."""
        positions = self.attempt.restore(record, self.times_in(record), dict(inputs))
        logs = self.cluster.source_logs
        for ssp, position in positions.items():
            oldest = logs[ssp].start if ssp in logs else 0
            self.polled[ssp] = oldest if isinstance(position, Edge) else position
        ends = {ssp: logs[ssp].end_at(self.world.now) for ssp in self.task.side_inputs}
        self.idleness = self.idleness_class(self.task, self.world.now)
        self.attempt.begin(dict(self.polled), ends, self._look_at_clock())

    def times_in(self, record: CommitRecord | None) -> TimesCheckpoint | None:
        """Watermarks and ends, as the last commit left them."""
        return None if record is None else _ACCOUNT.decode(bytes(record.bookkeeping)).times

    @override
    def prepared(self, step: do.Instruction) -> bool:
        before, ready = self.attempt.settling, self.attempt.ready(step, self._look_at_clock(), self.world.now)
        if not ready and not before:
            self.world.tell(self.name, f"{brief(step)} has to wait for {self.task.chain.held_by}")
        return ready

    @override
    def ended(self) -> bool:
        return self.task.ended and not self.task.finished

    @override
    def feed(self, label: int) -> Steps:
        for ssp, header in self._waiting.pop(label, ()):
            self._note_done(ssp, header)
        self.task.chain.tell_time(self._look_at_clock())
        self.receiver.feed(label)
        yield 0.1

    @override
    def finish(self) -> None:
        self.finished = True
        self.announcer.end()

    @override
    def append_changes(self, version: int) -> None:
        """One frame a change."""
        for change in self.state.changes(version):
            self.append(self.machine.stamp_change(), change.encode())

    @override
    def source_entries(self) -> tuple[SourceEntry, ...]:
        return self.receiver.source_entries()

    @override
    def bookkeeping(self) -> bytes:
        account = Account(
            self.task.save(),
            tuple(self.consumed),
            tuple(self.emitted),
            self.label,
            self.finished,
            tuple(self.told),
            self._latest,
        )
        return msgspec.json.encode(account)

    @override
    def write_local(self, local: LocalCheckpoint, changes: Held | None = None) -> None:
        self.state.persist(local)
        self.publishing.committed()
        self.cluster.oracle.stored(self.shape, local)
        self.consumed, self.emitted, self.label, self.finished = [], [], -1, False
        self.told = []
        self.done.clear()

    @override
    def leave(self) -> Steps:
        """What is committed has to be published yet."""
        while not self.publishing.idle:
            self._publish()
            yield 1 + self.world.chance.random() * 4

    @override
    def release(self) -> None:
        """See ``Incarnation``: nobody hears what calls come to."""
        super().release()
        self.attempt.close()
        self.publishing.close()
        self.calls.close()
